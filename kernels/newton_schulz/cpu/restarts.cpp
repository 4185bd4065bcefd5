// SPDX-License-Identifier: Apache-2.0
// Where the Gram form forms X again, from the scalar polynomials alone.
#include "kernels/newton_schulz/cpu/plan.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace muster::kernels {

namespace {

// The result carries about this many times the rounding of its operands: 1e-4 relative in fp32.
double condition_limit(DType precision) {
  return precision == DType::kBFloat16 ? 100 : 2000;
}

// Singular values from 1e-6 to 1 by steps of 0.5 %, and 0: the polynomials bend much more slowly.
std::vector<double> grid_of_singular_values() {
  constexpr int kPerDecade = 500;
  constexpr int kDecades = 6;
  std::vector<double> grid{0};
  for (int i = -kPerDecade * kDecades; i <= 0; ++i) {
    grid.push_back(std::pow(10, static_cast<double>(i) / kPerDecade));
  }
  return grid;
}

double next_value(const NewtonSchulzStep& step, double sigma) {
  const double square = sigma * sigma;
  return sigma * (step[0] + square * (step[1] + square * step[2]));
}

// after[k][i]: grid value i after k steps.
std::vector<std::vector<double>> values_after_steps(
    std::span<const NewtonSchulzStep> coefficients) {
  std::vector<std::vector<double>> after{grid_of_singular_values()};
  for (const NewtonSchulzStep& step : coefficients) {
    std::vector<double> next(after.back().size());
    std::transform(after.back().begin(), after.back().end(), next.begin(), [&](double sigma) {
      return next_value(step, sigma);
    });
    after.push_back(std::move(next));
  }
  return after;
}

// Eigenvalues of R and Q along one stretch.
class Stretch {
 public:
  Stretch(const std::vector<double>& sigma, double perturbation)
      : r_(sigma.size()), q_(sigma.size() + 1, 1.0) {
    std::transform(sigma.begin(), sigma.end(), r_.begin(), [](double s) { return s * s; });
    r_.push_back(-perturbation);
  }

  // Condition of Q after one more step, the largest so far.
  double advance(const NewtonSchulzStep& step) {
    double largest = 0;
    double smallest = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < r_.size(); ++i) {
      const double factor = step[0] + r_[i] * (step[1] + r_[i] * step[2]);
      q_[i] *= factor;
      r_[i] *= factor * factor;
      largest = std::max(largest, std::abs(q_[i]));
      smallest = std::min(smallest, std::abs(q_[i]));
    }
    const double condition = largest / smallest;
    // A false eigenvalue that has grown past every float makes NaN of 0 * infinity.
    worst_ = std::isnan(condition) ? std::numeric_limits<double>::infinity()
                                   : std::max(worst_, condition);
    return worst_;
  }

 private:
  std::vector<double> r_;
  std::vector<double> q_;
  double worst_{1};
};

// cost[i][j]: condition of the stretch of steps i + 1 ... j.
std::vector<std::vector<double>> stretch_conditions(
    std::span<const NewtonSchulzStep> coefficients, double perturbation) {
  const std::size_t steps = coefficients.size();
  const auto after = values_after_steps(coefficients);
  std::vector<std::vector<double>> cost(steps, std::vector<double>(steps + 1, 1.0));
  for (std::size_t begin = 0; begin < steps; ++begin) {
    Stretch stretch(after[begin], perturbation);
    for (std::size_t end = begin + 1; end <= steps; ++end) {
      cost[begin][end] = stretch.advance(coefficients[end - 1]);
    }
  }
  return cost;
}

}  // namespace

// 4e-4 for bf16 (Zhang, Amsel, Chen, Dao), 1e-6 for fp32 (a few units of its rounding).
double gram_perturbation(DType precision) {
  return precision == DType::kBFloat16 ? 4e-4 : 1e-6;
}

double gram_condition(
    std::span<const NewtonSchulzStep> coefficients,
    std::span<const int> restarts,
    double perturbation) {
  const auto after = values_after_steps(coefficients);
  double worst = 1;
  std::size_t begin = 0;
  for (std::size_t stretch = 0; stretch <= restarts.size(); ++stretch) {
    const std::size_t end = stretch < restarts.size() ? static_cast<std::size_t>(restarts[stretch])
                                                      : coefficients.size();
    Stretch eigenvalues(after[begin], perturbation);
    for (std::size_t step = begin; step < end; ++step) {
      worst = std::max(worst, eigenvalues.advance(coefficients[step]));
    }
    begin = end;
  }
  return worst;
}

std::vector<int> place_restarts(std::span<const NewtonSchulzStep> coefficients, DType precision) {
  const std::size_t steps = coefficients.size();
  if (steps < 2) {
    return {};
  }
  const auto cost = stretch_conditions(coefficients, gram_perturbation(precision));
  // best[j]: smallest worst condition of the first j steps in the current number of stretches;
  // cut[k][j]: where the last of k + 1 stretches begins.
  std::vector<double> best(cost[0]);
  std::vector<std::vector<std::size_t>> cut{std::vector<std::size_t>(steps + 1, 0)};
  std::vector<double> of_count{best[steps]};
  while (of_count.back() > condition_limit(precision) && cut.size() < steps) {
    std::vector<double> next(best);
    std::vector<std::size_t> begins(cut.back());
    const std::size_t stretches = cut.size() + 1;
    std::fill(next.begin(), next.end(), std::numeric_limits<double>::infinity());
    for (std::size_t end = stretches; end <= steps; ++end) {
      for (std::size_t begin = stretches - 1; begin < end; ++begin) {
        const double worst = std::max(best[begin], cost[begin][end]);
        if (worst < next[end]) {
          next[end] = worst;
          begins[end] = begin;
        }
      }
    }
    best = next;
    cut.push_back(begins);
    of_count.push_back(best[steps]);
  }
  // Where no number of restarts is enough, the fewest that come close to the best.
  const double least = *std::min_element(of_count.begin(), of_count.end());
  const double bound = std::max(condition_limit(precision), 1.1 * least);
  const auto chosen = std::find_if(
      of_count.begin(), of_count.end(), [bound](double condition) { return condition <= bound; });
  std::vector<int> restarts;
  std::size_t end = steps;
  for (auto k = static_cast<std::size_t>(chosen - of_count.begin()); k > 0; --k) {
    end = cut[k][end];
    restarts.insert(restarts.begin(), static_cast<int>(end));
  }
  return restarts;
}

std::vector<double> newton_schulz_envelope(std::span<const NewtonSchulzStep> coefficients) {
  std::vector<double> envelope;
  for (const std::vector<double>& values : values_after_steps(coefficients)) {
    double largest = 0;
    for (const double value : values) {
      largest = std::max(largest, std::abs(value));
    }
    envelope.push_back(largest);
  }
  return envelope;
}

}  // namespace muster::kernels
