// SPDX-License-Identifier: Apache-2.0
#include "optimizer/src/rules/checks.h"

#include <muster/optimizer/guards.h>

#include <algorithm>
#include <cmath>

namespace muster::optimizer {

Status validate(const LossScaleOptions& options) {
  MUSTER_RETURN_IF_ERROR(require(
      std::isfinite(options.growth) && options.growth > 1, "loss_scale.growth must be above 1"));
  MUSTER_RETURN_IF_ERROR(
      require(options.backoff > 0 && options.backoff < 1, "loss_scale.backoff must be in (0, 1)"));
  MUSTER_RETURN_IF_ERROR(
      require(options.growth_interval >= 1, "loss_scale.growth_interval must be 1 or more"));
  MUSTER_RETURN_IF_ERROR(
      require(options.hysteresis >= 1, "loss_scale.hysteresis must be 1 or more"));
  return require(
      options.minimum > 0 && options.minimum <= options.initial &&
          options.initial <= options.maximum && std::isfinite(options.maximum),
      "loss_scale must have 0 < minimum <= initial <= maximum");
}

void start_loss_scale(const LossScaleOptions& options, GuardState& state) {
  state.loss_scale = options.initial;
  state.clean_steps = 0;
  state.hysteresis_left = options.hysteresis;
}

void update_loss_scale(const LossScaleOptions& options, bool overflow, GuardState& state) {
  if (!overflow) {
    state.hysteresis_left = options.hysteresis;
    if (++state.clean_steps >= options.growth_interval) {
      state.loss_scale = std::min(options.maximum, state.loss_scale * options.growth);
      state.clean_steps = 0;
    }
    return;
  }
  state.clean_steps = 0;
  // Once the run of overflows is long enough, every further one shrinks the scale: it is far off.
  state.hysteresis_left = std::max(0, state.hysteresis_left - 1);
  if (state.hysteresis_left == 0) {
    state.loss_scale = std::max(options.minimum, state.loss_scale * options.backoff);
  }
}

}  // namespace muster::optimizer
