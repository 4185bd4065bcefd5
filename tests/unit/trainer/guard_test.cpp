// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/trainer/job.h"

#include <muster/checkpoint/checkpoint.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace muster::moe_lm {
namespace {

using ::testing::HasSubstr;

TEST(MoeLmGuard, ANanOnOneRankEndsLikeARunThatLeavesItsBatchOut) {
  TrainOptions hit = small_options();
  hit.ep_size = 2;
  TrainOptions spared = hit;
  hit.inject_nan = FaultPoint{1, 4};
  spared.leave_out_batch = 4;
  const std::string bits = final_bits(4, hit);
  EXPECT_EQ(bits, final_bits(4, spared));
  EXPECT_NE(bits, final_bits(4, small_options()));
}

TEST(MoeLmGuard, ANanInTheActivationsOfOneRankEndsLikeARunThatLeavesItsBatchOut) {
  TrainOptions hit = small_options();
  hit.ep_size = 2;
  TrainOptions spared = hit;
  hit.inject_nan_forward = FaultPoint{3, 4};
  spared.leave_out_batch = 4;
  EXPECT_EQ(final_bits(4, hit), final_bits(4, spared));
}

TEST(MoeLmGuard, EveryRankSkipsTheStepOfTheNanAndNoOther) {
  TrainOptions options = small_options();
  options.inject_nan = FaultPoint{2, 4};
  for (const auto& result : run_job(4, options)) {
    ASSERT_TRUE(result.ok()) << result.status().to_string();
    EXPECT_EQ(std::count(result->skipped.begin(), result->skipped.end(), true), 1);
    EXPECT_TRUE(result->skipped.at(4));
  }
}

TEST(MoeLmGuard, InjectsNothingAfterTheFirstLaunch) {
  TrainOptions options = small_options();
  options.inject_nan = FaultPoint{0, 4};
  const auto results = run_job(
      1, options, [](TrainSetup& setup) { setup.agent.identity.generation = Generation{2}; });
  ASSERT_TRUE(results[0].ok());
  EXPECT_EQ(std::count(results[0]->skipped.begin(), results[0]->skipped.end(), true), 0);
}

TEST(MoeLmGuard, AResumedRunEndsWithTheBitsOfAnUndisturbedOne) {
  const ScratchFolder folder;
  TrainOptions options = small_options();
  options.ep_size = 2;
  options.steps = 9;
  options.checkpoint_interval = 3;
  const auto save = [&](TrainSetup& setup) { setup.agent.checkpoint_root = folder.path(); };
  const std::string straight = final_bits(4, options, save);
  const auto saved = checkpoint::list(folder.path(), "test");
  ASSERT_TRUE(saved.ok()) << saved.status().to_string();
  const auto third = std::find_if(
      saved->begin(), saved->end(), [](const auto& info) { return info.step == StepIndex{3}; });
  ASSERT_NE(third, saved->end());
  const auto resume = [&](TrainSetup& setup) {
    setup.agent.resume_from = third->path;
    setup.agent.identity.generation = Generation{2};
  };
  options.checkpoint_interval = 0;
  EXPECT_EQ(final_bits(4, options, resume), straight);
}

// A rank may die between the last commit and its exit: the next launch has nothing to add.
TEST(MoeLmGuard, ARunThatHadEndedTrainsNoFurtherStep) {
  const ScratchFolder folder;
  TrainOptions options = small_options();
  options.ep_size = 2;
  const std::string ended = final_bits(
      4, options, [&](TrainSetup& setup) { setup.agent.checkpoint_root = folder.path(); });
  const auto last = checkpoint::newest_verified(folder.path(), "test");
  ASSERT_TRUE(last.ok()) << last.status().to_string();
  const auto resume = [&](TrainSetup& setup) {
    setup.agent.resume_from = last->path;
    setup.agent.identity.generation = Generation{2};
  };
  EXPECT_EQ(final_bits(4, options, resume), ended);
  for (const auto& result : run_job(4, options, resume)) {
    ASSERT_TRUE(result.ok()) << result.status().to_string();
    EXPECT_TRUE(result->losses.empty());
    EXPECT_EQ(result->ending, agent::Ending::kFinished);
  }
}

TEST(MoeLmGuard, RefusesToGoOnInAnotherDataOrder) {
  const ScratchFolder folder;
  TrainOptions options = small_options();
  static_cast<void>(final_bits(
      2, options, [&](TrainSetup& setup) { setup.agent.checkpoint_root = folder.path(); }));
  const auto saved = checkpoint::newest_verified(folder.path(), "test");
  ASSERT_TRUE(saved.ok()) << saved.status().to_string();
  options.seed += 1;
  const auto results = run_job(2, options, [&](TrainSetup& setup) {
    setup.agent.resume_from = saved->path;
    setup.agent.identity.generation = Generation{2};
  });
  for (const auto& result : results) {
    EXPECT_EQ(result.status().code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(result.status().message(), HasSubstr("--seed"));
  }
}

TEST(MoeLmGuard, RefusesATextShorterThanASequence) {
  const std::string text = "sixteen bytes...";
  const auto results = run_job(1, small_options(), [&](TrainSetup& setup) { setup.text = &text; });
  EXPECT_THAT(
      results[0].status().message(), HasSubstr("16 bytes; --seq 16 needs at least one more"));
}

TEST(MoeLmGuard, LogsTheLossOfEveryStep) {
  const ScratchFolder folder;
  TrainOptions options = small_options();
  options.log_loss = folder.path() / "loss.csv";
  const auto losses = losses_of_job(2, options);
  const std::string log = bytes_of(options.log_loss);
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), static_cast<std::ptrdiff_t>(losses.size()));
  EXPECT_EQ(std::stod(log.substr(log.rfind("9,") + 2)), losses.back());
}

}  // namespace
}  // namespace muster::moe_lm
