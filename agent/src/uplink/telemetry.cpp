// SPDX-License-Identifier: Apache-2.0
#include "agent/src/uplink/telemetry.h"

#include "agent/src/uplink/uplink.h"

#include <muster/common/hash.h>
#include <muster/common/log.h>

#include <exception>
#include <span>
#include <string>
#include <utility>

namespace muster::agent {

Telemetry::Telemetry(std::unique_ptr<Channel> channel, std::unique_ptr<Uplink> uplink)
    : channel_(std::move(channel)), uplink_(std::move(uplink)) {}

Telemetry::~Telemetry() {
  if (uplink_ != nullptr) {
    uplink_->stop(std::move(overflow_));
  }
}

void Telemetry::start() {
  if (uplink_ == nullptr) {
    return;
  }
  try {
    uplink_->start();
  } catch (const std::exception& fault) {
    detach(std::string{"no thread for the uplink: "} + fault.what());
  }
}

StepSample* Telemetry::claim() {
  StepSample* slot = nullptr;
  if (!channel_->detached.load(std::memory_order_relaxed)) {
    slot = channel_->samples.try_claim();
  }
  if (slot == nullptr) {
    channel_->dropped_ring_full.fetch_add(1, std::memory_order_relaxed);
  }
  return slot;
}

void Telemetry::emit(Note note) {
  if (!channel_->detached.load(std::memory_order_relaxed)) {
    overflow_.push_back(std::move(note));
    flush_notes();
  }
}

void Telemetry::flush_notes() {
  while (!overflow_.empty()) {
    Note* slot = channel_->notes.try_claim();
    if (slot == nullptr) {
      return;
    }
    *slot = std::move(overflow_.front());
    overflow_.pop_front();
    channel_->notes.publish();
  }
}

std::optional<Command> Telemetry::next_command() {
  Command* front = channel_->commands.front();
  if (front == nullptr) {
    return std::nullopt;
  }
  Command command = *front;
  channel_->commands.pop();
  return command;
}

void Telemetry::finished(std::int64_t step, std::uint64_t last_applied_command) {
  channel_->last_step.store(step, std::memory_order_relaxed);
  channel_->last_applied_command.store(last_applied_command, std::memory_order_relaxed);
}

void Telemetry::restored(std::int64_t known_epoch, std::uint64_t last_applied_command) {
  channel_->known_epoch.store(known_epoch, std::memory_order_relaxed);
  channel_->last_applied_command.store(last_applied_command, std::memory_order_relaxed);
}

void Telemetry::detach(const std::string& reason) {
  if (!channel_->detached.exchange(true)) {
    log_warning("event=telemetry_detached reason=\"internal fault: " + reason + "\"");
  }
}

Expected<std::unique_ptr<Telemetry>> make_telemetry(
    const AgentOptions& options,
    MetricCatalog catalog,
    const StepSample& prototype,
    const Clock& clock) {
  if (!options.telemetry || options.collector.empty()) {
    return std::unique_ptr<Telemetry>{};
  }
  UplinkOptions uplink;
  MUSTER_RETURN_IF_ERROR(parse_address(options.collector, uplink));
  uplink.identity = options.identity;
  uplink.world_size = options.world_size;
  uplink.token = options.token;
  uplink.schema = catalog.schema();
  uplink.outbox_bytes_max = options.outbox_bytes_max;
  uplink.spool_directory = options.spool_directory;
  uplink.spool_bytes_max = options.spool_bytes_max;
  uplink.seed = hash64(std::as_bytes(std::span{options.identity.incarnation}));
  uplink.fill = [catalog = std::move(catalog)](const StepSample& sample, std::span<float> values) {
    catalog.fill(sample, values);
  };
  auto channel = std::make_unique<Channel>(options.ring_steps, prototype);
  auto thread = std::make_unique<Uplink>(std::move(uplink), *channel, clock);
  return std::make_unique<Telemetry>(std::move(channel), std::move(thread));
}

}  // namespace muster::agent
