// SPDX-License-Identifier: Apache-2.0
#include <muster/detect/mode_tracker.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <string_view>
#include <utility>

namespace muster::detect {

namespace {

// Bounds on what events may make us remember; a schedule has a handful of each.
constexpr std::size_t kChangesMax = 256;
constexpr std::size_t kVariantsMax = 32;

bool is_block(std::string_view text) {
  return text.starts_with("moba");
}

}  // namespace

void ModeTracker::begin(std::int64_t generation) {
  generation_ = generation;
  layers_.clear();
  all_.clear();
  for (const ModeChange& change : std::exchange(ahead_, {})) {
    note(change);
  }
}

void ModeTracker::note(const ModeChange& change) {
  if (change.generation == generation_) {
    take(change);
  } else if (change.generation > generation_ && ahead_.size() < kChangesMax) {
    ahead_.push_back(change);
  }
}

void ModeTracker::take(const ModeChange& change) {
  Layer& layer = layers_[change.layer];
  layer.changes.insert_or_assign(change.step, Change{change.from, change.to});
  if (layer.changes.size() > kChangesMax) {
    layer.changes.erase(layer.changes.begin());
  }
  // The variant that a layer began with gets its name when it is left.
  const auto named = std::find(layer.variants.begin(), layer.variants.end(), change.from);
  const auto unnamed = std::find(layer.variants.begin(), layer.variants.end(), std::string{});
  if (is_block(change.from) && named == layer.variants.end() && unnamed != layer.variants.end()) {
    *unnamed = change.from;
  }
}

void ModeTracker::observe(const StepObservation& observation) {
  for (const AttentionLayer& seen : observation.attention) {
    if (!std::isfinite(seen.mode)) {
      continue;
    }
    Layer& layer = layers_[seen.layer];
    const int mode = seen.mode > 0 ? block_mode(layer, observation.step) : kFull;
    if (layer.mode != kUnknown && layer.mode != mode) {
      ++switch_count_;
    }
    layer.mode = mode;
  }
  all_.clear();
  for (const auto& [number, layer] : layers_) {
    if (layer.mode != kUnknown) {
      all_.push_back(layer.mode);
    }
  }
}

int ModeTracker::block_mode(Layer& layer, std::int64_t step) {
  // The mode that the last event up to the step set, or that the first one after it replaced.
  const auto after = layer.changes.upper_bound(step);
  std::string text;
  if (after != layer.changes.begin()) {
    text = std::prev(after)->second.to;
  } else if (after != layer.changes.end()) {
    text = after->second.from;
  }
  if (!is_block(text)) {
    text.clear();
  }
  const auto found = std::find(layer.variants.begin(), layer.variants.end(), text);
  if (found == layer.variants.end() && layer.variants.size() < kVariantsMax) {
    layer.variants.push_back(text);
    return static_cast<int>(layer.variants.size());
  }
  const auto place = std::min<std::ptrdiff_t>(
      found - layer.variants.begin(), static_cast<std::ptrdiff_t>(kVariantsMax) - 1);
  return static_cast<int>(place) + 1;
}

int ModeTracker::mode_of(int layer) const {
  const auto found = layers_.find(layer);
  return found == layers_.end() ? kUnknown : found->second.mode;
}

std::string ModeTracker::text_of(int layer) const {
  const int mode = mode_of(layer);
  if (mode <= kFull) {
    return mode == kFull ? "full" : "";
  }
  const std::string& name = layers_.at(layer).variants[static_cast<std::size_t>(mode) - 1];
  return name.empty() ? "block attention" : name;
}

}  // namespace muster::detect
