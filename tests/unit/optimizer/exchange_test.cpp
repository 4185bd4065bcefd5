// SPDX-License-Identifier: Apache-2.0
#include "optimizer/src/storage/exchange.h"

#include "optimizer/src/update/matrices.h"
#include "tests/unit/optimizer/model.h"

#include <gtest/gtest.h>

#include <ctime>
#include <map>
#include <tuple>

namespace muster::optimizer {
namespace {

BufferPlan plan_of(const Routing& routing, const OptimizerOptions& options, int ranks) {
  for (const BufferKey& key : buffer_keys(routing)) {
    if (key.matrices) {
      return plan_buffer(routing, options, key, ranks);
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
  BufferPlan plan_;
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

// The fragment of a computing rank and the fragments it receives form the whole matrix, each
// element once; a rank that stores a fragment without computing gets that fragment back.
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
  const BufferPlan plan = plan_of(*routing, options, 8);
  EXPECT_EQ(plan.tasks.front().fragments.size(), 6U);
  for (int rank = 0; rank < 8; ++rank) {
    const MatrixSchedule schedule = schedule_matrices(plan, *routing, rank, 1 << 20);
    ASSERT_EQ(schedule.rounds.size(), 1U) << rank;
    EXPECT_TRUE(schedule.rounds[0].directions.runs) << rank;
    EXPECT_TRUE(schedule.rounds[0].results.runs) << rank;
    EXPECT_EQ(schedule.collectives, 2) << rank;
  }
}

TEST(RowShards, ALostPeerEndsTheUpdateInAStatus) {
  run_ranks(2, [](comm::Communicator& world) {
    OptimizerOptions options;
    options.routes = {{"*", Rule::kMuon, "hidden"}};
    options.layout = Layout::kRowShards;
    const auto optimizer = make_optimizer({{"w", {18, 5}}}, options, world);
    add_slice_gradients(*optimizer, 0, world.rank());
    ASSERT_TRUE(optimizer->reduce_gradients(soon()).ok());
    if (world.rank() == 1) {
      world.abort("rank 1 is lost");
      return;
    }
    const Status lost = optimizer->apply(decide(1.0, 0.01), soon());
    EXPECT_FALSE(lost.ok());
    EXPECT_NE(lost.message().find("bringing the parts of matrices together"), std::string::npos);
    EXPECT_EQ(optimizer->applied_steps(), 0);
  });
}

// 4,096 ranks with a row of every matrix each: planned once per rank at creation.
TEST(RowShards, ThousandsOfRanksAreScheduledQuickly) {
  OptimizerOptions options;
  options.routes = {{"*", Rule::kMuon, "hidden"}};
  options.layout = Layout::kRowShards;
  std::vector<ParameterSpec> specs;
  for (int i = 0; i < 200; ++i) {
    specs.push_back({"w" + std::to_string(i), {4096, 8}});
  }
  const auto routing = route(specs, options.routes);
  ASSERT_TRUE(routing.ok());
  const BufferPlan plan = plan_of(*routing, options, 4096);
  const std::clock_t start = std::clock();
  const MatrixSchedule schedule = schedule_matrices(plan, *routing, 7, 1 << 20);
  const std::clock_t elapsed = std::clock() - start;
  EXPECT_FALSE(schedule.rounds.empty());
  // CPU time: milliseconds. A product of ranks and parts would take minutes.
  EXPECT_LT(elapsed, 5 * CLOCKS_PER_SEC);
}

}  // namespace
}  // namespace muster::optimizer
