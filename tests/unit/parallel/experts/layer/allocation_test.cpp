// SPDX-License-Identifier: Apache-2.0
// A layer keeps its memory: after a first pass, forward and backward allocate nothing, whatever the
// routing is. That holds for the plan, the movement and the experts below it. What it copies is
// counted.
#include "tests/support/allocation_count.h"
#include "tests/support/deadlines.h"

#include <muster/comm/backends.h>
#include <muster/parallel/experts/layer.h>
#include <muster/parallel/experts/synthetic_routing.h>

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace muster::parallel {
namespace {

constexpr int kRanks = 2;
constexpr int kExperts = 8;
constexpr int kTopK = 2;
constexpr std::int64_t kWidth = 32;
constexpr std::size_t kTokens = 24;
constexpr std::size_t kElements = kExperts / kRanks * kWidth * kWidth;

using muster::test::soon;

struct Made {
  std::unique_ptr<ExpertGroup> group;
  std::unique_ptr<ExpertLayer> layer;
};

Expected<Made> make(comm::Communicator& ranks) {
  ExpertLayerOptions options;
  EpShape& shape = options.exchange.shape;
  shape.ranks = kRanks;
  shape.experts = kExperts;
  shape.top_k = kTopK;
  shape.tokens_max = kTokens;
  options.exchange.hidden = kWidth;
  options.ffn = kWidth;
  Made made;
  MUSTER_ASSIGN_OR_RETURN(
      made.group, ExpertGroup::create(ranks, options, 6 * kElements * sizeof(float), soon()));
  ExpertGroup::Home homes[3];
  for (ExpertGroup::Home& home : homes) {
    MUSTER_ASSIGN_OR_RETURN(const auto weights, made.group->allocate(kElements * sizeof(float)));
    MUSTER_ASSIGN_OR_RETURN(const auto gradient, made.group->allocate(kElements * sizeof(float)));
    home = {weights.data(), reinterpret_cast<float*>(gradient.data())};  // NOLINT
  }
  MUSTER_RETURN_IF_ERROR(made.group->seal(soon()));
  MUSTER_ASSIGN_OR_RETURN(
      made.layer, made.group->make_layer("layer 0", homes[0], homes[1], homes[2]));
  return made;
}

// Number of allocations of each pass of one rank.
std::vector<long> allocations_by_pass(comm::Communicator& ranks) {
  std::vector<long> by_pass;
  const auto made = make(ranks);
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  const std::vector<float> x(kTokens * kWidth, 0.5F);
  std::vector<float> y(x.size());
  std::vector<float> dx(x.size());
  const std::vector<float> gates(kTokens * kTopK, 0.5F);
  std::vector<float> dgates(gates.size());
  std::vector<std::int32_t> choices(gates.size());
  for (const double maxvio : {0.0, 3.0, 1.0, 2.0, 0.5}) {
    const auto routing = SyntheticRouting::create(kExperts, kTopK, maxvio, 5);
    EXPECT_TRUE(routing.ok());
    routing->draw(static_cast<std::uint64_t>(ranks.rank()), 0, choices);
    const long before = muster::test::allocations_of_this_thread();
    const Status forward = made->layer->forward(
        std::as_bytes(std::span{x}), choices, gates, std::as_writable_bytes(std::span{y}), soon());
    const Status backward = made->layer->backward(
        std::as_bytes(std::span{y}), std::as_writable_bytes(std::span{dx}), dgates, soon());
    const long after = muster::test::allocations_of_this_thread();
    EXPECT_TRUE(forward.ok() && backward.ok());
    by_pass.push_back(after - before);
  }
  return by_pass;
}

TEST(ExpertLayerAllocation, OnlyTheFirstPassAllocates) {
  const auto group = comm::make_local_group(kRanks);
  std::vector<std::vector<long>> passes(kRanks);
  std::vector<std::thread> threads;
  for (const auto& ranks : group) {
    threads.emplace_back([&passes, &world = *ranks] {
      passes[static_cast<std::size_t>(world.rank())] = allocations_by_pass(world);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const std::vector<long>& of_rank : passes) {
    ASSERT_EQ(of_rank.size(), 5U);
    for (std::size_t pass = 1; pass < of_rank.size(); ++pass) {
      EXPECT_EQ(of_rank[pass], 0) << "pass " << pass;
    }
  }
}

// The rows stay for backward in the layer, because the next dispatch overwrites the exchange's.
TEST(ExpertLayerCopies, TheRowsThatForwardKeepsAreCountedOnce) {
  const auto group = comm::make_local_group(kRanks);
  std::vector<std::thread> threads;
  for (const auto& ranks : group) {
    threads.emplace_back([&world = *ranks] {
      const auto made = make(world);
      ASSERT_TRUE(made.ok()) << made.status().to_string();
      const std::vector<float> x(kTokens * kWidth, 0.5F);
      std::vector<float> y(x.size());
      std::vector<std::int32_t> choices(kTokens * kTopK);
      for (std::size_t i = 0; i < choices.size(); ++i) {
        choices[i] = static_cast<std::int32_t>(i) % kExperts;
      }
      const std::vector<float> gates(choices.size(), 0.5F);
      const auto sent = std::as_bytes(std::span{x});
      const auto returned = std::as_writable_bytes(std::span{y});
      ASSERT_TRUE(made->layer->forward(sent, choices, gates, returned, soon()).ok());
      const EpPlan plan = *made->layer->plan();
      const std::int64_t layer = made->layer->event().bytes_local;
      EXPECT_EQ(made->layer->event().bytes_local, 0);
      // The same movement without a layer.
      EpExchange& exchange = made->group->exchange();
      EpRows received;
      ASSERT_TRUE(exchange.dispatch(plan, sent, gates, received, soon()).ok());
      ASSERT_TRUE(exchange.combine(plan, received.rows, {}, returned, {}, soon()).ok());
      const std::int64_t rows = ep_row_count(plan, world.rank());
      EXPECT_GT(rows, 0);
      EXPECT_EQ(layer - exchange.take_event(plan).bytes_local, rows * (kWidth + 1) * 4);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace
}  // namespace muster::parallel
