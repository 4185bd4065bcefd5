// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/collector/scripted_client.h"

#include <muster/common/check.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>

namespace muster::collector {

namespace {

using SteadyClock = std::chrono::steady_clock;

}  // namespace

ScriptedClient::ScriptedClient(const std::string& address)
    : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in peer{};
  peer.sin_family = AF_INET;
  peer.sin_port =
      htons(static_cast<std::uint16_t>(std::stoul(address.substr(address.rfind(':') + 1))));
  peer.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const auto* generic = static_cast<const sockaddr*>(static_cast<const void*>(&peer));
  MUSTER_CHECK(::connect(socket_.get(), generic, sizeof(peer)) == 0, "no collector at " + address);
}

void ScriptedClient::send(const wire::Message& message) {
  std::vector<std::byte> frame;
  const Status status = wire::append_frame(message, frame);
  MUSTER_CHECK(status.ok(), status.to_string());
  send_bytes(frame);
}

void ScriptedClient::send_bytes(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) {
      return;
    }
    bytes = bytes.subspan(static_cast<std::size_t>(sent));
  }
}

bool ScriptedClient::read_some(SteadyClock::time_point until) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(until - SteadyClock::now());
  pollfd waited{socket_.get(), POLLIN, 0};
  if (::poll(&waited, 1, static_cast<int>(std::max<std::int64_t>(left.count(), 0))) <= 0) {
    return false;
  }
  std::array<std::byte, 16384> buffer{};
  const ssize_t size = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
  if (size <= 0) {
    ended_ = true;
    return false;
  }
  reader_.feed(std::span{buffer}.first(static_cast<std::size_t>(size)));
  return true;
}

std::optional<wire::Message> ScriptedClient::receive_any(SteadyClock::time_point until) {
  while (true) {
    auto message = reader_.next();
    MUSTER_CHECK(message.ok(), message.status().to_string());
    if (message->has_value()) {
      return std::move(**message);
    }
    if (!read_some(until)) {
      return std::nullopt;
    }
  }
}

std::optional<wire::Message> ScriptedClient::receive(std::chrono::milliseconds patience) {
  const auto until = SteadyClock::now() + patience;
  std::optional<wire::Message> message = receive_any(until);
  while (message.has_value() && std::holds_alternative<wire::Heartbeat>(*message)) {
    message = receive_any(until);
  }
  return message;
}

bool ScriptedClient::receives_heartbeat() {
  const auto until = SteadyClock::now() + kPatience;
  while (const std::optional<wire::Message> message = receive_any(until)) {
    if (std::holds_alternative<wire::Heartbeat>(*message)) {
      return true;
    }
  }
  return false;
}

bool ScriptedClient::receive_ack(std::uint64_t seq) {
  while (const auto ack = receive_next<wire::Ack>()) {
    if (ack->seq >= seq) {
      return ack->seq == seq;
    }
  }
  return false;
}

bool ScriptedClient::sees_end() {
  const auto until = SteadyClock::now() + kPatience;
  while (!ended_ && SteadyClock::now() < until) {
    static_cast<void>(read_some(until));
  }
  return ended_;
}

void ScriptedClient::vanish() {
  socket_ = FileDescriptor{};
  ended_ = true;
}

wire::Hello agent_hello(std::int32_t rank, std::int64_t generation, std::int32_t world_size) {
  wire::Hello hello;
  hello.identity = {
      "run-1",
      Generation{generation},
      Rank{rank},
      "process-" + std::to_string(generation) + "-" + std::to_string(rank)};
  hello.world_size = world_size;
  return hello;
}

wire::Hello operator_hello() {
  wire::Hello hello;
  hello.role = wire::PeerRole::kOperator;
  hello.identity.rank = Rank{-1};
  return hello;
}

wire::Hello launcher_hello() {
  wire::Hello hello;
  hello.role = wire::PeerRole::kLauncher;
  hello.identity = {"run-1", Generation{1}, Rank{-1}, "launcher-1"};
  hello.world_size = 4;
  return hello;
}

MetricSchema job_schema() {
  constexpr auto kInstant = MetricKind::kInstant;
  constexpr auto kDelta = MetricKind::kDelta;
  constexpr auto kJob = MetricScope::kJob;
  return {{
      {0, "train_loss_nats", "nats", kInstant, kJob, -1, -1, ""},
      {1, "train_grad_norm", "1", kInstant, kJob, -1, -1, ""},
      {2, "train_nonfinite_count", "count", kDelta, kJob, -1, -1, ""},
      {3, "train_step_skipped", "count", kDelta, kJob, -1, -1, ""},
      {4, "train_attn_logit_max", "1", kInstant, kJob, 0, 0, ""},
      {5, "train_attn_logit_max", "1", kInstant, kJob, 0, 1, ""},
      {6, "train_phase_seconds", "seconds", kInstant, MetricScope::kRank, -1, -1, "forward"},
  }};
}

StepValues calm(std::int64_t step) {
  const float unrest = 0.01F * static_cast<float>(step % 7);
  return {.loss = 2.0F + unrest, .gradient_norm = 1.0F + unrest};
}

SampleFrame job_frame(std::int64_t step, const StepValues& values) {
  return {
      step,
      1'700'000'000'000'000'000 + step,
      step + 1,
      {values.loss,
       values.gradient_norm,
       values.nonfinite_count,
       values.skipped,
       5.0F,
       values.logit,
       0.25F}};
}

wire::SampleBatch job_batch(
    std::uint64_t first_seq, std::int64_t first_step, std::size_t count, const StepValues& values) {
  wire::SampleBatch batch;
  batch.first_seq = first_seq;
  batch.schema_hash = job_schema().hash();
  for (std::size_t i = 0; i < count; ++i) {
    batch.frames.push_back(job_frame(first_step + static_cast<std::int64_t>(i), values));
  }
  return batch;
}

}  // namespace muster::collector
