// SPDX-License-Identifier: Apache-2.0
// The read side of the store, for the dashboard, `muster status` and /metrics.
//
// Thread-safety: a Query owns a read-only database connection and belongs to one thread; make one
// per thread. It sees committed data only and can never block or damage ingestion.
#pragma once

#include <muster/common/expected.h>
#include <muster/common/telemetry.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace muster::store {

struct RunInfo {
  std::string run_id;
  std::int32_t world_size{0};
  std::int64_t generation{0};  // newest
  std::int64_t first_step{-1};
  std::int64_t last_step{-1};  // newest step of the newest generation
  std::int64_t started_unix_ns{0};
  std::int64_t last_seen_unix_ns{0};
  double last_loss{0};
  std::int64_t sample_count{0};   // floats stored
  std::int64_t dropped_count{0};  // frames that agents reported as dropped
};

// One stored series: a metric column of one rank (or of the job).
struct SeriesInfo {
  std::int64_t series_id{0};
  std::string name;
  std::string unit;
  MetricKind kind{MetricKind::kInstant};
  MetricScope scope{MetricScope::kJob};
  std::int32_t rank{-1};  // -1 for job scope
  std::int32_t layer{-1};
  std::int32_t index{-1};
  std::string group;
};

// A step bucket. min, max and last are over the `count` finite samples; NaN and infinities are in
// nonfinite_count. A bucket without a finite sample has count 0 and carries its last sample in min,
// max and last, bit for bit: with bucket_steps 1 every sample is returned exactly as it was sent.
// step_first and step_last are the first and last step of the bucket that have a sample.
struct Bucket {
  std::int64_t step_first{0};
  std::int64_t step_last{0};
  float min{0};
  float max{0};
  float last{0};
  std::uint32_t count{0};
  std::uint32_t nonfinite_count{0};
};

struct SeriesRange {
  std::int64_t series_id{0};
  std::int64_t generation{0};
  std::int64_t step_begin{0};
  std::int64_t step_end{0};      // exclusive
  std::int64_t bucket_steps{1};  // every bucket covers this many steps, anchored at step 0
  std::vector<Bucket> buckets;   // ascending; empty steps have no bucket
};

// One series at one step.
struct StepValue {
  std::int64_t series_id{0};
  std::int32_t rank{-1};  // as in SeriesInfo
  std::int32_t layer{-1};
  std::int32_t index{-1};
  std::string group;
  float value{0};
  bool present{false};  // True if the step has a sample.
};

inline constexpr std::size_t kStepValuesMax = 65'536;

// All series of a metric at one step: a matrix of layers x experts or ranks x peers.
struct StepValues {
  std::int64_t generation{0};
  std::int64_t step{-1};        // -1 if the generation has no samples
  std::int64_t step_first{-1};  // first step of the generation with a sample of any sender
  std::int64_t step_last{-1};   // last step of the generation with samples of all senders
  std::string unit;
  std::vector<StepValue> values;  // ascending by rank, layer, index and group
};

struct StoredEvent {
  std::int64_t event_id{0};
  std::int64_t generation{0};
  std::int32_t rank{-1};  // -1 for the collector or launcher
  Event event;
};

struct RankStatus {
  std::int32_t rank{0};
  std::int64_t generation{0};
  std::string incarnation;
  std::int64_t step{-1};
  std::int64_t last_seen_unix_ns{0};
  bool connected{false};
  double compute_seconds{0};  // last step, without communication
  std::int64_t dropped_count{0};
};

struct CommandStatus {
  Command command;
  CommandState state{CommandState::kIssued};
  std::int64_t applied_step{-1};
  std::int32_t ranks_armed{0};
  std::int32_t ranks_applied{0};
  std::string reason;
};

class Query {
 public:
  // kVersionMismatch if the file was made by a newer muster, kNotFound if it is missing.
  [[nodiscard]] static Expected<std::unique_ptr<Query>> open(const std::filesystem::path& database);

  Query() = default;
  Query(const Query&) = delete;
  Query& operator=(const Query&) = delete;
  Query(Query&&) = delete;
  Query& operator=(Query&&) = delete;
  virtual ~Query() = default;

  // Newest first.
  [[nodiscard]] virtual Expected<std::vector<RunInfo>> runs() = 0;
  [[nodiscard]] virtual Expected<RunInfo> run(const std::string& run_id) = 0;

  // Generations that have samples, ascending, with the step range of each.
  struct GenerationInfo {
    std::int64_t generation{0};
    std::int64_t step_first{0};
    std::int64_t step_last{0};
    std::int64_t started_unix_ns{0};
  };

  [[nodiscard]] virtual Expected<std::vector<GenerationInfo>> generations(
      const std::string& run_id) = 0;
  [[nodiscard]] virtual Expected<std::vector<SeriesInfo>> series(const std::string& run_id) = 0;

  // Decimates to at most `buckets_max` buckets of equal, power-of-two width anchored at step 0, so
  // that appending never moves a bucket. Extremes are never lost. Steps that are still only in
  // frames are included. A negative `step_end` reads to the end. Buckets at the edges are whole: a
  // bucket that reaches into the range also covers its steps outside of it, so that panning never
  // changes one. kInvalidArgument if `buckets_max` < 2, kNotFound if the run has no such series.
  [[nodiscard]] virtual Expected<SeriesRange> range(
      const std::string& run_id,
      std::int64_t series_id,
      std::int64_t generation,
      std::int64_t step_begin,
      std::int64_t step_end,
      std::int32_t buckets_max) = 0;

  // Returns every series named `metric` at `step`, or, if `step` is negative, at the newest step
  // that all its senders have. No values if the run has no such series. kNotFound for an unknown
  // run, kResourceExhausted for more than kStepValuesMax series.
  [[nodiscard]] virtual Expected<StepValues> at_step(
      const std::string& run_id,
      const std::string& metric,
      std::int64_t generation,
      std::int64_t step) = 0;

  // Returns events with id > `after_event_id`, ascending, at most `limit`.
  [[nodiscard]] virtual Expected<std::vector<StoredEvent>> events(
      const std::string& run_id, std::int64_t after_event_id, std::int32_t limit) = 0;
  [[nodiscard]] virtual Expected<std::vector<RankStatus>> ranks(const std::string& run_id) = 0;
  [[nodiscard]] virtual Expected<std::vector<CommandStatus>> commands(
      const std::string& run_id) = 0;

  // Grows with every commit of the writer; equal values mean nothing new.
  [[nodiscard]] virtual Expected<std::int64_t> data_version() = 0;
};

}  // namespace muster::store
