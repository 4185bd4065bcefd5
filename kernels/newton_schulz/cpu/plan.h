// SPDX-License-Identifier: Apache-2.0
// Decisions of Newton-Schulz before it sees a matrix: where the Gram form forms X again, which form
// is fastest, how large a right result can be.
#pragma once

#include <muster/kernels/newton_schulz.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace muster::kernels {

struct NewtonSchulzPlan {
  std::vector<NewtonSchulzStep> coefficients;
  DType precision{DType::kFloat32};
  // In bf16 the Gram form rounds the small matrices in the last so many steps of a stretch only: an
  // error of an earlier one is multiplied too often (docs/concepts/kernels.md has what that costs
  // and saves).
  int rounded_steps{2};
  // And no product of the first so many steps in any form: what the remaining steps make of noise
  // in a direction where X is 0 would be as large as the result.
  int exact_steps{0};
  NewtonSchulzForm form{NewtonSchulzForm::kSymmetric};
  std::vector<int> restarts;  // of the Gram form, ascending, each in [1, steps)
  bool diagnostics{true};
  // envelope[k] = largest |sigma| after k steps of any sigma in [0, 1]; one more than steps.
  std::vector<double> envelope;
};

[[nodiscard]] NewtonSchulzPlan plan_newton_schulz(
    std::int64_t rows, std::int64_t cols, const NewtonSchulzOptions& options);

// The largest condition number that Q of the Gram form reaches on any stretch between restarts,
// where R has, besides its eigenvalues sigma^2 in [0, 1], a false one of -perturbation at the start
// of every stretch (the metric of Zhang, Amsel, Chen, Dao 2026).
[[nodiscard]] double gram_condition(
    std::span<const NewtonSchulzStep> coefficients,
    std::span<const int> restarts,
    double perturbation);

// Rounding gives R false eigenvalues below 0, and a step multiplies those by a^2 and more.
[[nodiscard]] double gram_perturbation(DType precision);

// The fewest restarts, at the best places, that keep gram_condition in the bounds of a precision.
[[nodiscard]] std::vector<int> place_restarts(
    std::span<const NewtonSchulzStep> coefficients, DType precision);

[[nodiscard]] std::vector<double> newton_schulz_envelope(
    std::span<const NewtonSchulzStep> coefficients);

// Whether products with X, and those between matrices of the short side, round their operands: of
// the stretch that begins after `begin` steps and of its step `step` (0-based).
[[nodiscard]] bool rounds_wide(const NewtonSchulzPlan& plan, std::size_t begin);
[[nodiscard]] bool rounds_small(
    const NewtonSchulzPlan& plan, std::size_t begin, std::size_t step, std::size_t end);

// The stretches between restarts as [begin, end); every step is one in the direct forms.
[[nodiscard]] std::vector<std::array<std::size_t, 2>> stretches_of(const NewtonSchulzPlan& plan);

// Estimated seconds on one thread.
[[nodiscard]] double newton_schulz_seconds(
    const NewtonSchulzPlan& plan, std::int64_t rows, std::int64_t cols);

}  // namespace muster::kernels
