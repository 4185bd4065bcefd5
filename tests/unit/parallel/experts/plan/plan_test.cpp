// SPDX-License-Identifier: Apache-2.0
// Golden plans, adversaries, and what a planner refuses.
#include "tests/unit/parallel/experts/plan/case.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace muster::parallel::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

EpShape shape_of(int ranks, int experts, int top_k, std::int64_t tokens_max) {
  EpShape shape;
  shape.ranks = ranks;
  shape.experts = experts;
  shape.top_k = top_k;
  shape.tokens_max = tokens_max;
  return shape;
}

// One choice per token, rank 0's first.
Choices expand(const EpShape& shape, const std::vector<std::int32_t>& counts) {
  Choices choices(at(shape.ranks));
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const std::size_t rank = i / at(shape.experts);
    const auto expert = static_cast<std::int32_t>(i % at(shape.experts));
    choices[rank].insert(choices[rank].end(), at(counts[i]), expert);
  }
  return choices;
}

TEST(Plan, OneHotExpertIsSharedByItsHomeAndASlot) {
  const EpShape shape = shape_of(2, 2, 1, 4);
  EpPlan plan = plan_of(shape, {}, {{0, 0, 0, 0}, {0, 0, 0, 0}}, 1);
  EXPECT_THAT(plan.rows, ElementsAre(4, 0, 4, 0));
  EXPECT_THAT(plan.groups, ElementsAre(0, -1, 2, 1));
  EXPECT_THAT(plan.slot_experts, ElementsAre(-1, 0));
  EXPECT_THAT(plan.begins, ElementsAre(0, 4, 4, 0, 0, 0));
  EXPECT_THAT(plan.ends, ElementsAre(4, 4, 4, 0, 0, 4));
  EXPECT_EQ(plan.receive_rows, 4);
  EXPECT_THAT(plan.destinations, ElementsAre(4, 5, 6, 7));
  EXPECT_EQ(plan.statistics.copies, 1);
  EXPECT_EQ(plan.statistics.rank_imbalance, 2);
  EXPECT_EQ(plan.statistics.rank_imbalance_after, 1);
  EXPECT_EQ(plan.statistics.max_violation, 1);
}

// Loads 6, 6, 0 with capacity 4: rank 0 fills rank 2 alone, falls to 2, and is filled by rank 1.
TEST(Plan, AHomeThatGaveTooMuchBecomesAReceiver) {
  const EpShape shape = shape_of(3, 3, 1, 4);
  const EpPlan plan = plan_of(shape, {}, {{0, 0, 0, 0}, {0, 0, 1, 1}, {1, 1, 1, 1}});
  EXPECT_THAT(plan.rows, ElementsAre(2, 2, 0, 0, 4, 0, 4, 0, 0));
  EXPECT_THAT(plan.slot_experts, ElementsAre(1, -1, 0));
  EXPECT_EQ(plan.statistics.quota_steps, 2);
  EXPECT_EQ(plan.statistics.rows_moved, 6);
  EXPECT_EQ(plan.statistics.surplus, 4);
}

// Two experts of rank 0 with 5 and 3 rows, two ranks short of 3 and 1: the largest quota takes from
// the largest expert, and of experts with 3 left each the lower.
TEST(Plan, QuotasTakeFromTheExpertWithMostRowsLeft) {
  const EpShape shape = shape_of(3, 6, 1, 4);
  const EpPlan plan = plan_of(shape, {}, {{0, 0, 0, 0}, {0, 1, 1, 1}, {2, 4, 4, 4}});
  EXPECT_THAT(plan.rows, ElementsAre(2, 2, 0, 0, 0, 0, 3, 0, 1, 0, 0, 0, 0, 1, 0, 0, 3, 0));
}

TEST(Plan, RowsOfATokenAtTheSameRankAreSentOnce) {
  const EpShape shape = shape_of(2, 4, 3, 2);
  // Rank 1's own experts are 2 and 3; token 0 chooses expert 2 twice.
  const EpPlan plan = plan_of(shape, {}, {{2, 0, 2, 3, 1, 0}, {0, 1, 2, 3, 3, 1}}, 0);
  ASSERT_EQ(plan.statistics.rows_moved, 0);
  // Rank 0: expert 0 in rows 0-2, expert 1 in 3-5. Rank 1: expert 2 in rows 0-2, 3 in 3-5.
  const std::int64_t other = plan.receive_rows;
  EXPECT_THAT(plan.destinations, ElementsAre(other, 0, -(other + 1) - 1, other + 3, 3, -1 - 1));
}

TEST(Plan, WithoutBalancingEveryRowStaysAtHome) {
  EpShape shape = shape_of(2, 4, 1, 3);
  shape.padding = 4;
  EpBalance balance;
  balance.mode = EpBalanceMode::kNone;
  const EpPlan plan = plan_of(shape, balance, {{0, 1, 1}, {0, 1, 3}});
  EXPECT_THAT(plan.rows, ElementsAre(2, 3, 0, 0, 0, 0, 0, 1));
  EXPECT_EQ(plan.statistics.copies, 0);
  EXPECT_EQ(plan.statistics.pad_rows, 2 + 1 + 3);
  EXPECT_EQ(plan.receive_rows, 12);  // all 6 rows at one rank, in two groups
  EXPECT_EQ(check_plan(plan, balance).to_string(), "ok");
}

TEST(Plan, RanksWithoutTokensAndStepsWithoutTokensHavePlans) {
  const EpShape shape = shape_of(3, 6, 2, 4);
  EpPlan plan = plan_of(shape, {}, {{}, {0, 1, 2, 3, 4, 5}, {}}, 1);
  EXPECT_EQ(check_plan(plan, {}).to_string(), "ok");
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(ep_row_count(plan, rank), 2);
  }
  plan = plan_of(shape, {}, {{}, {}, {}}, 2);
  EXPECT_EQ(check_plan(plan, {}).to_string(), "ok");
  EXPECT_EQ(plan.statistics.rank_imbalance, 1);
  EXPECT_EQ(plan.statistics.max_violation, 0);
  EXPECT_THAT(plan.destinations, ElementsAre());
}

TEST(Plan, RowsThatDoNotDivideGoToTheLowerRanks) {
  const EpShape shape = shape_of(3, 3, 1, 5);
  const EpPlan plan = plan_of(shape, {}, {{2, 2, 2}, {2, 2}, {2, 2, 2}});
  EXPECT_THAT(plan.rows, ElementsAre(0, 0, 3, 0, 0, 3, 0, 0, 2));
}

TEST(Plan, ExpertsWithoutASlotAreReadFromHome) {
  EpShape shape = shape_of(2, 6, 1, 9);
  shape.slots = 1;
  // Rank 1 gets 9 of rank 0's 18 rows: 6 of expert 0, then 3 of expert 1.
  std::vector<std::int32_t> counts{3, 3, 3, 0, 0, 0, 3, 3, 3, 0, 0, 0};
  const EpPlan plan = plan_of(shape, {}, expand(shape, counts));
  EXPECT_THAT(plan.slot_experts, ElementsAre(-1, 0));
  EXPECT_EQ(plan.groups[6], 6);  // the slot
  EXPECT_EQ(plan.groups[7], 1);  // its own id: from home
  EXPECT_EQ(plan.statistics.overflow_groups, 1);
  EXPECT_EQ(check_plan(plan, {}).to_string(), "ok");
}

// One rank gets nothing and all others the same: filling it takes ceil(m (R - 1) / R) experts.
TEST(Plan, AnEmptyRankAmongEqualOnesNeedsAlmostAllSlots) {
  for (const auto& [ranks, local] :
       {std::pair{2, 2}, {2, 5}, {3, 4}, {4, 8}, {8, 48}, {16, 56}, {5, 7}}) {
    EpShape shape = shape_of(ranks, ranks * local, 1, 0);
    const int each = ranks * ranks;  // rows of an expert from each rank: sums divide by ranks
    std::vector<std::int32_t> counts(at(ranks) * at(shape.experts), each);
    for (int rank = 0; rank < ranks; ++rank) {
      std::fill_n(counts.begin() + std::ptrdiff_t{rank} * shape.experts, local, 0);
    }
    shape.tokens_max = std::int64_t{each} * (ranks - 1) * local;
    EpPlanner planner{shape, {}};
    EpPlan plan{shape, {}};
    ASSERT_TRUE(planner.plan(counts, plan).ok());
    EXPECT_EQ(plan.statistics.copies_in_max, (local * (ranks - 1) + ranks - 1) / ranks)
        << describe(shape);
    EXPECT_EQ(check_plan(plan, {}).to_string(), "ok");
  }
}

// With B = beta m slots and x = (1 - beta) / (1 + beta) of the ranks empty, no planner gets the
// others below (1 + beta)^2 / (4 beta) capacities without reading experts from home. Ours leaves
// exactly that overflow.
TEST(Plan, FewerSlotsLeaveTheOverflowThatNoPlannerCanAvoid) {
  struct Bound {
    int ranks;
    int empty;
    int local;
    int slots;
    double least;
  };

  for (const Bound& bound :
       {Bound{6, 2, 4, 2, 1.125},
        Bound{4, 2, 6, 2, 4.0 / 3},
        Bound{10, 6, 8, 2, 1.5625},
        Bound{14, 2, 8, 6, 49.0 / 48}}) {
    EpShape shape = shape_of(bound.ranks, bound.ranks * bound.local, 1, 0);
    shape.slots = bound.slots;
    std::vector<std::int32_t> counts(at(shape.ranks) * at(shape.experts), 0);
    const int each = 60 * bound.ranks;
    for (int rank = 0; rank < shape.ranks; ++rank) {
      const auto row = counts.begin() + std::ptrdiff_t{rank} * shape.experts;
      std::fill(row + bound.empty * bound.local, row + shape.experts, each);
    }
    shape.tokens_max = std::int64_t{each} * (bound.ranks - bound.empty) * bound.local;
    EpPlanner planner{shape, {}};
    EpPlan plan{shape, {}};
    ASSERT_TRUE(planner.plan(counts, plan).ok());
    EXPECT_EQ(check_plan(plan, {}).to_string(), "ok");
    std::int64_t served = 0;  // by the empty ranks, from their slots
    for (int rank = 0; rank < bound.empty; ++rank) {
      for (int slot = 0; slot < bound.slots; ++slot) {
        served += plan.group_rows[at(rank) * at(shape.group_count()) + at(shape.experts + slot)];
      }
    }
    const auto rest = static_cast<double>(plan.statistics.rows - served);
    const auto capacity = static_cast<double>(shape.tokens_max);
    EXPECT_NEAR(rest / (bound.ranks - bound.empty) / capacity, bound.least, 1e-9)
        << describe(shape);
  }
}

// A plan in which a row's place does not fit 32 bits.
TEST(Plan, PlacesBeyondTwoToThe31AreExact) {
  EpShape shape = shape_of(64, 64, 1, std::int64_t{1} << 26);
  shape.padding = 100'003;
  EpPlanner planner{shape, {}};
  EpPlan plan{shape, {}};
  std::vector<std::int32_t> counts(64 * 64, 0);
  for (std::size_t rank = 0; rank < 63; ++rank) {
    counts[rank * 64 + 63] = 1 << 26;
  }
  counts[63 * 64 + 63] = 3;
  ASSERT_TRUE(planner.plan(counts, plan).ok());
  ASSERT_TRUE(planner.place(63, std::vector<std::int32_t>{63, 63, 63}, plan).ok());
  EXPECT_EQ(check_plan(plan, {}).to_string(), "ok");
  const std::int64_t last = (std::int64_t{63} << 26) / 64;  // rank 63's rows are the last three
  EXPECT_THAT(
      plan.destinations,
      ElementsAre(
          63 * plan.receive_rows + last - 3,
          63 * plan.receive_rows + last - 2,
          63 * plan.receive_rows + last - 1));
}

TEST(Plan, ALargePlanKeepsItsHash) {
  EpShape shape = shape_of(8, 384, 8, 8192);
  shape.padding = 128;
  std::vector<std::int32_t> counts(8 * 384);
  for (int rank = 0; rank < 8; ++rank) {
    std::int32_t* const row = counts.data() + std::ptrdiff_t{rank} * 384;
    for (int e = 0; e < 384; ++e) {
      row[e] = (e * 37 + rank * 11) % 97 * ((e * 5) % 13) / 8;
    }
    row[rank] += 8 - std::accumulate(row, row + 384, 0) % 8;
  }
  EpPlanner planner{shape, {}};
  EpPlan plan{shape, {}};
  ASSERT_TRUE(planner.plan(counts, plan).ok());
  EXPECT_EQ(check_plan(plan, {}).to_string(), "ok");
  // Changes with any table: a planner that breaks ties in another way would not agree with peers.
  EXPECT_EQ(plan.hash, 0x27022f36553c4141U) << std::hex << plan.hash;
}

TEST(Plan, TheHashTellsPlansApart) {
  const EpShape shape = shape_of(2, 4, 1, 4);
  const EpPlan one = plan_of(shape, {}, {{0, 1, 2, 3}, {0, 1, 2, 3}});
  const EpPlan same = plan_of(shape, {}, {{3, 1, 2, 0}, {0, 1, 3, 2}});
  const EpPlan other = plan_of(shape, {}, {{0, 1, 2, 2}, {0, 1, 3, 3}});
  EpShape padded = shape;
  padded.padding = 2;
  EXPECT_EQ(one.hash, same.hash);   // the same counts
  EXPECT_NE(one.hash, other.hash);  // the same sums over ranks
  EXPECT_NE(one.hash, plan_of(padded, {}, {{0, 1, 2, 3}, {0, 1, 2, 3}}).hash);
}

TEST(Plan, TheCheckerFindsEveryTableThatIsWrong) {
  EpShape shape = shape_of(2, 4, 1, 4);
  shape.padding = 2;
  const EpPlan good = plan_of(shape, {}, {{0, 0, 0, 1}, {0, 0, 0, 1}});
  ASSERT_EQ(check_plan(good, {}).to_string(), "ok");
  const auto broken = [&](auto change) {
    EpPlan plan = good;
    change(plan);
    return check_plan(plan, {}).message();
  };
  EXPECT_THAT(broken([](EpPlan& p) { --p.counts[0]; }), HasSubstr("plan: "));
  EXPECT_THAT(broken([](EpPlan& p) { --p.rows[0]; }), HasSubstr("expert 0 has 6 rows"));
  EXPECT_THAT(
      broken([](EpPlan& p) {
        ++p.rows[0];
        --p.rows[4];
      }),
      HasSubstr("its capacity is 4"));
  EXPECT_THAT(broken([](EpPlan& p) { p.groups[4] = 0; }), HasSubstr("without a slot"));
  EXPECT_THAT(broken([](EpPlan& p) { p.slot_experts[2] = 1; }), HasSubstr("slot"));
  EXPECT_THAT(broken([](EpPlan& p) { p.ends[0] += 2; }), HasSubstr("group 0"));
  EXPECT_THAT(broken([](EpPlan& p) { ++p.statistics.copies; }), HasSubstr("statistic"));
  EXPECT_THAT(broken([](EpPlan& p) { p.hash ^= 1; }), HasSubstr("hash"));
  EXPECT_THAT(broken([](EpPlan& p) { p.destinations[1] = p.destinations[0]; }), HasSubstr("twice"));
  EXPECT_THAT(broken([](EpPlan& p) { p.destinations[0] = 7; }), HasSubstr("no row"));
}

// --- refusals
// -------------------------------------------------------------------------------------

TEST(PlanRefuses, ShapesThatCannotBe) {
  const auto message = [](auto change) {
    EpShape shape = shape_of(4, 8, 2, 16);
    EpBalance balance;
    change(shape, balance);
    const Status status = check(shape, balance);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };
  EXPECT_EQ(check(shape_of(4, 8, 2, 16), {}).to_string(), "ok");
  EXPECT_THAT(
      message([](auto& s, auto&) { s.experts = 9; }),
      HasSubstr("experts must be a multiple of the 4 ranks, at most 1048576, got 9"));
  EXPECT_THAT(message([](auto& s, auto&) { s.ranks = 129; }), HasSubstr("must be 1..128"));
  EXPECT_THAT(
      message([](auto& s, auto&) { s.top_k = 9; }), HasSubstr("must be 1..8 with 8 experts"));
  EXPECT_THAT(
      message([](auto& s, auto&) { s.tokens_max = 0; }),
      HasSubstr("tokens_max must be 1..1073741823 with top_k 2 "));
  EXPECT_THAT(
      message([](auto& s, auto&) { s.tokens_max = std::int64_t{1} << 31; }),
      HasSubstr("counted in 32 bits"));
  EXPECT_THAT(
      message([](auto& s, auto&) { s.padding = 0; }),
      HasSubstr("padding must be 1..1048576, got 0"));
  EXPECT_THAT(message([](auto& s, auto&) { s.slots = 3; }), HasSubstr("slots must be 0..2 "));
  EXPECT_THAT(
      message([](auto& s, auto&) {
        s.compact = true;
        s.slots = 1;
      }),
      HasSubstr("slots must be at least 2 in the compact layout"));
  EXPECT_THAT(message([](auto&, auto& b) { b.tolerance = -0.1; }), HasSubstr("tolerance"));
  EXPECT_THAT(
      message([](auto&, auto& b) { b.homes_max = 0; }),
      HasSubstr("homes_max must be 1..128, got 0"));
  EXPECT_THAT(
      message([](auto&, auto& b) {
        b.speeds = {1, 1};
      }),
      HasSubstr("one for each of the 4 ranks"));
  EXPECT_THAT(message([](auto&, auto& b) { b.speeds = {1, 1, -1, 1}; }), HasSubstr("speeds[2]"));
  EXPECT_THAT(message([](auto&, auto& b) { b.speeds = {0, 0, 0, 0}; }), HasSubstr("all 0"));
  EXPECT_THAT(message([](auto&, auto& b) { b.capacity_max = 0.5; }), HasSubstr("capacity_max"));
  EXPECT_THAT(
      message([](auto&, auto& b) {
        b.speeds = {1, 1, 1, 3};
        b.capacity_max = 1.5;
      }),
      HasSubstr("at least 2.03125 for these speeds, got 1.5"));
}

class PlanRefusesChoices : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(planner_.plan(count(shape_, choices_), plan_).ok());
    ASSERT_TRUE(planner_.place(1, choices_[1], plan_).ok());
    before_ = plan_.destinations;
  }

  std::string refuse(const std::vector<std::int32_t>& choices, int rank = 1) {
    const Status status = planner_.place(rank, choices, plan_);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(plan_.destinations, before_) << "written in spite of the refusal";
    EXPECT_EQ(plan_.rank, 1);
    EXPECT_EQ(plan_.tokens, 2);
    return status.message();
  }

  EpShape shape_{shape_of(2, 4, 2, 2)};
  Choices choices_{{0, 1, 2, 3}, {0, 2, 3, 1}};
  EpPlanner planner_{shape_, {}};
  EpPlan plan_{shape_, {}};
  std::vector<std::int64_t> before_;
};

TEST_F(PlanRefusesChoices, ThatNameNoExpert) {
  EXPECT_THAT(
      refuse({0, 2, 3, -1}),
      HasSubstr("rank 1, token 1, choice 1: the expert must be 0..3, got -1"));
  EXPECT_THAT(refuse({0, 4, 3, 1}), HasSubstr("token 0, choice 1: the expert must be 0..3, got 4"));
}

TEST_F(PlanRefusesChoices, ThatDoNotAgreeWithTheCounts) {
  EXPECT_THAT(
      refuse({0, 2, 2, 1}), HasSubstr("rank 1 chose expert 2 2 times, but its counts contain 1"));
}

TEST_F(PlanRefusesChoices, OfTooManyOrHalfTokens) {
  EXPECT_THAT(
      refuse({0, 2, 3}),
      HasSubstr("choices of rank 1 must be top_k 2 times at most tokens_max 2, got 3"));
  EXPECT_THAT(refuse({0, 2, 3, 1, 0, 1}), HasSubstr("at most tokens_max 2"));
  EXPECT_THAT(refuse({0, 2, 3, 1}, 2), HasSubstr("rank 2, there are 2"));
}

TEST_F(PlanRefusesChoices, AndCountsThatCannotBe) {
  const EpPlan before = plan_;
  const auto refuse_counts = [&](const std::vector<std::int32_t>& counts) {
    const Status status = planner_.plan(counts, plan_);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(plan_.hash, before.hash);
    EXPECT_EQ(plan_.rows, before.rows);
    EXPECT_EQ(plan_.counts, before.counts);
    EXPECT_EQ(plan_.destinations, before.destinations);
    return status.message();
  };
  EXPECT_THAT(
      refuse_counts({1, 1, 1, 1, 3, -1, 1, 1}),
      HasSubstr("counts of rank 1 must not be negative, got -1 rows for expert 1"));
  EXPECT_THAT(refuse_counts({1, 1, 1, 0, 1, 1, 1, 1}), HasSubstr("sum to 3, not a multiple"));
  EXPECT_THAT(refuse_counts({2, 2, 1, 1, 1, 1, 1, 1}), HasSubstr("more than tokens_max 2"));
  EXPECT_THAT(refuse_counts({1, 1, 1, 1}), HasSubstr("ranks * experts = 8"));
}

TEST_F(PlanRefusesChoices, AndAPlanOfAnotherShape) {
  EpShape other = shape_;
  other.padding = 2;
  EpPlan plan{other, {}};
  EXPECT_THAT(planner_.plan(count(shape_, choices_), plan).message(), HasSubstr("another shape"));
  EXPECT_THAT(planner_.place(0, choices_[0], plan).message(), HasSubstr("another shape"));
}

}  // namespace
}  // namespace muster::parallel::testing
