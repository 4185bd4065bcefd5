#include "cpu/newton_schulz_plan.h"

#include <algorithm>

namespace muster::kernels {

namespace {

// Rates of the packed products on one core of the machine that docs/kernels.md describes. They
// decide between forms, so their ratios count, and they are constants because every rank must
// decide alike.
struct Rates {
  double flops_per_second;
  double pack_seconds;  // of one element of an operand
};

constexpr Rates kFloat32Rates{110e9, 0.25e-9};
constexpr Rates kBFloat16Rates{215e9, 0.25e-9};
constexpr double kTileSeconds = 0.05e-9;    // an element of the result, per block of the depth
constexpr double kMirrorSeconds = 0.35e-9;  // an element above the diagonal
constexpr double kDepthBlock = 256;
// Columns that a symmetric product computes beyond the diagonal, on average: half a tile.
constexpr double kBeyondDiagonal = 15;
// The symmetric form is the more accurate one: another must be this much faster.
constexpr double kWorthwhile = 0.95;

double product_seconds(double m, double n, double k, bool symmetric, const Rates& rates) {
  const double elements = symmetric ? m * (m / 2 + kBeyondDiagonal) : m * n;
  const double blocks = std::max(1.0, k / kDepthBlock);
  return 2 * elements * k / rates.flops_per_second + (m + n) * k * rates.pack_seconds +
         elements * blocks * kTileSeconds + (symmetric ? m * m / 2 * kMirrorSeconds : 0);
}

// Products of each kind.
struct Counts {
  double gram{0};       // XX^T
  double symmetric{0};  // m x m x m
  double apply{0};      // [m, m] [m, n]
};

Counts count_products(
    NewtonSchulzForm form,
    std::span<const NewtonSchulzStep> coefficients,
    std::span<const int> restarts) {
  const auto steps = static_cast<double>(coefficients.size());
  const auto quintic = static_cast<double>(std::count_if(
      coefficients.begin(), coefficients.end(), [](const auto& step) { return step[2] != 0; }));
  if (form != NewtonSchulzForm::kGram) {
    return {steps, quintic, steps};
  }
  // bR + cR^2 in every step; in all but the first of a stretch Q, in all but the last R, twice.
  const auto stretches = static_cast<double>(restarts.size()) + (steps > 0 ? 1 : 0);
  return {stretches, quintic + 3 * (steps - stretches), stretches};
}

}  // namespace

double newton_schulz_seconds(
    NewtonSchulzForm form,
    std::int64_t rows,
    std::int64_t cols,
    std::span<const NewtonSchulzStep> coefficients,
    std::span<const int> restarts,
    MatrixPrecision precision) {
  const auto m = static_cast<double>(std::min(rows, cols));
  const auto n = static_cast<double>(std::max(rows, cols));
  const bool half = form != NewtonSchulzForm::kStandard;
  const Rates& rates = precision == MatrixPrecision::kBFloat16 ? kBFloat16Rates : kFloat32Rates;
  const Counts counts = count_products(form, coefficients, restarts);
  return counts.gram * product_seconds(m, m, n, half, rates) +
         counts.symmetric * product_seconds(m, m, m, half, rates) +
         counts.apply * product_seconds(m, n, m, false, rates);
}

NewtonSchulzChoice choose_newton_schulz(
    std::int64_t rows, std::int64_t cols, const NewtonSchulzOptions& options) {
  NewtonSchulzChoice choice;
  const auto seconds = [&](NewtonSchulzForm form, std::span<const int> restarts) {
    return newton_schulz_seconds(
        form, rows, cols, options.coefficients, restarts, options.precision);
  };
  std::vector<int> restarts = place_restarts(options.coefficients, options.precision);
  choice.form = options.form;
  if (options.form == NewtonSchulzForm::kAuto) {
    const bool gram = seconds(NewtonSchulzForm::kGram, restarts) <
                      kWorthwhile * seconds(NewtonSchulzForm::kSymmetric, {});
    choice.form = gram ? NewtonSchulzForm::kGram : NewtonSchulzForm::kSymmetric;
  }
  if (choice.form == NewtonSchulzForm::kGram) {
    choice.restarts = std::move(restarts);
  }
  choice.seconds = seconds(choice.form, choice.restarts);
  choice.flops = newton_schulz_flops(
      choice.form,
      rows,
      cols,
      static_cast<int>(options.coefficients.size()),
      static_cast<int>(choice.restarts.size()));
  // Cubic steps have no A^2.
  const auto m = static_cast<double>(std::min(rows, cols));
  const auto cubic = std::count_if(
      options.coefficients.begin(), options.coefficients.end(), [](const NewtonSchulzStep& step) {
        return step[2] == 0;
      });
  choice.flops -=
      static_cast<double>(cubic) * (choice.form == NewtonSchulzForm::kStandard ? 2 : 1) * m * m * m;
  return choice;
}

NewtonSchulzPlan plan_newton_schulz(
    std::int64_t rows, std::int64_t cols, const NewtonSchulzOptions& options) {
  NewtonSchulzChoice choice = choose_newton_schulz(rows, cols, options);
  NewtonSchulzPlan plan;
  plan.coefficients.assign(options.coefficients.begin(), options.coefficients.end());
  plan.precision = options.precision;
  plan.form = choice.form;
  plan.restarts = std::move(choice.restarts);
  plan.diagnostics = options.diagnostics;
  plan.envelope = newton_schulz_envelope(options.coefficients);
  return plan;
}

}  // namespace muster::kernels
