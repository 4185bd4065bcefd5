// SPDX-License-Identifier: Apache-2.0
// Detectors judge a stream of numbers. Sans-I/O: no clock, no sockets, no storage; a detector is a
// value that can be copied to fork a simulation.
#pragma once

#include <muster/common/telemetry.h>

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

namespace muster::detect {

// Max attention logit of one head.
struct HeadLogit {
  int layer{-1};
  int head{-1};
  double value{0};
};

// An attention layer in one step. Unknown values are NaN.
struct AttentionLayer {
  int layer{-1};
  double mode{std::numeric_limits<double>::quiet_NaN()};  // 0 is full, else block attention.
  double query_reach{std::numeric_limits<double>::quiet_NaN()};
  double block_reach{std::numeric_limits<double>::quiet_NaN()};
};

// A layer of experts in one step. Unknown values are NaN.
struct ExpertLayer {
  int layer{-1};
  double rank_imbalance{std::numeric_limits<double>::quiet_NaN()};  // rho = max / mean rank load
  double maxvio{std::numeric_limits<double>::quiet_NaN()};  // max / mean expert load, minus 1
};

// The job's view of one step, assembled by the collector from rank 0's frame.
struct StepObservation {
  std::int64_t step{0};
  std::int64_t generation{0};
  double loss{0};
  double gradient_norm{0};
  double nonfinite_count{0};
  double max_logit{0};  // over all layers and heads; NaN if there are none
  int max_logit_layer{-1};
  int max_logit_head{-1};
  std::vector<HeadLogit> head_logits;  // All known heads; if empty, only max_logit is judged.
  bool skipped{false};
  std::vector<AttentionLayer>
      attention;                     // Ascending by layer, without layers that publish nothing.
  std::vector<ExpertLayer> experts;  // Likewise.
};

// A detected problem and the numbers behind it.
struct Finding {
  // "nonfinite", "spike", "spike_persistent", "max_logit", "rank_lost", "no_progress",
  // "flat", "attention_reach_low", "expert_imbalance", "ep_rank_waited_for"
  std::string rule;
  Severity severity{Severity::kWarning};
  std::int64_t step{-1};
  std::string subject;  // "loss", "gradient_norm", "layer 3 head 1", "rank 2"
  std::string reason;
  std::map<std::string, double> inputs;
};

}  // namespace muster::detect
