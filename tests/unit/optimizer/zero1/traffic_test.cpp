// SPDX-License-Identifier: Apache-2.0
// Bytes moved equal those of the plan, and those that the communicator saw.
#include "tests/support/counting_communicator.h"
#include "tests/unit/optimizer/model.h"

#include <muster/optimizer/plan.h>

#include <gtest/gtest.h>

#include <mutex>
#include <tuple>

namespace muster::optimizer {
namespace {

// A step's bytes over all ranks: as reported and as counted. A rank's share of a reduce-scatter or
// an all-gather is a mean in the report; the sums are the same.
class TrafficSums {
 public:
  explicit TrafficSums(double ranks) : ranks_(ranks) {}

  // Adds one rank's step.
  void add(const MovedBytes& moved, const test::CollectiveCounts& counts) {
    const std::lock_guard lock{mutex_};
    reduced_ += moved.reduce_scatter + moved.agc;
    gathered_ += moved.all_gather;
    exchanged_ += moved.exchange;
    counted_reduced_ += static_cast<double>(counts.reduce_scattered) +
                        2 * (ranks_ - 1) / ranks_ * static_cast<double>(counts.all_reduced);
    counted_gathered_ += static_cast<double>(counts.gathered);
    counted_exchanged_ += static_cast<double>(counts.sent);
  }

  void expect_equal() const {
    EXPECT_NEAR(reduced_, counted_reduced_, 1e-9 * (1 + reduced_));
    EXPECT_NEAR(gathered_, counted_gathered_, 1e-9 * (1 + gathered_));
    EXPECT_EQ(exchanged_, counted_exchanged_);
    EXPECT_EQ(reduced_ > 0, ranks_ > 1);
  }

 private:
  double ranks_;
  std::mutex mutex_;
  double reduced_{0};
  double gathered_{0};
  double exchanged_{0};
  double counted_reduced_{0};
  double counted_gathered_{0};
  double counted_exchanged_{0};
};

class Traffic : public ::testing::TestWithParam<std::tuple<Layout, int>> {};

void expect_planned(
    int ranks, const std::vector<ParameterSpec>& specs, const OptimizerOptions& options) {
  const auto report = report_plan(specs, options, ranks, ranks);
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  TrafficSums sums(ranks);
  run_ranks(ranks, [&](comm::Communicator& inner) {
    test::CountingCommunicator world{inner};
    const auto optimizer = make_optimizer(specs, options, world, &world);
    world.restart();  // Creation compares the options of all ranks.
    finish_step(*optimizer, decide(1.0, 0.01));
    const MovedBytes& moved = optimizer->moved_bytes();
    sums.add(moved, world.counts());
    add_slice_gradients(*optimizer, 1, world.rank());
    finish_step(*optimizer, decide(1.0, 0.01));
    const StepTraffic planned = report->of_rank(world.rank()).traffic;
    // Sums of products with (N - 1) / N: equal up to their rounding.
    const auto expect_equal = [&](double one, double other, const char* what) {
      EXPECT_NEAR(one, other, 1e-9 * (1 + other)) << what << " of rank " << world.rank();
    };
    expect_equal(moved.reduce_scatter, planned.reduce_scatter, "reduce-scatter");
    expect_equal(moved.all_gather, planned.all_gather, "all-gather");
    expect_equal(moved.exchange, planned.exchange, "exchange");
    expect_equal(moved.agc, planned.agc, "agc");
    std::int64_t collectives = 0;
    for (const RegionCost& region : report->regions) {
      collectives += region.collectives;
    }
    EXPECT_EQ(moved.collectives, collectives);
  });
  sums.expect_equal();
}

TEST_P(Traffic, EqualsThePlan) {
  const auto [layout, ranks] = GetParam();
  OptimizerOptions options = uneven_options(layout);
  expect_planned(ranks, uneven_model(), options);
  options.bucket_bytes = 4096;
  options.exchange_bytes = 4096;
  expect_planned(ranks, uneven_model(), options);
}

TEST_P(Traffic, EqualsThePlanForSixteenBitParameters) {
  const auto [layout, ranks] = GetParam();
  expect_planned(
      ranks, large_model(DType::kBFloat16), large_options(layout, StateType::kInt8Block));
}

TEST_P(Traffic, EqualsThePlanWithAdaptiveClipping) {
  const auto [layout, ranks] = GetParam();
  OptimizerOptions options = uneven_options(layout);
  options.clipping.agc = AgcOptions{};
  expect_planned(ranks, uneven_model(), options);
}

INSTANTIATE_TEST_SUITE_P(
    Sizes,
    Traffic,
    ::testing::Combine(::testing::ValuesIn(kLayouts), ::testing::Values(1, 2, 3, 4, 7, 8)),
    [](const auto& one) {
      return std::string{to_string(std::get<0>(one.param))} + "_" +
             std::to_string(std::get<1>(one.param));
    });

TEST_P(Traffic, MemoryEqualsThePlan) {
  const auto [layout, ranks] = GetParam();
  for (const StateType state : {StateType::kFloat32, StateType::kBFloat16, StateType::kInt8Block}) {
    const auto specs = large_model(DType::kBFloat16);
    const OptimizerOptions options = large_options(layout, state);
    const auto report = report_plan(specs, options, ranks, ranks);
    ASSERT_TRUE(report.ok()) << report.status().to_string();
    double saved = 0;
    std::mutex mutex;
    run_ranks(ranks, [&](comm::Communicator& world) {
      const auto optimizer = make_optimizer(specs, options, world, &world);
      double states = 0;
      double masters = 0;
      for (const TensorPiece& tensor : optimizer->state()) {
        (tensor.name.starts_with("param/") ? masters : states) +=
            static_cast<double>(tensor.data.size());
      }
      const RankCost planned = report->of_rank(world.rank());
      if (layout != Layout::kReplicated) {  // which saves what one rank each answers for
        EXPECT_EQ(states, planned.state_bytes) << "rank " << world.rank();
        EXPECT_EQ(masters, planned.master_bytes) << "rank " << world.rank();
      }
      const std::lock_guard lock{mutex};
      saved += states + masters;
    });
    if (layout == Layout::kReplicated) {
      const RankCost planned = report->of_rank(0);
      EXPECT_EQ(saved, planned.state_bytes + planned.master_bytes);
    }
  }
}

TEST(MovedBytes, ASkippedStepMovesNothingInsideTheUpdate) {
  run_ranks(3, [](comm::Communicator& world) {
    OptimizerOptions options = uneven_options(Layout::kFlatOwner);
    options.clipping.agc = AgcOptions{};
    const auto optimizer = make_optimizer(uneven_model(), options, world, &world);
    add_slice_gradients(*optimizer, 0, world.rank());
    finish_step(*optimizer, decide(1.0, 0.01));
    EXPECT_GT(optimizer->moved_bytes().exchange + optimizer->moved_bytes().agc, 0);
    finish_step(*optimizer, skip_step());
    EXPECT_EQ(optimizer->moved_bytes().exchange, 0);
    EXPECT_EQ(optimizer->moved_bytes().agc, 0);
  });
}

// Section 3 of the design: rows dealt out and assembled at owners cost 2 rho b P / N per rank when
// everything divides.
TEST(MovedBytes, RowShardsExchangeTwiceTheirShareOfTheDirections) {
  run_ranks(4, [](comm::Communicator& world) {
    OptimizerOptions options;
    options.routes = {{"*", Rule::kMuon, "hidden"}};
    options.layout = Layout::kRowShards;
    std::vector<ParameterSpec> specs;
    for (int i = 0; i < 4; ++i) {
      specs.push_back({"w" + std::to_string(i), {32, 24}});
    }
    const auto optimizer = make_optimizer(specs, options, world);
    add_slice_gradients(*optimizer, 0, world.rank());
    finish_step(*optimizer, decide(1.0, 0.01));
    constexpr double kElements = 4 * 32 * 24;
    EXPECT_DOUBLE_EQ(optimizer->moved_bytes().exchange, 2 * 0.75 * 4 * kElements / 4);
  });
}

TEST(MovedBytes, WholeMatricesExchangeNothing) {
  run_ranks(4, [](comm::Communicator& world) {
    const auto optimizer =
        make_optimizer(uneven_model(), uneven_options(Layout::kWholeMatrices), world, &world);
    add_slice_gradients(*optimizer, 0, world.rank());
    finish_step(*optimizer, decide(1.0, 0.01));
    EXPECT_EQ(optimizer->moved_bytes().exchange, 0);
  });
}

}  // namespace
}  // namespace muster::optimizer
