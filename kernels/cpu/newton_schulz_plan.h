// What Newton-Schulz decides before it sees a matrix: where the Gram form forms X again, which form
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
  MatrixPrecision precision{MatrixPrecision::kFloat32};
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

// The fewest restarts, at the best places, that keep gram_condition in the bounds of a precision.
[[nodiscard]] std::vector<int> place_restarts(
    std::span<const NewtonSchulzStep> coefficients, MatrixPrecision precision);

[[nodiscard]] std::vector<double> newton_schulz_envelope(
    std::span<const NewtonSchulzStep> coefficients);

// Estimated seconds on one thread; `restarts` counts for the Gram form only.
[[nodiscard]] double newton_schulz_seconds(
    NewtonSchulzForm form,
    std::int64_t rows,
    std::int64_t cols,
    std::span<const NewtonSchulzStep> coefficients,
    std::span<const int> restarts,
    MatrixPrecision precision);

}  // namespace muster::kernels
