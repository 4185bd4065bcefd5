// Synthetic routing with a wanted skew: for drills, benchmarks and tests of expert parallelism.
//
// Experts have lognormal popularities exp(sigma z_e); every token draws top_k different experts in
// proportion to them. sigma is found by bisection so that the expected load has the wanted maxvio.
#pragma once

#include <muster/common/expected.h>

#include <cstdint>
#include <span>
#include <vector>

namespace muster::parallel {

// A function of its arguments: equal on all ranks that give the same. Thread-safety: const calls
// only.
class SkewedRouting {
 public:
  // maxvio = max_e T_e / mean T - 1, at most experts / top_k - 1 (all tokens choose the same ones);
  // kInvalidArgument naming the bound when it is not between 0 and that.
  [[nodiscard]] static Expected<SkewedRouting> create(
      int experts, int top_k, double maxvio, std::uint64_t seed);

  // choices [tokens, top_k], in the order of the draw; a function of the seed, `stream` (say the
  // rank) and `index` (say the step).
  void draw(std::uint64_t stream, std::uint64_t index, std::span<std::int32_t> choices) const;

  [[nodiscard]] double sigma() const { return sigma_; }

 private:
  SkewedRouting() = default;

  [[nodiscard]] double maxvio_at(double sigma) const;
  void set_sigma(double sigma);

  int experts_{0};
  int top_k_{0};
  std::uint64_t seed_{0};
  double sigma_{0};
  std::vector<double> normal_;          // z_e
  std::vector<double> log_popularity_;  // sigma z_e
};

// Gates of drawn experts: their scores, to sum 1 for each token; equal where all of them have
// underflowed, as those of experts that a sure router would never take. A NaN stays one. scores
// [tokens, experts], choices and gates [tokens, top_k].
void gates_of_drawn(
    int top_k,
    std::span<const float> scores,
    std::span<const std::int32_t> choices,
    std::span<float> gates);

}  // namespace muster::parallel
