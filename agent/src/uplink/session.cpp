// SPDX-License-Identifier: Apache-2.0
#include "agent/src/uplink/session.h"

#include <muster/common/log.h>

#include <algorithm>
#include <utility>

namespace muster::agent {
namespace {

void append(const wire::Message& message, std::vector<std::byte>& out) {
  const Status status = wire::append_frame(message, out);
  if (!status.ok()) {
    log_warning("event=message_dropped reason=\"" + status.to_string() + "\"");
  }
}

}  // namespace

Session::Session(const UplinkOptions& options, Channel& channel, Outbox& outbox)
    : options_(options), channel_(channel), outbox_(outbox) {}

void Session::begin(MonotonicTime now) {
  reader_ = {};
  hello_sent_ = false;
  schema_sent_ = false;
  open_ = false;
  begun_at_ = now;
  last_received_at_ = now;
  heartbeat_due_at_ = now;
  reason_.clear();
}

Session::Action Session::receive(std::span<const std::byte> bytes, MonotonicTime now) {
  last_received_at_ = now;
  reader_.feed(bytes);
  while (true) {
    auto next = reader_.next();
    if (!next && next.status().code() == StatusCode::kUnimplemented) {
      continue;  // Skip a message of a newer protocol.
    }
    if (!next) {
      return end(Action::kReconnect, next.status().to_string());
    }
    if (!next->has_value()) {
      return Action::kContinue;
    }
    const Action action = handle(**next);
    if (action != Action::kContinue) {
      return action;
    }
  }
}

Session::Action Session::handle(const wire::Message& message) {
  if (const auto* goodbye = std::get_if<wire::Goodbye>(&message)) {
    return end(goodbye->retry ? Action::kReconnect : Action::kDetach, goodbye->reason);
  }
  if (!open_) {
    const auto* answer = std::get_if<wire::Welcome>(&message);
    return answer != nullptr
               ? welcome(*answer)
               : end(Action::kReconnect, "the collector sent a message before its Welcome");
  }
  if (const auto* ack = std::get_if<wire::Ack>(&message)) {
    const Status status = outbox_.acknowledge(ack->seq);
    return status.ok() ? Action::kContinue : end(Action::kReconnect, status.message());
  }
  if (const auto* command = std::get_if<wire::CommandMessage>(&message)) {
    take_command(command->command);
  }
  return Action::kContinue;  // Heartbeats and messages of later versions only prove liveness.
}

Session::Action Session::welcome(const wire::Welcome& welcome) {
  if (welcome.version < wire::kProtocolVersionMin || welcome.version > wire::kProtocolVersion) {
    return end(
        Action::kDetach,
        "the collector's protocol version must be between " +
            std::to_string(wire::kProtocolVersionMin) + " and " +
            std::to_string(wire::kProtocolVersion) + ", got " + std::to_string(welcome.version) +
            ": upgrade the older side");
  }
  const std::int64_t known = channel_.known_epoch.load(std::memory_order_relaxed);
  if (welcome.collector_epoch < known) {
    return end(
        Action::kReconnect,
        "stale collector: its epoch is " + std::to_string(welcome.collector_epoch) +
            ", this run has seen epoch " + std::to_string(known));
  }
  const Status status = outbox_.acknowledge(welcome.acked_seq);
  if (!status.ok()) {
    return end(Action::kReconnect, status.message());
  }
  outbox_.rewind();
  channel_.known_epoch.store(welcome.collector_epoch, std::memory_order_relaxed);
  epoch_ = welcome.collector_epoch;
  open_ = true;
  return Action::kContinue;
}

void Session::take_command(const Command& command) {
  const std::uint64_t known =
      std::max(received_command_, channel_.last_applied_command.load(std::memory_order_relaxed));
  if (command.id.value() <= known) {
    return;  // A repetition after a reconnect.
  }
  received_command_ = command.id.value();
  CommandReport report;
  report.id = command.id;
  report.step = channel_.last_step.load(std::memory_order_relaxed);
  if (command.collector_epoch > epoch_) {
    report.state = CommandState::kRejected;
    report.reason = "the command has collector epoch " + std::to_string(command.collector_epoch) +
                    ", newer than epoch " + std::to_string(epoch_) +
                    " of the collector that delivered it";
  } else {
    report.state = CommandState::kArmed;
    undelivered_.push_back(command);
  }
  outbox_.push(std::move(report));
  deliver_commands();
}

void Session::deliver_commands() {
  while (!undelivered_.empty()) {
    Command* slot = channel_.commands.try_claim();
    if (slot == nullptr) {
      return;
    }
    *slot = std::move(undelivered_.front());
    undelivered_.pop_front();
    channel_.commands.publish();
  }
}

Session::Action Session::check(MonotonicTime now) {
  if (!open_ && now - begun_at_ > options_.io_timeout) {
    return end(Action::kReconnect, "the collector did not answer the Hello in time");
  }
  if (open_ && outbox_.awaits_ack() && now - last_received_at_ > 2 * options_.io_timeout) {
    return end(Action::kReconnect, "the collector sends no acknowledgements");
  }
  return Action::kContinue;
}

void Session::write(std::vector<std::byte>& out, MonotonicTime now) {
  if (!hello_sent_) {
    append(hello(), out);
    hello_sent_ = true;
  }
  if (!open_) {
    return;
  }
  if (!schema_sent_) {
    append(wire::SchemaMessage{options_.schema}, out);
    schema_sent_ = true;
  }
  if (!outbox_.awaits_ack()) {
    last_received_at_ = now;  // Silence counts only while an acknowledgement is due.
  }
  while (out.size() < kWriteBytes) {
    const std::optional<wire::Message> message = outbox_.next();
    if (!message) {
      break;
    }
    append(*message, out);
  }
  if (now >= heartbeat_due_at_) {
    append(heartbeat(now), out);
    heartbeat_due_at_ = now + options_.heartbeat_interval;
  }
}

void Session::write_goodbye(std::vector<std::byte>& out) {
  append(wire::Goodbye{"the rank ends", true}, out);
}

Session::Action Session::end(Action action, std::string reason) {
  reason_ = std::move(reason);
  open_ = false;
  return action;
}

wire::Hello Session::hello() const {
  wire::Hello hello;
  hello.identity = options_.identity;
  hello.world_size = options_.world_size;
  hello.token = options_.token;
  hello.last_applied_command = channel_.last_applied_command.load(std::memory_order_relaxed);
  hello.known_epoch = channel_.known_epoch.load(std::memory_order_relaxed);
  return hello;
}

wire::Heartbeat Session::heartbeat(MonotonicTime now) const {
  wire::Heartbeat heartbeat;
  heartbeat.step = channel_.last_step.load(std::memory_order_relaxed);
  heartbeat.monotonic_ns = now.time_since_epoch().count();
  heartbeat.drops.ring_full = channel_.dropped_ring_full.load(std::memory_order_relaxed);
  heartbeat.drops.outbox_full = outbox_.dropped_outbox_full();
  heartbeat.drops.spool_full = outbox_.dropped_spool_full();
  return heartbeat;
}

}  // namespace muster::agent
