// SPDX-License-Identifier: Apache-2.0
// 16-bit parameters with fp32 masters, loss scaling, and compressed states, under the whole model.
#include "tests/unit/trainer/job.h"

#include <muster/agent/agent.h>

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace muster::moe_lm {
namespace {

using optimizer::Layout;
using optimizer::Rule;
using optimizer::StateType;

// Large enough for 8-bit states in the embedding, the head and the experts (4,096 elements).
TrainOptions wider_options() {
  TrainOptions options = small_options();
  options.model = {1, 32, 2, 4, 2, 32, 16};
  options.steps = 30;
  return options;
}

TEST(MoeLmPrecision, SixteenBitParametersLearnAlmostLikeFp32) {
  TrainOptions options = wider_options();
  const auto full = losses_of_job(2, options);
  for (const DType type : {DType::kBFloat16, DType::kFloat16}) {
    options.update.parameter_type = type;
    const auto losses = losses_of_job(2, options);
    expect_learns(losses);
    // The forward pass sees weights rounded by up to 2^-9; masters do not.
    EXPECT_NEAR(losses.back(), full.back(), 0.05);
    EXPECT_NE(losses.back(), full.back());
  }
}

TEST(MoeLmPrecision, SixteenBitParametersEndWithTheSameBitsInEveryLayout) {
  TrainOptions options = wider_options();
  options.steps = 8;
  options.update.parameter_type = DType::kBFloat16;
  const std::string bits = final_bits(2, options);
  for (const Layout layout :
       {Layout::kFlatRedundant, Layout::kFlatOwner, Layout::kRowShards, Layout::kReplicated}) {
    options.update.layout = layout;
    EXPECT_EQ(final_bits(2, options), bits) << to_string(layout);
  }
}

TEST(MoeLmPrecision, CompressedStatesLearnAlmostLikeFp32UnderMuonAndAdamW) {
  for (const Rule rule : {Rule::kMuon, Rule::kAdamW}) {
    TrainOptions options = wider_options();
    options.update.rule = rule;
    const auto full = losses_of_job(2, options);
    for (const StateType type : {StateType::kBFloat16, StateType::kInt8Block}) {
      options.update.state_type = type;
      const auto losses = losses_of_job(2, options);
      expect_learns(losses);
      EXPECT_NEAR(losses.back(), full.back(), 0.05);
    }
  }
}

TEST(MoeLmPrecision, StochasticRoundingDoesNotDependOnTheLayout) {
  TrainOptions options = wider_options();
  options.steps = 8;
  options.update.state_type = StateType::kBFloat16;
  const std::string bits = final_bits(2, options);
  for (const Layout layout :
       {Layout::kFlatRedundant, Layout::kFlatOwner, Layout::kRowShards, Layout::kReplicated}) {
    options.update.layout = layout;
    EXPECT_EQ(final_bits(2, options), bits) << to_string(layout);
  }
}

// The loss scale starts at 65536: gradients in memory are that much larger, what is applied is not.
TEST(MoeLmPrecision, AnOverflowUnderFp16IsSkippedByAllRanksAndTrainingGoesOn) {
  TrainOptions options = wider_options();
  options.steps = 12;
  options.update.parameter_type = DType::kFloat16;
  options.inject_nan = FaultPoint{1, 4};
  for (const auto& result : run_job(2, options)) {
    ASSERT_TRUE(result.ok()) << result.status().to_string();
    EXPECT_TRUE(result->skipped.at(4));
    EXPECT_FALSE(result->skipped.back());
    EXPECT_TRUE(std::isfinite(result->losses.back()));
  }
}

}  // namespace
}  // namespace muster::moe_lm
