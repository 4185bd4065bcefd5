// SPDX-License-Identifier: Apache-2.0
// Finds layers that learn from too little: with a loss on few tokens, block attention passes
// gradients only to the few key blocks that those tokens chose, while the loss looks healthy.
//
// Two shares of a layer are judged, each only where more full attention can raise it: its block
// reach unless it is full, and its query reach if some layer above it is not full. (In the last
// layer the query reach is the share of tokens with a loss, a property of the data.) Layers of
// unknown mode count as block attention. A layer is found once when a share has been low for some
// steps in a row, and again only after as many healthy ones.
//
// A value; steps must come in order (see JobDetector).
#pragma once

#include <muster/detect/detector.h>
#include <muster/detect/mode_tracker.h>
#include <muster/detect/streak.h>

#include <map>
#include <vector>

namespace muster::detect {

struct ReachOptions {
  double block_reach{0.5};   // Low: below this share of (kv head, block) pairs.
  double query_reach{0.25};  // Low: below this share of tokens.
  int steps{32};             // In a row.

  friend bool operator==(const ReachOptions&, const ReachOptions&) = default;
};

class ReachDetector {
 public:
  explicit ReachDetector(ReachOptions options) : options_(options) {}

  // `modes` must have observed this step.
  [[nodiscard]] std::vector<Finding> observe(
      const StepObservation& observation, const ModeTracker& modes);

  void reset() { streaks_.clear(); }

 private:
  ReachOptions options_;
  std::map<int, Streak> streaks_;  // By layer.
};

}  // namespace muster::detect
