// SPDX-License-Identifier: Apache-2.0
// Random instances: the invariants of the proof in docs/concepts/experts.md on every one.
#include "tests/unit/parallel/experts/plan/case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace muster::parallel::testing {
namespace {

// Sanitizers run a fraction: the index arithmetic is the same in every instance.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kFraction = 40;
#else
constexpr int kFraction = 1;
#endif
constexpr int kPerRouting = 80'000 / kFraction;

EpShape draw_shape(FastRandom& random) {
  constexpr int kPaddings[]{1, 1, 2, 3, 8, 13};
  EpShape shape;
  shape.ranks = random.between(1, 16);
  const int local = random.between(1, 8);
  shape.experts = shape.ranks * local;
  shape.top_k = random.between(1, std::min(4, shape.experts));
  shape.tokens_max = random.between(1, 16);
  shape.slots = random.below(4) == 0 ? random.between(0, local) : -1;
  shape.padding = kPaddings[random.below(6)];
  shape.compact = shape.slots < 0 && random.below(4) == 0;
  return shape;
}

std::vector<int> draw_tokens(const EpShape& shape, FastRandom& random) {
  std::vector<int> tokens(at(shape.ranks));
  const bool even = random.below(2) == 0;
  for (int& of_rank : tokens) {
    of_rank = even ? static_cast<int>(shape.tokens_max)
                   : random.below(static_cast<int>(shape.tokens_max) + 1);
  }
  return tokens;
}

// Experts of `home` that other ranks compute to the last row.
std::int64_t exhausted(const EpPlan& plan) {
  std::int64_t count = 0;
  for (int e = 0; e < plan.shape.experts; ++e) {
    const int home = e / plan.shape.local_experts();
    bool elsewhere = false;
    for (int rank = 0; rank < plan.shape.ranks; ++rank) {
      elsewhere =
          elsewhere || (rank != home && plan.rows[at(rank) * at(plan.shape.experts) + at(e)] > 0);
    }
    count += elsewhere && plan.rows[at(home) * at(plan.shape.experts) + at(e)] == 0 ? 1 : 0;
  }
  return count;
}

// Every real row of every rank is the place of one choice.
void expect_all_rows_filled(EpPlanner& planner, EpPlan& plan, const Choices& choices) {
  std::vector<std::int64_t> places;
  for (int rank = 0; rank < plan.shape.ranks; ++rank) {
    ASSERT_TRUE(planner.place(rank, choices[at(rank)], plan).ok());
    for (const std::int64_t destination : plan.destinations) {
      places.push_back(destination < 0 ? -destination - 1 : destination);
    }
  }
  std::sort(places.begin(), places.end());
  std::size_t next = 0;
  for (int rank = 0; rank < plan.shape.ranks; ++rank) {
    for (int group = 0; group < plan.shape.group_count(); ++group) {
      const std::size_t i = at(rank) * at(plan.shape.group_count()) + at(group);
      for (std::int64_t row = 0; row < plan.group_rows[i]; ++row, ++next) {
        ASSERT_LT(next, places.size());
        ASSERT_EQ(places[next], rank * plan.receive_rows + plan.begins[i] + row);
      }
    }
  }
  ASSERT_EQ(next, places.size());
}

class PlanFuzz : public ::testing::TestWithParam<Routing> {};

TEST_P(PlanFuzz, ExactPlansKeepEveryInvariantOfTheProof) {
  constexpr std::uint64_t kSeed = 20'000;
  FastRandom random{kSeed + static_cast<std::uint64_t>(GetParam())};
  const EpBalance balance;
  double worst_movement = 0;
  for (int i = 0; i < kPerRouting; ++i) {
    const EpShape shape = draw_shape(random);
    const Choices choices = draw_choices(shape, draw_tokens(shape, random), GetParam(), random);
    ASSERT_TRUE(check(shape, balance).ok()) << describe(shape);
    EpPlanner planner{shape, balance};
    EpPlan plan{shape, balance};
    const Status planned = planner.plan(count(shape, choices), plan);
    ASSERT_EQ(planned.to_string(), "ok") << describe(shape) << ", instance " << i;
    const EpPlanStatistics& seen = plan.statistics;
    ASSERT_LE(seen.quota_steps, shape.ranks - 1) << describe(shape) << ", instance " << i;
    ASSERT_LE(seen.copies + seen.overflow_groups, seen.quota_steps + exhausted(plan))
        << describe(shape) << ", instance " << i;
    if (seen.surplus > 0) {
      worst_movement = std::max(
          worst_movement, static_cast<double>(seen.rows_moved) / static_cast<double>(seen.surplus));
    }
    if (i % 8 == 0) {
      ASSERT_NO_FATAL_FAILURE(expect_all_rows_filled(planner, plan, choices))
          << describe(shape) << ", instance " << i;
    }
    const Status checked = check_plan(plan, balance);
    ASSERT_EQ(checked.to_string(), "ok") << describe(shape) << ", instance " << i;
  }
  std::printf(
      "seed %d, %d instances: moved rows over surplus at most %.2f\n",
      static_cast<int>(kSeed),
      kPerRouting,
      worst_movement);
  // No bound is known; more than this would be news.
  EXPECT_LE(worst_movement, 5);
}

INSTANTIATE_TEST_SUITE_P(Routings, PlanFuzz, ::testing::ValuesIn(kRoutings));

// Number of plans with these speeds that need more than one home.
double refused_share(double slowest, double fastest, int homes_max, int instances) {
  FastRandom random{777};
  int refused = 0;
  for (int i = 0; i < instances; ++i) {
    EpShape shape = draw_shape(random);
    shape.compact = false;
    shape.slots = -1;
    EpBalance balance;
    balance.homes_max = homes_max;
    for (int rank = 0; rank < shape.ranks; ++rank) {
      balance.speeds.push_back(slowest + (fastest - slowest) * random.uniform());
    }
    const Choices choices =
        draw_choices(shape, draw_tokens(shape, random), kRoutings[i % 5], random);
    EXPECT_EQ(check(shape, balance).to_string(), "ok") << describe(shape);
    EpPlanner planner{shape, balance};
    EpPlan plan{shape, balance};
    const Status status = planner.plan(count(shape, choices), plan);
    if (status.code() == StatusCode::kFailedPrecondition) {
      EXPECT_NE(status.message().find("raise homes_max"), std::string::npos) << status.message();
      ++refused;
      continue;
    }
    EXPECT_EQ(status.to_string(), "ok") << describe(shape) << ", instance " << i;
    EXPECT_EQ(check_plan(plan, balance).to_string(), "ok") << describe(shape) << ", instance " << i;
  }
  const double share = static_cast<double>(refused) / instances;
  std::printf(
      "speeds %.2f..%.2f, %d homes: %d of %d refused\n",
      slowest,
      fastest,
      homes_max,
      refused,
      instances);
  return share;
}

TEST(PlanSpeeds, WithinTenPercentNeverNeedASecondHome) {
  EXPECT_EQ(refused_share(0.9, 1.1, 1, 20'000 / kFraction), 0);
}

TEST(PlanSpeeds, BetweenHalfAndOneAndAHalfRarelyNeedASecondHome) {
  // Three of 20,000; of a fraction it may be one.
  EXPECT_LT(refused_share(0.5, 1.5, 1, 20'000 / kFraction), kFraction == 1 ? 0.001 : 0.01);
  EXPECT_EQ(refused_share(0.5, 1.5, 2, 20'000 / kFraction), 0);
}

TEST(PlanSpeeds, DownToZeroNeedAFewHomes) {
  EXPECT_LT(refused_share(0, 1, 1, 5'000 / kFraction), 0.2);
  EXPECT_EQ(refused_share(0, 1, 15, 5'000 / kFraction), 0);
}

TEST(PlanTolerance, PlansStayWithinTheTolerance) {
  FastRandom random{31};
  for (int i = 0; i < 20'000 / kFraction; ++i) {
    const EpShape shape = draw_shape(random);
    EpBalance balance;
    balance.mode = EpBalanceMode::kTolerant;
    balance.tolerance = 0.25 * random.uniform();
    const Choices choices =
        draw_choices(shape, draw_tokens(shape, random), kRoutings[i % 5], random);
    EpPlanner planner{shape, balance};
    EpPlan plan{shape, balance};
    ASSERT_EQ(planner.plan(count(shape, choices), plan).to_string(), "ok") << describe(shape);
    ASSERT_EQ(check_plan(plan, balance).to_string(), "ok") << describe(shape) << ", instance " << i;
  }
}

}  // namespace
}  // namespace muster::parallel::testing
