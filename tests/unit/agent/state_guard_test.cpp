// SPDX-License-Identifier: Apache-2.0
// Values that would overflow: withheld in the same step, and no statistic decides about a step.
#include "tests/unit/agent/train_group.h"

#include <gtest/gtest.h>

namespace muster::agent {
namespace {

using kernels::StateType;

// Muon on wq and wk, AdamW on a bias large enough for 8-bit states; nothing is clipped.
GroupOptions unclipped_run(StateType type, bool statistics) {
  GroupOptions group;
  group.specs = {{"wq", {8, 4}}, {"wk", {8, 4}}, {"bias", {8192}}};
  group.total_steps = 8;
  group.tune = [=](optimizer::OptimizerOptions& options) {
    options.clip_norm = 0;
    options.statistics = statistics;
    for (optimizer::RouteRule& route : options.routes) {
      route.state_type = type;
    }
  };
  return group;
}

void expect_no_skip(const std::vector<RankResult>& results) {
  for (const RankResult& result : results) {
    EXPECT_TRUE(result.status.ok()) << result.status.to_string();
    for (const Verdict& verdict : result.verdicts) {
      EXPECT_FALSE(verdict.skip) << verdict.reason;
    }
  }
}

// Runs with and without statistics; returns the parameters, which must be equal.
std::vector<float> same_both_ways(
    StateType type, const std::function<void(StepContext&)>& on_step) {
  std::vector<std::vector<float>> ends;
  for (const bool statistics : {true, false}) {
    GroupOptions group = unclipped_run(type, statistics);
    group.on_step = on_step;
    const auto results = train(group);
    expect_no_skip(results);
    EXPECT_EQ(results[0].parameters, results[1].parameters);
    ends.push_back(results[0].parameters);
  }
  EXPECT_EQ(ends[0], ends[1]);
  return ends[0];
}

void set_gradient(StepContext& context, const char* name, std::size_t index, float value) {
  if (context.rank == 0 && context.step == 3) {
    context.optimizer.find(name)->gradient[index] = value;
  }
}

TEST(StateGuard, AVarianceThatOverflowsCostsNoStepWhateverItsType) {
  for (const StateType type : {StateType::kFloat32, StateType::kBFloat16, StateType::kInt8Block}) {
    const auto plain = same_both_ways(type, {});
    const auto bad = same_both_ways(
        type, [](StepContext& context) { set_gradient(context, "bias", 300, 1e24F); });
    constexpr std::size_t kBias = 64;
    EXPECT_NE(bad[kBias + 300], plain[kBias + 300]) << to_string(type);
    const std::size_t neighbour = kBias + (type == StateType::kInt8Block ? 600 : 301);
    EXPECT_EQ(bad[neighbour], plain[neighbour]) << to_string(type);
  }
}

TEST(StateGuard, AMomentumWhoseSquareOverflowsCostsNoStep) {
  same_both_ways(
      StateType::kFloat32, [](StepContext& context) { set_gradient(context, "wq", 5, 3e38F); });
}

TEST(StateGuard, ARunWhoseValuesAreWithheldForTwentyUpdatesEnds) {
  GroupOptions group = unclipped_run(StateType::kFloat32, false);
  group.total_steps = 40;
  group.on_step = [](StepContext& context) { context.optimizer.find("bias")->gradient[7] = 1e24F; };
  const auto results = train(group);
  for (const RankResult& result : results) {
    EXPECT_EQ(result.ending, Ending::kFailed);
    EXPECT_EQ(result.verdicts.size(), 21U);
    EXPECT_NE(
        result.verdicts.back().reason.find(
            "1 elements of 'rest', so the run ends: go back to a checkpoint from before step 0"),
        std::string::npos)
        << result.verdicts.back().reason;
  }
}

}  // namespace
}  // namespace muster::agent
