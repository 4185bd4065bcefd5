// SPDX-License-Identifier: Apache-2.0
#include "agent/src/attention/change.h"

#include <algorithm>
#include <limits>
#include <set>

namespace muster::agent {
namespace {

AttentionMode mode_of(
    const AttentionSchedule& schedule, std::int64_t layer, std::int64_t layers, std::int64_t step) {
  constexpr auto kLong = std::numeric_limits<std::int64_t>::max();
  return schedule.mode_at({.layer = layer, .layers = layers, .step = step, .sequence = kLong});
}

// The mode of a layer is constant between these steps.
void add_boundaries(const AttentionSchedule& schedule, std::set<std::int64_t>& steps) {
  for (const AttentionRule& rule : schedule.rules) {
    steps.insert(rule.begin_step);
    steps.insert(rule.end_step);
  }
}

}  // namespace

bool uses_moba(const AttentionSchedule& schedule, std::int64_t layer, std::int64_t layers) {
  return std::any_of(schedule.rules.begin(), schedule.rules.end(), [&](const AttentionRule& rule) {
    return mode_of(schedule, layer, layers, rule.begin_step).moba.has_value();
  });
}

std::optional<AttentionDifference> difference_from(
    const AttentionSchedule& before,
    const AttentionSchedule& now,
    std::int64_t layers,
    std::int64_t step) {
  std::set<std::int64_t> steps{step};
  add_boundaries(before, steps);
  add_boundaries(now, steps);
  for (auto at = steps.find(step); at != steps.end(); ++at) {
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      const AttentionMode then = mode_of(before, layer, layers, *at);
      const AttentionMode mode = mode_of(now, layer, layers, *at);
      if (!same_attention(then, mode)) {
        return AttentionDifference{layer, *at, then, mode};
      }
    }
  }
  return std::nullopt;
}

}  // namespace muster::agent
