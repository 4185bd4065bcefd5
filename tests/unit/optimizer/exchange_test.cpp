#include "src/exchange.h"

#include "model.h"
#include "src/update_matrices.h"

#include <gtest/gtest.h>

#include <map>
#include <tuple>

namespace muster::optimizer {
namespace {

RegionPlan plan_of(const Routing& routing, const OptimizerOptions& options, int ranks) {
  for (const RegionKey& key : region_keys(routing)) {
    if (key.matrices) {
      return plan_region(routing, options, key, ranks);
    }
  }
  return {};
}

class Exchange : public ::testing::TestWithParam<std::tuple<Layout, int>> {
 protected:
  void SetUp() override {
    options_ = uneven_options(std::get<0>(GetParam()));
    options_.exchange_bytes = 4096;
    ranks_ = std::get<1>(GetParam());
    auto routing = route(uneven_model(), options_.routes);
    ASSERT_TRUE(routing.ok());
    routing_ = std::move(*routing);
    plan_ = plan_of(routing_, options_, ranks_);
  }

  OptimizerOptions options_;
  int ranks_{1};
  Routing routing_;
  RegionPlan plan_;
};

INSTANTIATE_TEST_SUITE_P(
    Sizes,
    Exchange,
    ::testing::Combine(
        ::testing::Values(Layout::kFlatRedundant, Layout::kFlatOwner, Layout::kRowShards),
        ::testing::Values(2, 3, 8, 29)));

// Both ends of every pair must agree on the counts, in every round, or an all-to-all fails.
TEST_P(Exchange, EveryRankExpectsWhatItsPeersSend) {
  std::size_t first = 0;
  for (const std::size_t last : plan_.round_ends) {
    std::vector<ExchangeRound> rounds;
    for (int rank = 0; rank < ranks_; ++rank) {
      rounds.push_back(plan_exchange(plan_, first, last, rank));
    }
    first = last;
    for (std::size_t from = 0; from < rounds.size(); ++from) {
      EXPECT_EQ(rounds[from].directions.runs, rounds[0].directions.runs);
      EXPECT_EQ(rounds[from].results.runs, rounds[0].results.runs);
      for (std::size_t to = 0; to < rounds.size(); ++to) {
        EXPECT_EQ(
            rounds[from].directions.send_counts[to], rounds[to].directions.receive_counts[from]);
        EXPECT_EQ(rounds[from].results.send_counts[to], rounds[to].results.receive_counts[from]);
      }
    }
  }
}

// What a computing rank has and what comes in is the whole matrix, each element once; and whoever
// stores a part without computing it gets that part back.
TEST_P(Exchange, BringsWholeMatricesTogetherAndEveryPartBack) {
  for (int rank = 0; rank < ranks_; ++rank) {
    std::map<std::size_t, std::size_t> received;
    std::map<std::size_t, std::size_t> returned;
    std::size_t first = 0;
    for (const std::size_t last : plan_.round_ends) {
      const ExchangeRound round = plan_exchange(plan_, first, last, rank);
      first = last;
      for (const Transfer& part : round.directions.receives) {
        received[part.task] += part.size;
      }
      for (const Transfer& part : round.results.receives) {
        returned[part.task] += part.size;
      }
    }
    for (std::size_t index = 0; index < plan_.tasks.size(); ++index) {
      const MatrixTask& task = plan_.tasks[index];
      const Fragment* own = fragment_of(task, rank);
      const std::size_t stored = own == nullptr ? 0 : own->size;
      EXPECT_EQ(received[index], computes(task, rank) ? task.size - stored : 0) << index;
      EXPECT_EQ(returned[index], computes(task, rank) ? 0 : stored) << index;
    }
  }
}

TEST(RowShards, AnEmptyShardStillTakesPartInEveryExchange) {
  OptimizerOptions options;
  options.routes = {{"*", Rule::kMuon, "hidden"}};
  options.layout = Layout::kRowShards;
  const auto routing = route({{"w", {18, 5}}}, options.routes);
  ASSERT_TRUE(routing.ok());
  // ceil(18 / 8) = 3 rows on six ranks, none on the last two.
  const RegionPlan plan = plan_of(*routing, options, 8);
  EXPECT_EQ(plan.tasks.front().fragments.size(), 6U);
  for (int rank = 0; rank < 8; ++rank) {
    const MatrixSchedule schedule = schedule_matrices(plan, *routing, rank, 1 << 20);
    ASSERT_EQ(schedule.rounds.size(), 1U) << rank;
    EXPECT_TRUE(schedule.rounds[0].directions.runs) << rank;
    EXPECT_TRUE(schedule.rounds[0].results.runs) << rank;
    EXPECT_EQ(schedule.collectives, 2) << rank;
  }
}

}  // namespace
}  // namespace muster::optimizer
