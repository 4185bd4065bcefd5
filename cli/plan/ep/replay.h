// SPDX-License-Identifier: Apache-2.0
// `muster plan ep replay`: compares the plans of a trace with another planner's for the same
// choices.
#pragma once

#include <muster/parallel/experts/trace.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace muster::cli {

// Options that replace those of the recorded planner if set.
struct EpReplayOptions {
  std::optional<int> slots;
  std::optional<int> padding;
  std::optional<parallel::EpBalanceMode> mode;
  std::optional<double> tolerance;
  std::optional<double> capacity_max;
  std::optional<int> homes_max;
  std::optional<std::vector<double>> speeds;
  std::int64_t row_bytes{0};  // wire figures are in bytes, or in rows if zero
};

// Sums over steps of one planner.
struct EpReplaySums {
  std::int64_t plans{0};
  double imbalance_after{0};
  double imbalance_after_max{0};
  std::int64_t copies{0};
  std::int64_t copies_out_max{0};
  std::int64_t overflow{0};
  std::int64_t rows_moved{0};
  std::int64_t surplus{0};
  std::int64_t pad_rows{0};
  // Sent by the recording rank to other ranks, if known.
  std::int64_t wire_tokens{0};
  std::int64_t wire_rows{0};
};

struct EpReplayLayer {
  int layer{0};
  std::int64_t steps{0};
  std::int64_t rows{0};
  double max_violation_max{0};
  double imbalance_before{0};  // sum
  double imbalance_before_max{0};
  EpReplaySums recorded;
  EpReplaySums replayed;
};

struct EpReplayReport {
  std::string file;
  parallel::EpTraceHeader recorded;
  parallel::EpTraceHeader replayed;
  int rank{0};
  std::int64_t records{0};
  std::int64_t first_step{0};
  std::int64_t last_step{0};
  std::int64_t reproduced{0};  // recorded plans that the recorded planner reproduces, by hash
  std::int64_t refused{0};     // plans that the replaying planner cannot make
  std::string refusal;         // reason of the first
  bool deduplicated{true};     // wire rows are deduplicated; false without recorded choices
  std::int64_t row_bytes{0};
  std::vector<EpReplayLayer> layers;  // ascending
};

// Plans every record twice: with the recorded options, whose hash must match unless speeds changed
// during the run, and with `options`. Returns kInvalidArgument for invalid options, and errors of
// the trace unchanged.
[[nodiscard]] Expected<EpReplayReport> replay(
    const std::filesystem::path& file, const EpReplayOptions& options);

[[nodiscard]] std::string to_text(const EpReplayReport& report);
[[nodiscard]] std::string to_json(const EpReplayReport& report);

}  // namespace muster::cli
