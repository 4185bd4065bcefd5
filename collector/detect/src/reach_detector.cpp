// SPDX-License-Identifier: Apache-2.0
#include <muster/common/text.h>
#include <muster/detect/reach_detector.h>

#include <cstddef>
#include <string>

namespace muster::detect {

namespace {

// A layer with its position in the model, and the statistic that is judged.
struct Place {
  const AttentionLayer& layer;
  std::string mode;
  bool block_low{false};
  bool query_low{false};
  // The smallest `last_full` that makes the layers with low reach use full attention.
  std::size_t last_full{0};
};

std::string percent(double share) {
  return general(100 * share, 3) + " %";
}

Finding describe(const Place& place, std::int64_t step, const ReachOptions& options) {
  const AttentionLayer& layer = place.layer;
  Finding finding;
  finding.rule = "attention_reach_low";
  finding.severity = Severity::kWarning;
  finding.step = step;
  finding.subject = "layer " + std::to_string(layer.layer);
  std::string what;
  if (place.block_low) {
    what = percent(layer.block_reach) + " of its key blocks (low: below " +
           percent(options.block_reach) + ")";
  }
  if (place.query_low) {
    what += (what.empty() ? "" : " and ") + percent(layer.query_reach) +
            " of its tokens (low: below " + percent(options.query_reach) + ")";
  }
  finding.reason =
      "gradients reach " + what + " in attention " + finding.subject +
      (place.mode.empty() ? "" : " (" + place.mode + ")") + ", " + std::to_string(options.steps) +
      " steps in a row up to step " + std::to_string(step) +
      ": a loss on few tokens trains only the blocks they chose; give more of the last "
      "layers full attention (last_full " +
      std::to_string(place.last_full) + ")";
  finding.inputs = {
      {"layer", static_cast<double>(layer.layer)},
      {"block_reach", layer.block_reach},
      {"block_reach_low", options.block_reach},
      {"query_reach", layer.query_reach},
      {"query_reach_low", options.query_reach},
      {"steps", static_cast<double>(options.steps)},
      {"last_full", static_cast<double>(place.last_full)}};
  return finding;
}

}  // namespace

std::vector<Finding> ReachDetector::observe(
    const StepObservation& observation, const ModeTracker& modes) {
  std::vector<Finding> findings;
  const std::vector<AttentionLayer>& layers = observation.attention;
  bool block_above = false;  // Some layer above may be in block attention.
  for (std::size_t above = 0; above < layers.size(); ++above) {
    const AttentionLayer& layer = layers[layers.size() - 1 - above];
    const bool full = modes.mode_of(layer.layer) == ModeTracker::kFull;
    // Comparisons with NaN, of a layer that reports no reach, are false.
    Place place{layer, modes.text_of(layer.layer)};
    place.block_low = !full && layer.block_reach < options_.block_reach;
    place.query_low = block_above && layer.query_reach < options_.query_reach;
    place.last_full = place.block_low ? above + 1 : above;
    block_above = block_above || !full;
    const bool low = place.block_low || place.query_low;
    if (streaks_[layer.layer].update(low, options_.steps)) {
      findings.push_back(describe(place, observation.step, options_));
    }
  }
  return findings;
}

}  // namespace muster::detect
