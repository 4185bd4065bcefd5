// SPDX-License-Identifier: Apache-2.0
// The exact plan against the definition of docs/concepts/experts.md, on every small instance and on
// golden ones.
#include "tests/unit/parallel/experts/plan/case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace muster::parallel::testing {
namespace {

void expect_reference(const EpShape& shape, const EpPlan& plan, const ReferencePlan& reference) {
  EXPECT_EQ(plan.statistics.quota_steps, reference.steps);
  for (int rank = 0; rank < shape.ranks; ++rank) {
    const auto of_rank = [rank](const auto& table, std::int64_t width) {
      const auto first = table.begin() + rank * width;
      return std::vector(first, first + width);
    };
    ASSERT_EQ(of_rank(plan.rows, shape.experts), reference.rows[at(rank)]) << "rank " << rank;
    ASSERT_EQ(of_rank(plan.ends, shape.group_count()), reference.ends[at(rank)]) << "rank " << rank;
    std::vector<int> slots = of_rank(plan.slot_experts, shape.slot_count());
    slots.erase(std::remove(slots.begin(), slots.end(), -1), slots.end());
    ASSERT_EQ(slots, reference.slots[at(rank)]) << "rank " << rank;
  }
}

// Tables and destinations of all ranks; together they fill every real row once.
void expect_whole_plan(const EpShape& shape, const Choices& choices) {
  SCOPED_TRACE(describe(shape));
  const EpBalance balance;
  ASSERT_TRUE(check(shape, balance).ok());
  EpPlanner planner{shape, balance};
  EpPlan plan{shape, balance};
  ASSERT_TRUE(planner.plan(count(shape, choices), plan).ok());
  const ReferencePlan reference = reference_plan(shape, choices, plan.receive_rows);
  ASSERT_NO_FATAL_FAILURE(expect_reference(shape, plan, reference));
  std::vector<std::int64_t> places;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    ASSERT_TRUE(planner.place(rank, choices[at(rank)], plan).ok());
    ASSERT_EQ(plan.destinations, reference.places[at(rank)]) << "rank " << rank;
    ASSERT_EQ(check_plan(plan, balance).to_string(), "ok");
    for (const std::int64_t destination : plan.destinations) {
      places.push_back(destination < 0 ? -destination - 1 : destination);
    }
  }
  std::vector<std::int64_t> real;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    for (int group = 0; group < shape.group_count(); ++group) {
      const std::size_t i = at(rank) * at(shape.group_count()) + at(group);
      for (std::int64_t row = 0; row < plan.group_rows[i]; ++row) {
        real.push_back(rank * plan.receive_rows + plan.begins[i] + row);
      }
    }
  }
  std::sort(places.begin(), places.end());
  ASSERT_EQ(places, real);
}

// Every way to give `tokens` tokens of one choice to the ranks and experts.
void every_choice(const EpShape& shape, int tokens) {
  const int cells = shape.ranks * shape.experts;
  std::vector<int> cell(at(tokens), 0);
  while (true) {
    Choices choices(at(shape.ranks));
    for (const int one : cell) {
      choices[at(one / shape.experts)].push_back(one % shape.experts);
    }
    ASSERT_NO_FATAL_FAILURE(expect_whole_plan(shape, choices));
    // The next multiset: ascending cells.
    int last = tokens - 1;
    while (last >= 0 && cell[at(last)] == cells - 1) {
      --last;
    }
    if (last < 0) {
      return;
    }
    const int value = cell[at(last)] + 1;
    std::fill(cell.begin() + last, cell.end(), value);
  }
}

TEST(PlanExact, EverySmallInstanceIsThePlanOfTheDefinition) {
  struct Size {
    int ranks;
    int local_experts;
    int tokens;
  };

  // All multisets of (rank, expert) while they are fewer than some 10,000 each.
  for (const Size& size :
       {Size{1, 1, 8},
        Size{1, 2, 8},
        Size{2, 1, 8},
        Size{2, 2, 5},
        Size{3, 1, 6},
        Size{3, 2, 3},
        Size{4, 1, 4},
        Size{4, 2, 3}}) {
    for (int tokens = 1; tokens <= size.tokens; ++tokens) {
      EpShape shape;
      shape.ranks = size.ranks;
      shape.experts = size.ranks * size.local_experts;
      shape.top_k = 1;
      shape.tokens_max = tokens;
      shape.padding = 1 + tokens % 3;
      shape.compact = tokens % 2 == 1;
      ASSERT_NO_FATAL_FAILURE(every_choice(shape, tokens));
    }
  }
}

// Every histogram of `tokens` tokens over the experts, the tokens dealt to ranks in turn.
void every_histogram(const EpShape& shape, int tokens) {
  std::vector<int> expert(at(tokens), 0);
  while (true) {
    Choices choices(at(shape.ranks));
    for (std::size_t i = 0; i < expert.size(); ++i) {
      choices[i % at(shape.ranks)].push_back(expert[i]);
    }
    ASSERT_NO_FATAL_FAILURE(expect_whole_plan(shape, choices));
    int last = tokens - 1;
    while (last >= 0 && expert[at(last)] == shape.experts - 1) {
      --last;
    }
    if (last < 0) {
      return;
    }
    std::fill(expert.begin() + last, expert.end(), expert[at(last)] + 1);
  }
}

TEST(PlanExact, EveryHistogramOfUpToEightTokensIsThePlanOfTheDefinition) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (int local = 1; local <= 2; ++local) {
      for (int tokens = 1; tokens <= (ranks * local == 8 ? 7 : 8); ++tokens) {
        EpShape shape;
        shape.ranks = ranks;
        shape.experts = ranks * local;
        shape.top_k = 1;
        shape.tokens_max = 8;
        shape.slots = tokens % (local + 1);
        ASSERT_NO_FATAL_FAILURE(every_histogram(shape, tokens));
      }
    }
  }
}

TEST(PlanExact, LargerInstancesOfEveryRoutingAreThePlanOfTheDefinition) {
  FastRandom random{17};
  for (int i = 0; i < 400; ++i) {
    EpShape shape;
    shape.ranks = random.between(1, 9);
    shape.experts = shape.ranks * random.between(1, 6);
    shape.top_k = random.between(1, std::min(4, shape.experts));
    shape.tokens_max = 20;
    shape.slots = random.between(-1, shape.local_experts());
    shape.padding = random.between(1, 9);
    shape.compact = shape.slots < 0 && i % 2 == 0;
    std::vector<int> tokens(at(shape.ranks));
    std::generate(tokens.begin(), tokens.end(), [&] { return random.below(21); });
    ASSERT_NO_FATAL_FAILURE(
        expect_whole_plan(shape, draw_choices(shape, tokens, kRoutings[i % 5], random)));
  }
}

}  // namespace
}  // namespace muster::parallel::testing
