// SPDX-License-Identifier: Apache-2.0
// Rules with one state: momentum, both halves of Muon; RMSProp; and SGD, which has none.
#include "kernels/update/cpu/simd/rule_loop.h"

namespace muster::kernels::MUSTER_SIMD_ISA {

namespace {

struct SgdRule {
  static constexpr bool kParameter = true;
  static constexpr bool kDirection = false;
  static constexpr bool kCountsTiny = false;

  explicit SgdRule(const UpdateScalars& f)
      : gradient_scale(broadcast<Floats>(f.gradient_scale)),
        decay(broadcast<Floats>(f.decay_rate)),
        step_size(broadcast<Floats>(f.learning_rate)) {}

  template <bool kStatistics>
  MUSTER_INLINE void update(UpdatePack& x, PartialSums& sums) const {
    const auto g = x.g * gradient_scale;
    const auto step = step_size * g;
    x.p = x.p - fused(decay, x.p, step);
    if constexpr (kStatistics) {
      sums.add_update(step);
      sums.add_parameter(x.p);
      sums.add_gradient(g);
    }
  }

  Floats gradient_scale;
  Floats decay;
  Floats step_size;
};

// p <- p - (decay p + step_size O): the gradient of SGD is the orthogonal matrix, no gradient.
struct MuonApplyRule : SgdRule {
  using SgdRule::SgdRule;

  template <bool kStatistics>
  MUSTER_INLINE void update(UpdatePack& x, PartialSums& sums) const {
    const auto step = step_size * x.g;
    x.p = x.p - fused(decay, x.p, step);
    if constexpr (kStatistics) {
      sums.add_update(step);
      sums.add_parameter(x.p);
    }
  }
};

template <bool kNesterov>
struct MomentumRule {
  static constexpr bool kParameter = true;
  static constexpr bool kDirection = false;
  static constexpr bool kCountsTiny = false;

  explicit MomentumRule(const UpdateScalars& f)
      : gradient_scale(broadcast<Floats>(f.gradient_scale)),
        decay(broadcast<Floats>(f.coupled_decay)),
        momentum(broadcast<Floats>(f.momentum)),
        step_size(broadcast<Floats>(f.learning_rate)) {}

  template <bool kStatistics>
  MUSTER_INLINE void update(UpdatePack& x, PartialSums& sums) const {
    const auto plain_g = x.g * gradient_scale;
    const auto g = fused(decay, x.p, plain_g);
    x.m = fused(momentum, x.m, g);
    const auto step = step_size * (kNesterov ? fused(momentum, x.m, g) : x.m);
    x.p = x.p - step;
    if constexpr (kStatistics) {
      sums.add_update(step);
      sums.add_parameter(x.p);
      sums.add_momentum(x.m, plain_g);
    }
  }

  Floats gradient_scale;
  Floats decay;
  Floats momentum;
  Floats step_size;
};

template <bool kNesterov, bool kEma>
struct MuonMomentumRule {
  static constexpr bool kParameter = false;
  static constexpr bool kDirection = true;
  static constexpr bool kCountsTiny = false;

  explicit MuonMomentumRule(const UpdateScalars& f)
      : gradient_scale(broadcast<Floats>(f.gradient_scale)),
        momentum(broadcast<Floats>(f.momentum)),
        rate(broadcast<Floats>(f.momentum_rate)) {}

  template <bool kStatistics>
  MUSTER_INLINE void update(UpdatePack& x, PartialSums& sums) const {
    const auto g = x.g * gradient_scale;
    x.m = kEma ? fused(rate, g - x.m, x.m) : fused(momentum, x.m, g);
    if constexpr (kNesterov) {
      x.out = kEma ? fused(rate, g - x.m, x.m) : fused(momentum, x.m, g);
    } else {
      x.out = x.m;
    }
    if constexpr (kStatistics) {
      sums.add_momentum(x.m, g);
    }
  }

  Floats gradient_scale;
  Floats momentum;
  Floats rate;
};

struct RmsPropRule {
  static constexpr bool kParameter = true;
  static constexpr bool kDirection = false;
  static constexpr bool kCountsTiny = true;

  explicit RmsPropRule(const UpdateScalars& f)
      : gradient_scale(broadcast<Floats>(f.gradient_scale)),
        decay(broadcast<Floats>(f.coupled_decay)),
        second_rate(broadcast<Floats>(f.second_rate)),
        step_size(broadcast<Floats>(f.learning_rate)),
        epsilon(broadcast<Floats>(f.epsilon)),
        staleness_floor(broadcast<Floats>(f.staleness_floor)),
        tiny(broadcast<Floats>(f.tiny)) {}

  template <bool kStatistics>
  MUSTER_INLINE void update(UpdatePack& x, PartialSums& sums) const {
    const auto plain_g = x.g * gradient_scale;
    const auto g = fused(decay, x.p, plain_g);
    const auto before = x.v;
    x.v = fused(second_rate, g * g - x.v, x.v);
    const auto root = square_root(x.v);
    const auto step = where_nonzero(x.v, step_size * (g / (root + epsilon)));
    x.p = x.p - step;
    if constexpr (kStatistics) {
      sums.add_update(step);
      sums.add_parameter(x.p);
      sums.add_gradient(plain_g);
      sums.add_second(before, x.v);
      sums.add_staleness(g * g, x.v, staleness_floor, root, tiny);
    }
  }

  Floats gradient_scale;
  Floats decay;
  Floats second_rate;
  Floats step_size;
  Floats epsilon;
  Floats staleness_floor;
  Floats tiny;
};

template <typename Rule>
void run_momentum(
    const UpdateTensors& t,
    float* direction,
    const UpdateStep& step,
    const UpdateScalars& scalars,
    UpdateStatistics& result) {
  with_state<true>(t.first, [&](auto first) {
    run_update<Rule, typename decltype(first)::Type, NoState>(
        {t, step, scalars, direction}, result);
  });
}

}  // namespace

void sgd_rule(
    const UpdateTensors& t,
    const UpdateStep& step,
    const UpdateScalars& scalars,
    UpdateStatistics& result) {
  run_update<SgdRule, NoState, NoState>({t, step, scalars, nullptr}, result);
}

void muon_apply_rule(
    const UpdateTensors& t,
    const UpdateStep& step,
    const UpdateScalars& scalars,
    UpdateStatistics& result) {
  run_update<MuonApplyRule, NoState, NoState>({t, step, scalars, nullptr}, result);
}

void momentum_rule(
    const UpdateTensors& t,
    const UpdateStep& step,
    const UpdateScalars& scalars,
    UpdateStatistics& result) {
  if (scalars.nesterov) {
    run_momentum<MomentumRule<true>>(t, nullptr, step, scalars, result);
  } else {
    run_momentum<MomentumRule<false>>(t, nullptr, step, scalars, result);
  }
}

void muon_momentum_rule(
    const UpdateTensors& t,
    const UpdateStep& step,
    const UpdateScalars& scalars,
    float* direction,
    UpdateStatistics& result) {
  if (scalars.nesterov && scalars.ema) {
    run_momentum<MuonMomentumRule<true, true>>(t, direction, step, scalars, result);
  } else if (scalars.nesterov) {
    run_momentum<MuonMomentumRule<true, false>>(t, direction, step, scalars, result);
  } else if (scalars.ema) {
    run_momentum<MuonMomentumRule<false, true>>(t, direction, step, scalars, result);
  } else {
    run_momentum<MuonMomentumRule<false, false>>(t, direction, step, scalars, result);
  }
}

void rmsprop_rule(
    const UpdateTensors& t,
    const UpdateStep& step,
    const UpdateScalars& scalars,
    UpdateStatistics& result) {
  with_state<false>(t.second, [&](auto second) {
    run_update<RmsPropRule, NoState, typename decltype(second)::Type>(
        {t, step, scalars, nullptr}, result);
  });
}

}  // namespace muster::kernels::MUSTER_SIMD_ISA
