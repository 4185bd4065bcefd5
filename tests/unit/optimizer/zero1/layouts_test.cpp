// SPDX-License-Identifier: Apache-2.0
#include "optimizer/src/layout/layout.h"
#include "tests/support/random_values.h"
#include "tests/unit/optimizer/model.h"

#include <muster/kernels/newton_schulz.h>
#include <muster/optimizer/newton_schulz_sets.h>

#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <tuple>

namespace muster::optimizer {
namespace {

constexpr int kLayoutSlices = 8;
constexpr int kLayoutSteps = 4;

struct Outcome {
  std::vector<std::vector<float>> values;  // of every rank, and they must agree
  std::int64_t newton_schulz_calls{0};     // over all ranks
};

// Trains on the same slices, dealt out to `ranks`.
Outcome train(int ranks, const std::vector<ParameterSpec>& specs, const OptimizerOptions& options) {
  std::mutex mutex;
  Outcome outcome;
  run_ranks(ranks, [&](comm::Communicator& world) {
    const auto optimizer = make_optimizer(specs, options, world, &world);
    ASSERT_NE(optimizer, nullptr);
    set_initial_values(*optimizer);
    ASSERT_TRUE(optimizer->gather_parameters(soon()).ok());
    for (int step = 0; step < kLayoutSteps; ++step) {
      for (int slice = world.rank(); slice < kLayoutSlices; slice += world.size()) {
        add_slice_gradients(*optimizer, step, slice);
      }
      finish_step(*optimizer, decide(1.0 / kLayoutSlices, 0.01));
    }
    const std::lock_guard lock{mutex};
    if (outcome.values.empty()) {
      outcome.values = values_of(*optimizer);
    }
    EXPECT_EQ(difference(values_of(*optimizer), outcome.values), "") << "rank " << world.rank();
    outcome.newton_schulz_calls += optimizer->newton_schulz_calls();
  });
  return outcome;
}

// One rank with whole matrices, computed once.
const std::vector<std::vector<float>>& values_alone() {
  static const auto values =
      train(1, uneven_model(), uneven_options(Layout::kWholeMatrices)).values;
  return values;
}

class EveryLayout : public ::testing::TestWithParam<std::tuple<Layout, int>> {};

TEST_P(EveryLayout, EndsWithTheBitsOfOneRank) {
  const auto [layout, ranks] = GetParam();
  EXPECT_EQ(
      difference(train(ranks, uneven_model(), uneven_options(layout)).values, values_alone()), "");
}

TEST_P(EveryLayout, EndsWithTheBitsOfOneRankInSmallBucketsAndRounds) {
  const auto [layout, ranks] = GetParam();
  OptimizerOptions options = uneven_options(layout);
  options.bucket_bytes = 1024;
  options.exchange_bytes = 2048;
  EXPECT_EQ(difference(train(ranks, uneven_model(), options).values, values_alone()), "");
}

// Blocks of the uneven model: w18, w29, 4 heads, q k v, q k v, 5 matrices; 3 experts.
constexpr std::int64_t kReplicatedBlocks = 1 + 1 + 4 + 3 + 3 + 5;
constexpr std::int64_t kExpertBlocks = 3;

TEST_P(EveryLayout, OrthogonalisesEveryBlockOncePerStep) {
  const auto [layout, ranks] = GetParam();
  const OptimizerOptions options = uneven_options(layout);
  std::int64_t expected = kReplicatedBlocks + kExpertBlocks;
  if (layout == Layout::kReplicated || layout == Layout::kFlatRedundant) {
    // Once per rank that needs it, as counted in the plan.
    const auto routing = route(uneven_model(), options.routes);
    ASSERT_TRUE(routing.ok());
    expected = 0;
    for (const BufferKey& key : buffer_keys(*routing)) {
      for (const MatrixTask& task : plan_buffer(*routing, options, key, ranks).tasks) {
        expected += static_cast<std::int64_t>(
            task.computing.size() * routing->parameters[task.parameter].blocks.size());
      }
    }
    EXPECT_GE(expected, kReplicatedBlocks + kExpertBlocks);
  }
  EXPECT_EQ(train(ranks, uneven_model(), options).newton_schulz_calls, expected * kLayoutSteps);
}

INSTANTIATE_TEST_SUITE_P(
    Sizes,
    EveryLayout,
    ::testing::Combine(::testing::ValuesIn(kLayouts), ::testing::Values(1, 2, 3, 4, 7, 8)),
    [](const auto& one) {
      return std::string{to_string(std::get<0>(one.param))} + "_" +
             std::to_string(std::get<1>(one.param));
    });

// A layout that orthogonalised its shards separately: the comparison above must detect it. Section
// 7 of the reference: 256^2 in two halves differs by 0.528, with a cosine of 0.857.
TEST(Zero1Layouts, OrthogonalisingShardsAloneIsAnotherUpdate) {
  constexpr std::int64_t kSide = 256;
  auto whole = test::normal_values<float>(5, kSide * kSide);
  std::vector<float> shards = whole;
  const auto coefficients = newton_schulz_coefficients(MuonOptions{});
  kernels::NewtonSchulzOptions options;
  options.coefficients = coefficients;
  kernels::NewtonSchulzWorkspace workspace;
  kernels::newton_schulz_batch(whole, 1, kSide, kSide, options, workspace, {});
  kernels::newton_schulz_batch(shards, 2, kSide / 2, kSide, options, workspace, {});
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    const double d = static_cast<double>(whole[i]) - static_cast<double>(shards[i]);
    difference += d * d;
    norm += static_cast<double>(whole[i]) * static_cast<double>(whole[i]);
  }
  const double relative = std::sqrt(difference / norm);
  EXPECT_GT(relative, 0.45);
  EXPECT_LT(relative, 0.60);
}

// The same through the optimizer: the two halves as separate parameters give another result.
TEST(Zero1Layouts, TheHalvesOfAMatrixMoveOtherwiseThanTheWhole) {
  OptimizerOptions options;
  options.routes = {{"*", Rule::kMuon, "hidden"}};
  options.layout = Layout::kRowShards;
  const auto whole = train(2, {{"w", {16, 12}}}, options).values;
  const auto halves = train(2, {{"top", {8, 12}}, {"bottom", {8, 12}}}, options).values;
  std::vector<float> joined = halves[0];
  joined.insert(joined.end(), halves[1].begin(), halves[1].end());
  EXPECT_NE(joined, whole[0]);
}

}  // namespace
}  // namespace muster::optimizer
