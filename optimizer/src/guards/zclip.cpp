// SPDX-License-Identifier: Apache-2.0
#include "optimizer/src/guards/zclip.h"

#include "optimizer/src/rules/checks.h"

#include <algorithm>
#include <cmath>

namespace muster::optimizer {
namespace {

// Substitute for the deviation, as a share of the mean, when the norms did not vary at all.
constexpr double kLeastDeviation = 1e-6;

}  // namespace

Status validate(const ZClipOptions& options) {
  MUSTER_RETURN_IF_ERROR(
      require(options.alpha > 0 && options.alpha < 1, "clipping.zclip.alpha must be in (0, 1)"));
  MUSTER_RETURN_IF_ERROR(require(
      std::isfinite(options.threshold) && options.threshold > 0,
      "clipping.zclip.threshold must be above 0"));
  return require(
      options.warmup_steps >= 2,
      "clipping.zclip.warmup_steps must be 2 or more: one norm has no deviation");
}

double zclip(const ZClipOptions& options, double norm, GuardState& state, bool& spike) {
  spike = false;
  if (state.zclip_steps < options.warmup_steps) {
    const auto seen = static_cast<double>(++state.zclip_steps);
    const double before = norm - state.zclip_mean;
    state.zclip_mean += before / seen;
    state.zclip_variance += (before * (norm - state.zclip_mean) - state.zclip_variance) / seen;
    return norm;
  }
  const double deviation =
      std::max(std::sqrt(state.zclip_variance), kLeastDeviation * state.zclip_mean);
  double bounded = norm;
  // Without a deviation every norm so far was 0, which gives no bound for the next.
  if (deviation > 0 && norm - state.zclip_mean > options.threshold * deviation) {
    spike = true;
    // threshold^2 / z: the further out, the closer to the mean.
    const double z_inverse = deviation / (norm - state.zclip_mean);
    bounded = state.zclip_mean + deviation * options.threshold * options.threshold * z_inverse;
  }
  ++state.zclip_steps;
  state.zclip_mean = options.alpha * state.zclip_mean + (1 - options.alpha) * bounded;
  const double off = bounded - state.zclip_mean;
  state.zclip_variance = options.alpha * state.zclip_variance + (1 - options.alpha) * off * off;
  return bounded;
}

}  // namespace muster::optimizer
