// SPDX-License-Identifier: Apache-2.0
// Metrics, samples, events and commands as plain structs. Only wire/ maps them to bytes.
#pragma once

#include <muster/common/ids.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace muster {

enum class MetricKind : std::uint8_t { kInstant = 1, kDelta = 2, kRatio = 3, kRate = 4 };

// kJob: one value for the whole job, sent by rank 0. kRank: every rank sends its own.
enum class MetricScope : std::uint8_t { kJob = 1, kRank = 2 };

// One column of a schema. (name, layer, index, group) is unique in a schema;
// docs/reference/metrics.md lists the names. `layer` and `index` (head, expert) are -1 where they
// do not apply.
struct MetricDescriptor {
  std::uint32_t id{0};  // Position of its value in SampleFrame::values.
  std::string name;
  std::string unit;
  MetricKind kind{MetricKind::kInstant};
  MetricScope scope{MetricScope::kRank};
  std::int32_t layer{-1};
  std::int32_t index{-1};
  std::string group;

  friend bool operator==(const MetricDescriptor&, const MetricDescriptor&) = default;
};

// Sent once per connection. ids are 0..n-1 in order.
struct MetricSchema {
  std::vector<MetricDescriptor> metrics;

  // XXH3-64 over all fields: equal schemas have equal hashes on every machine.
  [[nodiscard]] std::uint64_t hash() const;

  friend bool operator==(const MetricSchema&, const MetricSchema&) = default;
};

// All metrics of one rank at one step; NaN and infinities travel bit-exact.
struct SampleFrame {
  std::int64_t step{0};
  std::int64_t wall_unix_ns{0};
  std::int64_t monotonic_ns{0};
  std::vector<float> values;  // [schema.metrics.size()]
};

enum class Severity : std::uint8_t { kInfo = 1, kWarning = 2, kError = 3 };

// Event kinds; an open set, these are the ones muster writes itself.
namespace event_kind {
inline constexpr const char* kFinding = "finding";
inline constexpr const char* kAction = "action";
inline constexpr const char* kStepSkipped = "step_skipped";
inline constexpr const char* kGradientClipped = "gradient_clipped";
inline constexpr const char* kQkClip = "qk_clip";
inline constexpr const char* kCheckpointCommitted = "checkpoint_committed";
inline constexpr const char* kCheckpointFailed = "checkpoint_failed";
inline constexpr const char* kCommandApplied = "command_applied";
inline constexpr const char* kCommandRejected = "command_rejected";
inline constexpr const char* kRunStarted = "run_started";
inline constexpr const char* kRunResumed = "run_resumed";
inline constexpr const char* kRunEnded = "run_ended";
inline constexpr const char* kRankLost = "rank_lost";
inline constexpr const char* kRestart = "restart";
inline constexpr const char* kDivergence = "divergence";
inline constexpr const char* kSamplesDropped = "samples_dropped";
// Labels: layer, from, to ("full", or "moba:BLOCK,TOPK").
inline constexpr const char* kAttentionModeChanged = "attention_mode_changed";
inline constexpr const char* kAttentionScheduleChanged = "attention_schedule_changed";
}  // namespace event_kind

// Something that happened, with its reason and the inputs of the decision. Never dropped.
struct Event {
  std::string kind;
  Severity severity{Severity::kInfo};
  std::int64_t step{-1};  // -1 if not tied to a step.
  std::int64_t wall_unix_ns{0};
  std::string reason;                    // For people.
  std::map<std::string, double> inputs;  // The numbers that the decision was made from.
  std::map<std::string, std::string> labels;

  friend bool operator==(const Event&, const Event&) = default;
};

enum class CommandKind : std::uint8_t {
  kCheckpointNow = 1,       // `argument` 1 pins the checkpoint against retention; 0 does not.
  kSkipStep = 2,            // Leaves the next step's update out on all ranks.
  kSetQkClipThreshold = 3,  // `argument` = tau; 0 switches the clip off.
  kStop = 4,                // Saves at one agreed step and ends with exit code 0.
};

[[nodiscard]] const char* to_string(CommandKind kind);

// Ordered by id within a run. Every rank of a generation receives the same list in the same order.
struct Command {
  CommandId id;
  std::int64_t collector_epoch{0};
  CommandKind kind{CommandKind::kCheckpointNow};
  double argument{0.0};
  std::int64_t expires_step{-1};  // Not run after this step; -1 never expires.
  std::string reason;
  std::string issuer;  // "operator", or "policy:<rule>".

  friend bool operator==(const Command&, const Command&) = default;
};

enum class CommandState : std::uint8_t {
  kIssued = 1,
  kArmed = 2,     // It has arrived at a rank.
  kApplied = 3,   // It ran at `step` on the reporting rank.
  kRejected = 4,  // `reason` has the cause.
  kExpired = 5,
};

[[nodiscard]] const char* to_string(CommandState state);

struct CommandReport {
  CommandId id;
  CommandState state{CommandState::kArmed};
  std::int64_t step{-1};
  std::uint64_t parameter_digest{0};  // Zero if not computed at that step.
  std::string reason;

  friend bool operator==(const CommandReport&, const CommandReport&) = default;
};

}  // namespace muster
