// SPDX-License-Identifier: Apache-2.0
// Synthetic routing with a given skew, for drills, benchmarks and tests of expert parallelism.
//
// Experts have lognormal popularities exp(sigma z_e). Every token draws top_k different experts in
// proportion to them. Bisection finds the sigma whose expected load has the given maxvio.
#pragma once

#include <muster/common/expected.h>

#include <cstdint>
#include <span>
#include <vector>

namespace muster::parallel {

// Depends on its arguments only, so that ranks with equal arguments draw equal experts.
// Thread-safety: concurrent const calls.
class SyntheticRouting {
 public:
  // maxvio = max_e T_e / mean T - 1, at most experts / top_k - 1 (all tokens choose the same
  // experts). kInvalidArgument naming the bound if it is not between 0 and that.
  [[nodiscard]] static Expected<SyntheticRouting> create(
      int experts, int top_k, double maxvio, std::uint64_t seed);

  // Fills choices [tokens, top_k] in the order of the draw, from the seed, `stream` (such as the
  // rank) and `index` (such as the step).
  void draw(std::uint64_t stream, std::uint64_t index, std::span<std::int32_t> choices) const;

  [[nodiscard]] double sigma() const { return sigma_; }

 private:
  SyntheticRouting() = default;

  [[nodiscard]] double maxvio_at(double sigma) const;
  void set_sigma(double sigma);

  int experts_{0};
  int top_k_{0};
  std::uint64_t seed_{0};
  double sigma_{0};
  std::vector<double> normal_;          // z_e
  std::vector<double> log_popularity_;  // sigma z_e
};

// Gates of drawn experts: each token's scores, normalised to sum 1. If all of them have
// underflowed, as those of experts that a confident router would not choose, the gates are equal.
// NaN scores give NaN gates. scores [tokens, experts], choices and gates [tokens, top_k].
void synthetic_gates(
    int top_k,
    std::span<const float> scores,
    std::span<const std::int32_t> choices,
    std::span<float> gates);

}  // namespace muster::parallel
