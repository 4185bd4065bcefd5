// SPDX-License-Identifier: Apache-2.0
// Clipping and loss-scale decisions, computed from reduced numbers so that every rank decides the
// same. Pure functions called by the verdict; their state is small, shared by all ranks and saved
// with every checkpoint.
#pragma once

#include <muster/common/expected.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace muster::optimizer {

// Group `group` of the routes is clipped by its own norm instead of by the global one, so that one
// tensor with a large gradient does not throttle all others.
struct GroupClip {
  std::string group;
  double clip_norm{1.0};
};

// ZClip (arXiv 2504.02507): the norm's running mean and deviation; a z-score above the threshold
// clips to mean + deviation * threshold^2 / z. The running values learn the clipped norm.
struct ZClipOptions {
  double alpha{0.97};
  double threshold{2.5};
  std::int64_t warmup_steps{25};  // applied steps that only teach the running values
};

// Adaptive gradient clipping (arXiv 2102.06171), per row of a matrix or stack, per element run of a
// vector as a whole: a unit with |g| > factor * max(|w|, epsilon) is scaled down to that bound.
struct AgcOptions {
  double factor{0.01};
  double epsilon{1e-3};
  std::vector<std::string> groups;  // an empty list clips all groups
};

struct ClippingOptions {
  std::vector<GroupClip> groups;
  std::optional<ZClipOptions> zclip;  // on the global norm, before clip_norm
  std::optional<AgcOptions> agc;
};

// Dynamic loss scaling for fp16 parameters: the trainer multiplies the loss by scale(); gradients
// are divided by it before their norm is taken.
struct LossScaleOptions {
  double initial{65536.0};
  double growth{2.0};
  double backoff{0.5};
  std::int64_t growth_interval{2000};  // clean steps before the scale grows
  int hysteresis{2};                   // overflows in a row before it shrinks
  double minimum{1.0};
  double maximum{16777216.0};
};

[[nodiscard]] Status validate(
    const ClippingOptions& clipping, std::span<const std::string> group_names);
[[nodiscard]] Status validate(const LossScaleOptions& options);

// Shared by all ranks, advanced once per decided step, part of the checkpoint.
struct GuardState {
  double zclip_mean{0};
  double zclip_variance{0};
  std::int64_t zclip_steps{0};
  double loss_scale{1};
  std::int64_t clean_steps{0};  // since the last change of the scale
  int hysteresis_left{0};

  friend bool operator==(const GuardState&, const GuardState&) = default;
};

struct ClipDecision {
  double clip_factor{1.0};  // for groups without an entry in group_clip_factors
  std::vector<double>
      group_clip_factors;  // [groups], clip_factor included; if empty, clip_factor applies to all
  double clipped_norm{0};  // norm of the whole gradient after clipping
  bool spike{false};       // ZClip saw one
};

// `group_norms` [groups]: L2 norms of the token-normalised, unscaled gradient; all finite. Global
// clip: min(1, clip_norm / (norm + 1e-6)) over the groups without a GroupClip. ZClip learns only in
// steps that are applied.
[[nodiscard]] ClipDecision decide_clipping(
    const ClippingOptions& clipping,
    double clip_norm,
    std::span<const std::string> group_names,
    std::span<const double> group_norms,
    GuardState& state);

// Initialises the state of a run with fp16 parameters. A run without any uses the default state.
void start_loss_scale(const LossScaleOptions& options, GuardState& state);

// Call after the verdict of a step; `overflow` is true if its gradients were not finite.
void update_loss_scale(const LossScaleOptions& options, bool overflow, GuardState& state);

}  // namespace muster::optimizer
