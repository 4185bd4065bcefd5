// SPDX-License-Identifier: Apache-2.0
// Adam and AdamW: two states.
#include "kernels/update/cpu/simd/rule_loop.h"

namespace muster::kernels::MUSTER_SIMD_ISA {

namespace {

// Written as moves towards the new value: 1 - beta2 and 1 - lr * decay, rounded to floats close to
// 1, would be wrong by up to 3e-8 of 1e-3 or 1e-5, in the same direction at every step.
template <bool kCoupled>
struct AdamRule {
  static constexpr bool kParameter = true;
  static constexpr bool kDirection = false;
  static constexpr bool kCountsTiny = true;

  explicit AdamRule(const UpdateScalars& f)
      : gradient_scale(broadcast<Floats>(f.gradient_scale)),
        decay(broadcast<Floats>(kCoupled ? f.coupled_decay : f.decay_rate)),
        momentum_rate(broadcast<Floats>(f.momentum_rate)),
        second_rate(broadcast<Floats>(f.second_rate)),
        step_size(broadcast<Floats>(f.learning_rate)),
        inverse_correction2(broadcast<Floats>(f.inverse_correction2)),
        epsilon(broadcast<Floats>(f.epsilon)),
        staleness_floor(broadcast<Floats>(f.staleness_floor)),
        tiny(broadcast<Floats>(f.tiny)) {}

  template <bool kStatistics>
  MUSTER_INLINE void update(UpdatePack& x, PartialSums& sums) const {
    const auto plain_g = x.g * gradient_scale;
    const auto g = kCoupled ? fused(decay, x.p, plain_g) : plain_g;
    const auto before = x.v;
    x.m = fused(momentum_rate, g - x.m, x.m);
    x.v = fused(second_rate, g * g - x.v, x.v);
    const auto corrected = x.v * inverse_correction2;
    const auto root = square_root(corrected);
    // Where v is 0 nothing moves: with epsilon 0 it would be 0 / 0, and m / epsilon is a blow-up
    // where g^2 is too small for a float and g is not.
    const auto step = where_nonzero(x.v, step_size * x.m / (root + epsilon));
    x.p = kCoupled ? x.p - step : x.p - fused(decay, x.p, step);
    if constexpr (kStatistics) {
      sums.add_update(step);
      sums.add_parameter(x.p);
      sums.add_momentum(x.m, plain_g);
      sums.add_second(before, x.v);
      sums.add_staleness(g * g, corrected, staleness_floor, root, tiny);
    }
  }

  Floats gradient_scale;
  Floats decay;
  Floats momentum_rate;
  Floats second_rate;
  Floats step_size;
  Floats inverse_correction2;
  Floats epsilon;
  Floats staleness_floor;
  Floats tiny;
};

template <typename Rule>
void run_adam(
    const UpdateTensors& t,
    const UpdateStep& step,
    const UpdateScalars& scalars,
    UpdateStatistics& result) {
  with_state<true>(t.first, [&](auto first) {
    with_state<false>(t.second, [&](auto second) {
      run_update<Rule, typename decltype(first)::Type, typename decltype(second)::Type>(
          {t, step, scalars, nullptr}, result);
    });
  });
}

}  // namespace

void adam_rule(
    const UpdateTensors& t,
    const UpdateStep& step,
    const UpdateScalars& scalars,
    UpdateStatistics& result) {
  if (scalars.coupled) {
    run_adam<AdamRule<true>>(t, step, scalars, result);
  } else {
    run_adam<AdamRule<false>>(t, step, scalars, result);
  }
}

}  // namespace muster::kernels::MUSTER_SIMD_ISA
