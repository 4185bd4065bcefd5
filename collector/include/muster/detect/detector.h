// Detectors judge a stream of numbers. Sans-I/O: no clock, no sockets, no storage; a detector is a
// value that can be copied to fork a simulation.
#pragma once

#include <muster/common/telemetry.h>

#include <cstdint>
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

// The job's view of one step, assembled by the collector from rank 0's frame.
struct StepObservation {
  std::int64_t step{0};
  std::int64_t generation{0};
  double loss{0};
  double gradient_norm{0};
  double nonfinite_count{0};
  double max_logit{0};  // over all layers and heads; NaN when there are none
  int max_logit_layer{-1};
  int max_logit_head{-1};
  std::vector<HeadLogit> head_logits;  // Every head, where known; empty: max_logit alone is judged.
  bool skipped{false};
};

// What a detector found, with the numbers it was found from.
struct Finding {
  // "nonfinite", "spike", "spike_persistent", "max_logit", "rank_lost", "no_progress"
  std::string rule;
  Severity severity{Severity::kWarning};
  std::int64_t step{-1};
  std::string subject;  // "loss", "gradient_norm", "layer 3 head 1", "rank 2"
  std::string reason;
  std::map<std::string, double> inputs;
};

}  // namespace muster::detect
