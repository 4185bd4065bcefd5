// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/optimizer/model.h"

#include <gtest/gtest.h>

#include <mutex>

namespace muster::optimizer {
namespace {

constexpr int kRankSlices = 12;
constexpr int kRankSteps = 5;

// Trains the small model on the same slices, dealt out to `ranks`; every rank must see the same
// end.
std::vector<std::vector<float>> train(int ranks) {
  std::mutex mutex;
  std::vector<std::vector<std::vector<float>>> seen;
  run_ranks(ranks, [&](comm::Communicator& world) {
    const auto optimizer = make_optimizer(small_model(), small_options(), world, &world);
    set_initial_values(*optimizer);
    for (int step = 0; step < kRankSteps; ++step) {
      for (int slice = world.rank(); slice < kRankSlices; slice += world.size()) {
        add_slice_gradients(*optimizer, step, slice);
      }
      finish_step(*optimizer, decide(1.0 / kRankSlices, 0.01));
    }
    const std::lock_guard lock{mutex};
    seen.push_back(values_of(*optimizer));
  });
  for (const auto& other : seen) {
    EXPECT_EQ(other, seen.front());
  }
  return seen.front();
}

TEST(Zero1Ranks, AnyNumberOfRanksEndsWithTheSameBits) {
  const auto alone = train(1);
  // 7 is more than the number of matrices of any region; 2 to 6 leave uneven parts.
  for (const int ranks : {2, 3, 4, 5, 7}) {
    SCOPED_TRACE(ranks);
    EXPECT_EQ(train(ranks), alone);
  }
}

TEST(Zero1Ranks, StatisticsAddUpToThoseOfOneRank) {
  std::mutex mutex;
  std::vector<double> total(4, 0.0);
  const auto collect = [&](int ranks) {
    std::fill(total.begin(), total.end(), 0.0);
    run_ranks(ranks, [&](comm::Communicator& world) {
      const auto optimizer = make_optimizer(small_model(), small_options(), world, &world);
      for (int slice = world.rank(); slice < kRankSlices; slice += world.size()) {
        add_slice_gradients(*optimizer, 0, slice);
      }
      ASSERT_TRUE(optimizer->reduce_gradients(soon()).ok());
      const LocalStatistics statistics = optimizer->local_statistics();
      const std::lock_guard lock{mutex};
      ASSERT_EQ(statistics.squared_norm.size(), total.size());
      for (std::size_t group = 0; group < total.size(); ++group) {
        total[group] += statistics.squared_norm[group];
      }
    });
    return total;
  };
  const auto alone = collect(1);
  const auto four = collect(4);
  for (std::size_t group = 0; group < alone.size(); ++group) {
    EXPECT_GT(alone[group], 0.0);
    EXPECT_NEAR(four[group], alone[group], alone[group] * 1e-12);
  }
}

// Four ranks, peers {0, 2} and {1, 3}; rank r's expert gradient is r + 1 everywhere.
TEST(Zero1Ranks, ExpertGradientsAreReducedOnlyAmongPeers) {
  std::mutex mutex;
  std::vector<double> squared_by_parity(2, 0.0);
  run_ranks(4, [&](comm::Communicator& world) {
    const auto peers = world.split(world.rank() % 2, world.rank(), soon());
    ASSERT_TRUE(peers.ok());
    const auto optimizer = make_optimizer(small_model(), small_options(), world, peers->get());
    for (const char* name : {"experts.up", "experts.bias"}) {
      for (float& gradient : optimizer->find(name)->gradient) {
        gradient = static_cast<float>(world.rank() + 1);
      }
    }
    ASSERT_TRUE(optimizer->reduce_gradients(soon()).ok());
    const auto& groups = optimizer->group_names();
    const auto experts = std::find(groups.begin(), groups.end(), "experts") - groups.begin();
    const double squared =
        optimizer->local_statistics().squared_norm[static_cast<std::size_t>(experts)];
    const std::lock_guard lock{mutex};
    squared_by_parity[static_cast<std::size_t>(world.rank() % 2)] += squared;
  });
  constexpr double kElements = 3 * 4 * 6 + 3 * 6;
  EXPECT_EQ(squared_by_parity[0], kElements * 16.0);  // (1 + 3)^2
  EXPECT_EQ(squared_by_parity[1], kElements * 36.0);  // (2 + 4)^2
}

TEST(Zero1Ranks, ExpertValuesStayTheirOwnAndReplicatedValuesStayEqual) {
  std::mutex mutex;
  std::vector<std::vector<float>> experts(4);
  std::vector<std::vector<float>> embeddings(4);
  run_ranks(4, [&](comm::Communicator& world) {
    const auto peers = world.split(world.rank() % 2, world.rank(), soon());
    ASSERT_TRUE(peers.ok());
    const auto optimizer = make_optimizer(small_model(), small_options(), world, peers->get());
    add_slice_gradients(*optimizer, 0, world.rank());
    finish_step(*optimizer, decide(1.0, 0.1));
    const std::lock_guard lock{mutex};
    const auto rank = static_cast<std::size_t>(world.rank());
    const auto values = values_of(*optimizer);
    embeddings[rank] = values[0];
    experts[rank] = values[6];
  });
  EXPECT_EQ(embeddings[0], embeddings[1]);
  EXPECT_EQ(embeddings[0], embeddings[3]);
  EXPECT_EQ(experts[0], experts[2]);
  EXPECT_EQ(experts[1], experts[3]);
  EXPECT_NE(experts[0], experts[1]);
}

}  // namespace
}  // namespace muster::optimizer
