// SPDX-License-Identifier: Apache-2.0
// Claim: the expert planner at 8 ranks, 384 experts, 8 choices of 8192 tokens per rank.
//   claim ep_plan_us_r8_e384
//       one plan on one core: count sums, quotas, tables of all ranks and their hash. Without the
//       hash, and the same at 16 ranks and 896 experts, above it; so is placing one rank's rows.
// Method: 16 layers' counts of a skew, drawn once from a lognormal popularity of experts, take
// turns, so that no plan finds the last one's branches; a figure is the median over rounds of the
// mean over a round's plans; the claim is that of the slowest skew.
#include "parallel/src/experts/plan/work.h"

#include <muster/common/random.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <vector>

namespace muster::bench {

namespace {

using parallel::EpBalance;
using parallel::EpPlan;
using parallel::EpPlanner;
using parallel::EpPlanWork;
using parallel::EpShape;

constexpr int kLayers = 16;
constexpr int kRounds = 201;
constexpr int kPlansPerRound = 32;  // short, so that most rounds are not interrupted

double micros_of(const std::function<void()>& action) {
  const auto start = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
      .count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

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

void must(const Status& status) {
  if (!status.ok()) {
    std::fprintf(stderr, "bench_ep_plan: %s\n", status.to_string().c_str());
    std::exit(1);
  }
}

struct Figures {
  double plan_us{0};
  double unhashed_us{0};
  double place_us{0};
};

Figures measure(const EpShape& shape, double sigma) {
  const EpBalance balance;
  must(check(shape, balance));
  Random random{1234};
  std::vector<std::vector<std::int32_t>> counts;
  std::vector<std::int32_t> choices;
  for (int layer = 0; layer < kLayers; ++layer) {
    auto drawn = draw(shape, sigma, random);
    counts.push_back(count(shape, drawn));
    choices = std::move(drawn.back());
  }
  EpPlanner planner{shape, balance};
  EpPlanWork parts{shape, balance};
  EpPlan plan{shape, balance};
  std::vector<double> whole;
  std::vector<double> unhashed;
  std::vector<double> place;
  for (int round = 0; round < kRounds; ++round) {
    whole.push_back(micros_of([&] {
      for (int i = 0; i < kPlansPerRound; ++i) {
        must(planner.plan(counts[static_cast<std::size_t>(i % kLayers)], plan));
      }
    }));
    unhashed.push_back(micros_of([&] {
      for (int i = 0; i < kPlansPerRound; ++i) {
        const auto& layer = counts[static_cast<std::size_t>(i % kLayers)];
        must(sum_counts(parts, layer));
        must(find_quotas(parts));
        split_quotas(parts);
        write_tables(parts, layer, plan);
      }
    }));
    must(planner.plan(counts.back(), plan));
    place.push_back(micros_of([&] { must(planner.place(shape.ranks - 1, choices, plan)); }));
  }
  std::printf(
      "R %2d, E %3d, maxvio %5.2f: rank imbalance %.3f, %lld copies, plan %.2f us, without hash "
      "%.2f "
      "us, place %lld rows %.0f us\n",
      shape.ranks,
      shape.experts,
      plan.statistics.max_violation,
      plan.statistics.rank_imbalance,
      static_cast<long long>(plan.statistics.copies),
      median(whole) / kPlansPerRound,
      median(unhashed) / kPlansPerRound,
      static_cast<long long>(choices.size()),
      median(place));
  return {median(whole) / kPlansPerRound, median(unhashed) / kPlansPerRound, median(place)};
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
  double slowest = 0;
  for (const double sigma : {0.05, 0.35, 0.8, 1.1}) {
    slowest = std::max(slowest, measure(shape, sigma).plan_us);
  }
  muster::parallel::EpShape wide = shape;
  wide.ranks = 16;
  wide.experts = 896;
  wide.tokens_max = 2048;
  for (const double sigma : {0.05, 0.8}) {
    measure(wide, sigma);
  }
  std::printf("claim ep_plan_us_r8_e384 %.2f\n", slowest);
  return 0;
}
