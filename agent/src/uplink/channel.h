// SPDX-License-Identifier: Apache-2.0
// State shared by the training thread and the I/O thread: three lock-free rings and a few counters.
//
// The training thread produces samples and notes and consumes commands; the I/O thread the reverse.
// No operation waits, and none on the sample path allocates. A sample is a copy of the step's
// results; the I/O thread computes the metrics from it, since the training thread comes with cold
// caches.
#pragma once

#include "agent/src/metrics/step_facts.h"

#include <muster/common/spsc_ring.h>
#include <muster/common/telemetry.h>

#include <atomic>
#include <cstdint>
#include <variant>

namespace muster::agent {

// Rare items that are kept when samples are dropped.
using Note = std::variant<Event, CommandReport>;

struct Channel {
  Channel(std::size_t ring_steps, const StepSample& prototype)
      : samples(ring_steps, prototype), notes(kNotes), commands(kCommands) {}

  static constexpr std::size_t kNotes = 256;
  static constexpr std::size_t kCommands = 64;

  SpscRing<StepSample> samples;
  SpscRing<Note> notes;
  SpscRing<Command> commands;

  // Written by the training thread.
  std::atomic<std::int64_t> last_step{-1};
  std::atomic<std::uint64_t> dropped_ring_full{0};
  std::atomic<std::uint64_t> last_applied_command{0};

  // Written by the I/O thread.
  std::atomic<bool> detached{false};
  std::atomic<std::int64_t> known_epoch{0};
  std::atomic<std::uint64_t> dropped_outbox_full{0};
  std::atomic<std::uint64_t> dropped_spool_full{0};
};

}  // namespace muster::agent
