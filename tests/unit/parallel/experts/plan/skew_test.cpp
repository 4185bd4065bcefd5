// SPDX-License-Identifier: Apache-2.0
// Plans at the size of a real layer, 8 ranks and 384 experts: what exactness and tolerance cost as
// routing gets more skewed. Experts' popularity is lognormal, exp(sigma * normal).
#include "tests/unit/parallel/experts/plan/case.h"

#include <muster/common/random.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace muster::parallel::testing {
namespace {

constexpr int kRanks = 8;
constexpr int kExperts = 384;
constexpr std::int64_t kRows = 65'536;  // of a rank: 8192 tokens of 8 choices

EpShape layer() {
  EpShape shape;
  shape.ranks = kRanks;
  shape.experts = kExperts;
  shape.top_k = 8;
  shape.tokens_max = kRows / 8;
  return shape;
}

// Counts [R, E] with the noise of independent draws; every rank has kRows.
std::vector<std::int32_t> draw_counts(double sigma, Random& random) {
  std::vector<double> popularity(kExperts);
  std::generate(
      popularity.begin(), popularity.end(), [&] { return std::exp(sigma * random.normal()); });
  const double sum = std::accumulate(popularity.begin(), popularity.end(), 0.0);
  std::vector<std::int32_t> counts;
  for (int rank = 0; rank < kRanks; ++rank) {
    std::int64_t rest = kRows;
    for (const double one : popularity) {
      const double mean = one / sum * static_cast<double>(kRows);
      const auto rows =
          std::max<std::int64_t>(0, std::llround(mean + std::sqrt(mean) * random.normal()));
      counts.push_back(static_cast<std::int32_t>(rows));
      rest -= rows;
    }
    // Spreads the remainder that the noise has left.
    for (std::size_t i = counts.size() - kExperts; rest != 0;
         i = i + 1 == counts.size() ? counts.size() - kExperts : i + 1) {
      const std::int32_t change = rest > 0 ? 1 : (counts[i] > 0 ? -1 : 0);
      counts[i] += change;
      rest -= change;
    }
  }
  return counts;
}

EpPlanStatistics statistics_of(const EpBalance& balance, const std::vector<std::int32_t>& counts) {
  EpPlanner planner{layer(), balance};
  EpPlan plan{layer(), balance};
  EXPECT_EQ(planner.plan(counts, plan).to_string(), "ok");
  EXPECT_EQ(check_plan(plan, balance).to_string(), "ok");
  return plan.statistics;
}

// The sigma whose draw has this max violation, by bisection.
double sigma_for(double max_violation) {
  double low = 0;
  double high = 4;
  for (int i = 0; i < 24; ++i) {
    const double middle = (low + high) / 2;
    Random random{1234};
    const double found = statistics_of({}, draw_counts(middle, random)).max_violation;
    (found < max_violation ? low : high) = middle;
  }
  return high;
}

TEST(PlanSkew, ExactnessCostsAboutOneCopyPerRankWhateverTheSkew) {
  for (const double target : {0.1, 0.9, 5.0, 10.0, 20.0}) {
    Random random{1234};
    const EpPlanStatistics seen = statistics_of({}, draw_counts(sigma_for(target), random));
    std::printf(
        "maxvio %5.2f: imbalance %.3f, %d copies, in %d, out %d, moved/surplus %.2f\n",
        seen.max_violation,
        seen.rank_imbalance,
        static_cast<int>(seen.copies),
        static_cast<int>(seen.copies_in_max),
        static_cast<int>(seen.copies_out_max),
        static_cast<double>(seen.rows_moved) / static_cast<double>(seen.surplus));
    EXPECT_NEAR(seen.max_violation, target, 0.2 * target + 0.05);
    EXPECT_LT(seen.rank_imbalance_after, 1.0001);
    EXPECT_GE(seen.copies, kRanks / 2);  // a rank short of rows needs one each
    EXPECT_LE(seen.copies, kRanks + 6);
    EXPECT_LE(seen.copies_in_max, 5);
    EXPECT_LE(seen.rows_moved, 2 * seen.surplus);
  }
}

// Mean copies over draws; each row less skewed and each column less tolerant needs no fewer.
TEST(PlanSkew, ToleranceSavesCopiesAndMostWhereRoutingIsAlmostEven) {
  constexpr std::array kSigmas{0.3, 0.5, 0.8, 1.2};
  constexpr std::array kTolerances{0.0, 0.01, 0.02, 0.05, 0.1};
  constexpr int kDraws = 40;
  std::array<std::array<double, kTolerances.size()>, kSigmas.size()> copies{};
  for (std::size_t s = 0; s < kSigmas.size(); ++s) {
    Random random{99};
    double imbalance = 0;
    double violation = 0;
    for (int draw = 0; draw < kDraws; ++draw) {
      const std::vector<std::int32_t> counts = draw_counts(kSigmas[s], random);
      for (std::size_t t = 0; t < kTolerances.size(); ++t) {
        EpBalance balance;
        balance.mode = kTolerances[t] > 0 ? EpBalanceMode::kTolerant : EpBalanceMode::kExact;
        balance.tolerance = kTolerances[t];
        const EpPlanStatistics seen = statistics_of(balance, counts);
        EXPECT_LE(seen.rank_imbalance_after, 1.0001 + kTolerances[t]);
        copies[s][t] += static_cast<double>(seen.copies) / kDraws;
        imbalance += seen.rank_imbalance / kDraws / kTolerances.size();
        violation += seen.max_violation / kDraws / kTolerances.size();
      }
    }
    std::printf("maxvio %5.2f, imbalance %.3f: copies", violation, imbalance);
    for (const double mean : copies[s]) {
      std::printf(" %.1f", mean);
    }
    std::printf("\n");
    EXPECT_GT(copies[s][0], kRanks - 2);
    for (std::size_t t = 1; t < kTolerances.size(); ++t) {
      EXPECT_LE(copies[s][t], copies[s][t - 1]) << "sigma " << kSigmas[s];
    }
  }
  EXPECT_LT(copies[0][3], 0.5 * copies[0][0]);  // 5 % at little skew: most copies go
  EXPECT_LT(copies[0][4], copies[3][4]);
}

}  // namespace
}  // namespace muster::parallel::testing
