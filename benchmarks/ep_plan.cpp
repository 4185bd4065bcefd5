// SPDX-License-Identifier: Apache-2.0
// Claim: the expert planner at 8 ranks, 384 experts, 8 choices of 8192 tokens per rank.
//   claim ep_plan_us_r8_e384
//       one plan on one core: count sums, quotas, tables of all ranks and their hash. Without the
//       hash, and the same at 16 ranks and 896 experts, above it; so is placing one rank's rows.
// Method: 16 layers' counts of a skew, drawn once from a lognormal popularity of experts, take
// turns, so that no plan finds the last one's branches; a figure is the mean over a round's plans
// (harness.h), by processor time; the claim is that of the slowest skew.
#include "benchmarks/harness.h"
#include "parallel/src/experts/plan/work.h"

#include <muster/common/random.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace muster::bench {

namespace {

using parallel::EpBalance;
using parallel::EpPlan;
using parallel::EpPlanner;
using parallel::EpPlanWork;
using parallel::EpShape;

constexpr int kLayers = 16;
constexpr int kPlansPerRound = 128;

// [rank][token * top_k], a token's experts distinct, popularity exp(sigma * normal).
std::vector<std::vector<std::int32_t>> draw(const EpShape& shape, double sigma, Random& random) {
  std::vector<double> cumulative(static_cast<std::size_t>(shape.experts));
  double sum = 0;
  for (double& value : cumulative) {
    value = sum += std::exp(sigma * random.normal());
  }
  std::vector<std::vector<std::int32_t>> choices(static_cast<std::size_t>(shape.ranks));
  for (auto& of_rank : choices) {
    for (std::int64_t token = 0; token < shape.tokens_max; ++token) {
      const auto first = static_cast<std::ptrdiff_t>(of_rank.size());
      while (static_cast<std::ptrdiff_t>(of_rank.size()) < first + shape.top_k) {
        const auto at =
            std::upper_bound(cumulative.begin(), cumulative.end(), random.uniform() * sum);
        const auto expert = static_cast<std::int32_t>(
            std::min<std::ptrdiff_t>(at - cumulative.begin(), shape.experts - 1));
        if (std::find(of_rank.begin() + first, of_rank.end(), expert) == of_rank.end()) {
          of_rank.push_back(expert);
        }
      }
    }
  }
  return choices;
}

std::vector<std::int32_t> count(
    const EpShape& shape, const std::vector<std::vector<std::int32_t>>& choices) {
  std::vector<std::int32_t> counts(
      static_cast<std::size_t>(shape.ranks) * static_cast<std::size_t>(shape.experts), 0);
  for (std::size_t rank = 0; rank < choices.size(); ++rank) {
    for (const std::int32_t expert : choices[rank]) {
      ++counts[rank * static_cast<std::size_t>(shape.experts) + static_cast<std::size_t>(expert)];
    }
  }
  return counts;
}

// Plans of one shape and skew.
struct Planned {
  Planned(const EpShape& of, double sigma)
      : shape(of), planner(of, balance), parts(of, balance), plan(of, balance) {
    must(check(shape, balance));
    Random random{1234};
    for (int layer = 0; layer < kLayers; ++layer) {
      auto drawn = draw(shape, sigma, random);
      counts.push_back(count(shape, drawn));
      choices = std::move(drawn.back());
    }
  }

  void run_whole() {
    for (int i = 0; i < kPlansPerRound; ++i) {
      must(planner.plan(counts[static_cast<std::size_t>(i % kLayers)], plan));
    }
  }

  void run_without_hash() {
    for (int i = 0; i < kPlansPerRound; ++i) {
      const auto& layer = counts[static_cast<std::size_t>(i % kLayers)];
      must(sum_counts(parts, layer));
      must(find_quotas(parts));
      split_quotas(parts);
      write_tables(parts, layer, plan);
    }
  }

  EpShape shape;
  EpBalance balance;
  std::vector<std::vector<std::int32_t>> counts;
  std::vector<std::int32_t> choices;
  EpPlanner planner;
  EpPlanWork parts;
  EpPlan plan;
};

// Microseconds of one plan at each skew; `name` is the claim of the slowest, or empty.
void measure(const EpShape& shape, std::span<const double> sigmas, const char* name) {
  std::vector<std::unique_ptr<Planned>> skews;
  Series series(
      std::to_string(shape.ranks) + " ranks, " + std::to_string(shape.experts) + " experts",
      {.budget_s = 10, .rounds_min = 15},
      Series::Time::kThread);
  std::vector<std::size_t> whole;
  for (const double sigma : sigmas) {
    Planned& of = *skews.emplace_back(std::make_unique<Planned>(shape, sigma));
    whole.push_back(series.add("plans", [&of] { of.run_whole(); }));
    series.add("plans without hash", [&of] { of.run_without_hash(); });
    series.add(
        "place rows",
        [&of] { must(of.planner.place(of.shape.ranks - 1, of.choices, of.plan)); },
        [&of] { must(of.planner.plan(of.counts.back(), of.plan)); });
  }
  const bool is_claim = name != nullptr;
  series.add_figure(
      {.name = is_claim ? name : "slowest skew, us",
       .tolerance = 0.08,
       .is_claim = is_claim,
       .digits = 2},
      [=](std::span<const double> s) {
        double slowest = 0;
        for (const std::size_t at : whole) {
          slowest = std::max(slowest, s[at]);
        }
        return 1e6 * slowest / kPlansPerRound;
      });
  series.run();
  for (const auto& of : skews) {
    std::printf(
        "maxvio %5.2f: rank imbalance %.3f, %lld copies\n",
        of->plan.statistics.max_violation,
        of->plan.statistics.rank_imbalance,
        static_cast<long long>(of->plan.statistics.copies));
  }
  std::printf("times of %d plans. %s", kPlansPerRound, series.report().c_str());
}

}  // namespace

}  // namespace muster::bench

int main() {
  using muster::bench::measure;
  muster::parallel::EpShape shape;
  shape.ranks = 8;
  shape.experts = 384;
  shape.top_k = 8;
  shape.tokens_max = 8192;
  shape.padding = 128;
  measure(shape, std::array{0.05, 0.35, 0.8, 1.1}, "ep_plan_us_r8_e384");
  shape.ranks = 16;
  shape.experts = 896;
  shape.tokens_max = 2048;
  measure(shape, std::array{0.05, 0.8}, nullptr);
  return 0;
}
