// SPDX-License-Identifier: Apache-2.0
// Values of the command line of `muster plan ep`, before they are interpreted.
#pragma once

#include "cli/plan/ep/ep.h"
#include "cli/plan/ep/replay.h"

#include <optional>
#include <string>
#include <vector>

namespace muster::cli {

struct EpFlags {
  // The layer.
  std::string preset;
  std::optional<int> experts;
  std::optional<int> ranks;
  std::optional<int> top_k;
  std::optional<std::int64_t> tokens;
  std::optional<std::int64_t> hidden;
  std::optional<std::int64_t> ffn;
  std::optional<int> projections;
  std::string type;
  bool compact{false};
  bool inference{false};
  // The planner.
  std::optional<int> slots;
  std::optional<int> padding;
  std::string mode;
  std::optional<double> tolerance;
  std::optional<std::vector<double>> speeds;
  std::optional<double> capacity_max;
  std::optional<int> homes_max;
  // The machine.
  std::string gemm_flops;
  std::string link;
  std::optional<double> plan_us;
  std::optional<double> overlap_us;
  std::optional<int> copies_out;
  std::optional<double> imbalance;

  std::string trace;  // file to replay
  bool json{false};
};

// Returns kInvalidArgument naming the flag.
[[nodiscard]] Expected<EpQuestion> question_of(const EpFlags& flags);
[[nodiscard]] Expected<EpReplayOptions> replay_options_of(const EpFlags& flags);

}  // namespace muster::cli
