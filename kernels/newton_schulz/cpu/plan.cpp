// SPDX-License-Identifier: Apache-2.0
#include "kernels/newton_schulz/cpu/plan.h"

#include <algorithm>

namespace muster::kernels {

namespace {

// Rates of the packed products on one core of the machine that docs/concepts/kernels.md describes.
// They decide between forms, so their ratios count, and they are constants because every rank must
// decide alike.
struct Rates {
  double flops_per_second;
  double pack_seconds;  // of one element of an operand
};

constexpr Rates kFloat32Rates{110e9, 0.1e-9};
constexpr Rates kBFloat16Rates{215e9, 0.1e-9};
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

const Rates& rates_of(bool rounds) {
  return rounds ? kBFloat16Rates : kFloat32Rates;
}

// Steps after which the slope at 0 of the rest of the schedule is small enough for bf16. Rounding
// leaves about 1e-5 in directions where X is 0 (second order, docs/concepts/kernels.md).
int exact_steps_of(std::span<const NewtonSchulzStep> coefficients) {
  constexpr double kSlope = 5e3;
  double slope = 1;
  auto steps = static_cast<int>(coefficients.size());
  while (steps > 0 && slope * coefficients[static_cast<std::size_t>(steps) - 1][0] <= kSlope) {
    --steps;
    slope *= coefficients[static_cast<std::size_t>(steps)][0];
  }
  return steps;
}

NewtonSchulzPlan plan_in_form(const NewtonSchulzOptions& options, NewtonSchulzForm form) {
  NewtonSchulzPlan plan;
  plan.coefficients.assign(options.coefficients.begin(), options.coefficients.end());
  plan.precision = options.precision;
  plan.form = form;
  if (form == NewtonSchulzForm::kGram) {
    plan.restarts = place_restarts(options.coefficients, options.precision);
  }
  plan.exact_steps = exact_steps_of(options.coefficients);
  // A set that no restart makes safe (CANS, 822) has its Gram form in fp32 only.
  constexpr double kRoundable = 300;
  if (form == NewtonSchulzForm::kGram && options.precision == DType::kBFloat16 &&
      gram_condition(options.coefficients, plan.restarts, gram_perturbation(options.precision)) >
          kRoundable) {
    plan.exact_steps = static_cast<int>(options.coefficients.size());
  }
  plan.diagnostics = options.diagnostics;
  return plan;
}

NewtonSchulzPlan choose_plan(
    std::int64_t rows, std::int64_t cols, const NewtonSchulzOptions& options) {
  if (options.form != NewtonSchulzForm::kAuto) {
    return plan_in_form(options, options.form);
  }
  NewtonSchulzPlan symmetric = plan_in_form(options, NewtonSchulzForm::kSymmetric);
  NewtonSchulzPlan gram = plan_in_form(options, NewtonSchulzForm::kGram);
  const bool faster = newton_schulz_seconds(gram, rows, cols) <
                      kWorthwhile * newton_schulz_seconds(symmetric, rows, cols);
  return faster ? gram : symmetric;
}

// 2 m^3 of a product between matrices of the short side, or half.
double cubic_flops(const NewtonSchulzPlan& plan, double m) {
  const auto cubic = static_cast<double>(std::count_if(
      plan.coefficients.begin(), plan.coefficients.end(), [](const auto& s) { return s[2] == 0; }));
  return cubic * (plan.form == NewtonSchulzForm::kStandard ? 2 : 1) * m * m * m;
}

}  // namespace

bool rounds_wide(const NewtonSchulzPlan& plan, std::size_t begin) {
  return plan.precision == DType::kBFloat16 && begin >= static_cast<std::size_t>(plan.exact_steps);
}

bool rounds_small(
    const NewtonSchulzPlan& plan, std::size_t begin, std::size_t step, std::size_t end) {
  return rounds_wide(plan, begin) && end - step <= static_cast<std::size_t>(plan.rounded_steps);
}

std::vector<std::array<std::size_t, 2>> stretches_of(const NewtonSchulzPlan& plan) {
  std::vector<std::array<std::size_t, 2>> stretches;
  const std::size_t steps = plan.coefficients.size();
  std::size_t restart = 0;
  for (std::size_t begin = 0; begin < steps;) {
    std::size_t end = begin + 1;
    if (plan.form == NewtonSchulzForm::kGram) {
      end = restart < plan.restarts.size() ? static_cast<std::size_t>(plan.restarts[restart++])
                                           : steps;
    }
    stretches.push_back({begin, end});
    begin = end;
  }
  return stretches;
}

double newton_schulz_seconds(const NewtonSchulzPlan& plan, std::int64_t rows, std::int64_t cols) {
  const auto m = static_cast<double>(std::min(rows, cols));
  const auto n = static_cast<double>(std::max(rows, cols));
  const bool half = plan.form != NewtonSchulzForm::kStandard;
  double seconds = 0;
  for (const auto& [begin, end] : stretches_of(plan)) {
    const Rates& wide = rates_of(rounds_wide(plan, begin));
    seconds += product_seconds(m, m, n, half, wide) + product_seconds(m, n, m, false, wide);
    for (std::size_t step = begin; step < end; ++step) {
      // bR + cR^2 in every step; Q in all but the first, R in all but the last, twice.
      const int products = (plan.coefficients[step][2] != 0 ? 1 : 0) + (step > begin ? 1 : 0) +
                           (step + 1 < end ? 2 : 0);
      const Rates& small = rates_of(rounds_small(plan, begin, step, end));
      seconds += products * product_seconds(m, m, m, half, small);
    }
  }
  return seconds;
}

NewtonSchulzChoice choose_newton_schulz(
    std::int64_t rows, std::int64_t cols, const NewtonSchulzOptions& options) {
  const NewtonSchulzPlan plan = choose_plan(rows, cols, options);
  NewtonSchulzChoice choice;
  choice.form = plan.form;
  choice.restarts = plan.restarts;
  choice.seconds = newton_schulz_seconds(plan, rows, cols);
  choice.flops = newton_schulz_flops(
                     plan.form,
                     rows,
                     cols,
                     static_cast<int>(plan.coefficients.size()),
                     static_cast<int>(plan.restarts.size())) -
                 cubic_flops(plan, static_cast<double>(std::min(rows, cols)));
  return choice;
}

NewtonSchulzPlan plan_newton_schulz(
    std::int64_t rows, std::int64_t cols, const NewtonSchulzOptions& options) {
  NewtonSchulzPlan plan = choose_plan(rows, cols, options);
  plan.envelope = newton_schulz_envelope(options.coefficients);
  return plan;
}

}  // namespace muster::kernels
