// SPDX-License-Identifier: Apache-2.0
// The whole model's training resumes with another number of ranks.
#include "tests/unit/trainer/job.h"

#include <muster/checkpoint/checkpoint.h>

#include <gtest/gtest.h>

#include <algorithm>

namespace muster::moe_lm {
namespace {

using optimizer::Layout;

TrainOptions twelve_steps() {
  TrainOptions options = small_options();
  options.steps = 12;
  options.batch = 12;  // Divides by 1, 2, 3 and 4.
  return options;
}

std::function<void(TrainSetup&)> save_to(const ScratchFolder& folder) {
  return [&folder](TrainSetup& setup) { setup.agent.checkpoint_root = folder.path(); };
}

std::function<void(TrainSetup&)> resume_from(const ScratchFolder& folder, std::int64_t step) {
  const auto all = checkpoint::list(folder.path(), "test");
  EXPECT_TRUE(all.ok()) << all.status().to_string();
  const auto found = std::find_if(
      all->begin(), all->end(), [&](const auto& info) { return info.step == StepIndex{step}; });
  EXPECT_NE(found, all->end());
  return [path = found->path](TrainSetup& setup) {
    setup.agent.resume_from = path;
    setup.agent.identity.generation = Generation{2};
  };
}

// The lines of one rank's dump: with one set of experts they are all parameters.
std::string bits_of_first_rank(
    int ranks, TrainOptions options, const std::function<void(TrainSetup&)>& adjust) {
  const ScratchFolder folder;
  options.dump_params = folder.path() / "params";
  for (const auto& result : run_job(ranks, options, adjust)) {
    EXPECT_TRUE(result.ok()) << result.status().to_string();
  }
  return bytes_of(folder.path() / "params.rank-0");
}

TEST(MoeLmReshard, ParametersComeBackBitForBitOnAnyNumberOfRanksInAnyLayout) {
  TrainOptions options = twelve_steps();
  const ScratchFolder folder;
  const std::string saved = bits_of_first_rank(4, options, save_to(folder));
  const auto resume = resume_from(folder, options.steps);  // Nothing is left to train.
  for (const int ranks : {1, 2, 3}) {
    for (const Layout layout : {Layout::kWholeMatrices, Layout::kRowShards, Layout::kReplicated}) {
      options.update.layout = layout;
      EXPECT_EQ(bits_of_first_rank(ranks, options, resume), saved)
          << ranks << " ranks, " << to_string(layout);
    }
  }
}

TEST(MoeLmReshard, ExpertsMoveBetweenExpertGroupsOfOtherSizes) {
  TrainOptions options = twelve_steps();
  options.ep_size = 2;
  const ScratchFolder folder;
  static_cast<void>(bits_of_first_rank(4, options, save_to(folder)));
  const auto resume = resume_from(folder, options.steps);
  options.ep_size = 1;
  const std::string by_one = bits_of_first_rank(1, options, resume);
  EXPECT_EQ(bits_of_first_rank(3, options, resume), by_one);
}

// Each rank sums its own part of the batch first, so another number of ranks rounds differently
// (training_test.cpp derives the tolerance).
TEST(MoeLmReshard, TheLossCurveGoesOnWithOtherNumbersOfRanks) {
  TrainOptions options = twelve_steps();
  options.checkpoint_interval = 6;
  const ScratchFolder folder;
  const auto results = run_job(4, options, save_to(folder));
  ASSERT_TRUE(results[0].ok()) << results[0].status().to_string();
  const std::vector<double> straight = results[0]->losses;
  const auto resume = resume_from(folder, 6);
  options.checkpoint_interval = 0;
  for (const int ranks : {1, 2, 3, 4}) {
    SCOPED_TRACE(ranks);
    for (const auto& result : run_job(ranks, options, resume)) {
      ASSERT_TRUE(result.ok()) << result.status().to_string();
      EXPECT_EQ(result->first_step, 6);
      ASSERT_EQ(result->losses.size(), 6U);
      for (std::size_t step = 0; step < 6; ++step) {
        EXPECT_NEAR(result->losses[step], straight[step + 6], 5e-7 * static_cast<double>(step + 7));
      }
    }
  }
}

}  // namespace
}  // namespace muster::moe_lm
