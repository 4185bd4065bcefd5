// The arithmetic of the optimizers: update rules, statistics, Newton-Schulz (source: Keller
// Jordan).
#pragma once

#include <muster/kernels/statistics.h>
#include <muster/kernels/update_kernels.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace muster::kernels {

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
