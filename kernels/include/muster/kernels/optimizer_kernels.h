// The arithmetic of the optimizers: fused AdamW, Newton-Schulz, fused statistics. fp32 storage,
// double accumulators. Sources: torch.optim.AdamW's order; Keller Jordan's Newton-Schulz.
#pragma once

#include <muster/kernels/statistics.h>
#include <muster/kernels/update_kernels.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace muster::kernels {

struct AdamWStep {
  double learning_rate{0};
  double beta1{0.9};
  double beta2{0.999};
  double epsilon{1e-8};
  double weight_decay{0};
  double gradient_scale{1};  // multiplies the gradient first (token normalisation times clip)
  std::int64_t step{1};      // 1-based, for bias correction
};

// p <- p(1 - lr*wd); m <- b1 m + (1-b1) g; v <- b2 v + (1-b2) g^2;
// p <- p - lr * (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + eps). All spans of equal length, 4 loads and
// 3 stores per element in one pass. The result for an element does not depend on its place in the
// span, so shards can be cut anywhere. A zero denominator (eps 0 and no gradient yet) moves
// nothing.
[[nodiscard]] UpdateStatistics adamw_update(
    std::span<float> parameter,
    std::span<const float> gradient,
    std::span<float> m,
    std::span<float> v,
    const AdamWStep& step);

// X <- aX + bAX + cA^2X with A = XX^T, coefficients[i] = {a, b, c} of step i. x[rows, cols] is
// normalised by its Frobenius norm (summed in double) in fp32 first and worked on with the short
// side first. A zero matrix stays zero, a non-finite element makes every element NaN. Overwrites x.
// `workspace` grows as needed and can be reused.
void newton_schulz(
    std::span<float> x,
    std::int64_t rows,
    std::int64_t cols,
    std::span<const std::array<double, 3>> coefficients,
    std::vector<float>& workspace);

// Multiply-adds * 2 of newton_schulz: what the layout packs by.
[[nodiscard]] double newton_schulz_flops(std::int64_t rows, std::int64_t cols, int steps);

}  // namespace muster::kernels
