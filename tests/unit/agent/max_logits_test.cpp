// SPDX-License-Identifier: Apache-2.0
// Max logits belong to one step.
#include "tests/unit/agent/train_group.h"

#include <gtest/gtest.h>

#include <array>

namespace muster::agent {
namespace {

TEST(MaxLogits, AreThoseOfTheStepAlone) {
  GroupOptions options;
  options.total_steps = 6;
  options.adjust = [](AgentOptions& agent) { agent.qk_clip_threshold = 50.0; };
  options.on_step = [](StepContext& context) {
    if (context.step == 2) {
      context.agent.record_max_logits(0, std::array<float, 2>{100.0F, 2.0F});
    }
  };
  for (const RankResult& result : train(options)) {
    ASSERT_TRUE(result.status.ok()) << result.status.to_string();
    ASSERT_EQ(result.verdicts.size(), 6U);
    for (std::size_t step = 0; step < result.verdicts.size(); ++step) {
      EXPECT_EQ(result.verdicts[step].head_gammas.empty(), step != 2) << "step " << step;
    }
  }
}

}  // namespace
}  // namespace muster::agent
