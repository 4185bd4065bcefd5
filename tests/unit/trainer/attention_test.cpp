// SPDX-License-Identifier: Apache-2.0
// Block attention under the whole model, and schedules that switch it on and off.
#include "tests/support/deadlines.h"
#include "tests/unit/trainer/job.h"
#include "trainer/moe_lm/src/attention_block.h"
#include "trainer/moe_lm/src/command_line.h"
#include "trainer/moe_lm/src/parameters.h"

#include <muster/checkpoint/checkpoint.h>
#include <muster/comm/backends.h>
#include <muster/common/random.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

namespace muster::moe_lm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TrainOptions scheduled(const std::string& text) {
  TrainOptions options = small_options();  // two layers, sequences of 16
  auto schedule = agent::AttentionSchedule::parse(text);
  EXPECT_TRUE(schedule.ok()) << schedule.status().to_string();
  options.attention = *schedule;
  EXPECT_TRUE(validate(options, 1).ok());
  return options;
}

// One attention block on weights of its own, with what a forward and a backward pass left.
class Block {
 public:
  Block(std::int64_t sequence, std::optional<kernels::MobaOptions> moba) {
    TrainOptions options = small_options();
    options.model.sequence = sequence;
    auto made = optimizer::Optimizer::create(
        parameter_specs(options.model, 1),
        optimizer_options(options),
        *world_.front(),
        world_.front().get(),
        muster::test::soon());
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    optimizer_ = std::move(*made);
    EXPECT_TRUE(set_initial_values(*optimizer_, options.model, options.seed, 0).ok());
    weights_ = std::make_unique<Weights>(*optimizer_, std::chrono::seconds{60});
    block_ = std::make_unique<AttentionBlock>(options.model, *weights_, 0);
    block_->set_mode(moba);
  }

  void run(std::vector<float> x, const std::vector<float>& gradient) {
    output = std::move(x);
    dx = gradient;
    EXPECT_TRUE(block_->forward(output).ok());
    EXPECT_TRUE(block_->backward(dx).ok());
    const Weight* queries = weights_->find("layers.0.attention.wq");
    dq.assign(queries->gradient.begin(), queries->gradient.end());
    max_logits.assign(block_->max_logits().begin(), block_->max_logits().end());
  }

  std::vector<float> output, dx, dq, max_logits;

 private:
  std::vector<std::unique_ptr<comm::Communicator>> world_{comm::make_local_group(1)};
  std::unique_ptr<optimizer::Optimizer> optimizer_;
  std::unique_ptr<Weights> weights_;
  std::unique_ptr<AttentionBlock> block_;
};

// Two sequences of 16 tokens of width 16.
std::vector<float> noise(std::uint64_t seed) {
  Random random{seed};
  std::vector<float> values(2 * 16 * 16);
  for (float& value : values) {
    value = static_cast<float>(random.below(2001)) / 1000.0F - 1.0F;
  }
  return values;
}

// A hundred float roundings of values of about 1 stay far below it; a wrong pair of a query and a
// key moves an output by 1e-2 and more.
void expect_near(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_NEAR(a[i], b[i], 3e-5F) << i;
  }
}

// Rotary positions are relative, so where a sequence begins does not matter.
TEST(MoeLmAttention, OneBlockPerQueryIsFullAttentionOverSequencesAsShortAsABlock) {
  Block blocks{16, kernels::MobaOptions{.block = 4, .top_k = 1}};
  Block short_sequences{4, std::nullopt};
  Block full{16, std::nullopt};
  for (Block* each : {&blocks, &short_sequences, &full}) {
    each->run(noise(3), noise(2));
  }
  expect_near(blocks.output, short_sequences.output);
  expect_near(blocks.dx, short_sequences.dx);
  expect_near(blocks.dq, short_sequences.dq);
  expect_near(blocks.max_logits, short_sequences.max_logits);
  EXPECT_NE(blocks.output, full.output);
  EXPECT_LE(blocks.max_logits[0], full.max_logits[0]);
  EXPECT_LT(blocks.max_logits[1], full.max_logits[1]);
}

TEST(MoeLmAttention, ANanMakesTheMaxLogitOfEveryHeadANan) {
  Block block{16, kernels::MobaOptions{.block = 4, .top_k = 2}};
  block.run(noise(1), noise(2));
  EXPECT_TRUE(std::isfinite(block.max_logits[0]) && std::isfinite(block.max_logits[1]));
  std::vector<float> spoilt = noise(1);
  spoilt[5 * 16] = std::numeric_limits<float>::quiet_NaN();
  block.run(spoilt, noise(2));
  EXPECT_TRUE(std::isnan(block.max_logits[0]) && std::isnan(block.max_logits[1]));
}

TEST(MoeLmAttention, BlocksThatAreAllChosenTrainBitForBitLikeFullAttention) {
  const std::string full = final_bits(2, small_options());
  EXPECT_EQ(final_bits(2, scheduled("moba:8,2")), full);
  EXPECT_EQ(final_bits(2, scheduled("moba:5,4,last_full=1")), full);
}

// Below the schedule, which would hand such a short sequence to full attention.
TEST(MoeLmAttention, ABlockAllOfWhoseKeysAreChosenPassesTheBitsOfFullAttention) {
  Block full{16, std::nullopt};
  full.run(noise(3), noise(2));
  for (const kernels::MobaOptions moba : {kernels::MobaOptions{8, 2}, kernels::MobaOptions{5, 4}}) {
    Block blocks{16, moba};
    blocks.run(noise(3), noise(2));
    EXPECT_EQ(blocks.output, full.output);
    EXPECT_EQ(blocks.dx, full.dx);
    EXPECT_EQ(blocks.dq, full.dq);
    EXPECT_EQ(blocks.max_logits, full.max_logits);
  }
}

TEST(MoeLmAttention, SwitchingToBlocksThatAreAllChosenAndBackChangesNoBit) {
  const TrainOptions switched = scheduled("steps 3:6 layers 0,1 moba 8 2");
  EXPECT_EQ(losses_of_job(2, switched), losses_of_job(2, small_options()));
  EXPECT_EQ(final_bits(2, switched), final_bits(2, small_options()));
}

TEST(MoeLmAttention, FewBlocksLearnAndAreNotFullAttention) {
  const auto full = losses_of_job(2, small_options());
  for (const char* text : {"moba:4,2", "moba:3,1", "moba:4,2,last_full=1"}) {
    const auto losses = losses_of_job(2, scheduled(text));
    ASSERT_EQ(losses.size(), full.size());
    EXPECT_LT(losses.back(), losses.front() - 1.0) << text;
    EXPECT_NE(losses.front(), full.front()) << text;
  }
  EXPECT_NE(
      losses_of_job(1, scheduled("moba:4,2")), losses_of_job(1, scheduled("moba:4,2,last_full=1")));
}

TEST(MoeLmAttention, ARuleOfLaterStepsLeavesEarlierOnesAlone) {
  const auto full = losses_of_job(1, small_options());
  const auto late = losses_of_job(1, scheduled("steps 4: layers 1 moba 4 2"));
  EXPECT_TRUE(std::equal(full.begin(), full.begin() + 4, late.begin()));
  EXPECT_NE(full[4], late[4]);
}

// The left out batch and the skipped one are the third; the switch comes after it.
TEST(MoeLmAttention, ASkippedStepEndsLikeALeftOutBatchUnderAScheduleThatSwitches) {
  TrainOptions hit = scheduled("steps 5: moba 4 2");
  TrainOptions spared = hit;
  hit.inject_nan_forward = FaultPoint{1, 3};
  spared.leave_out_batch = 3;
  EXPECT_EQ(final_bits(2, hit), final_bits(2, spared));
}

TEST(MoeLmAttention, ProgressSaysWhichLayersRunWhatOncePerSwitch) {
  std::ostringstream out;
  const auto show = [&](TrainSetup& setup) { setup.out = &out; };
  const auto results = run_job(1, scheduled("steps 4:7 layers 0 moba 4 2"), show);
  ASSERT_TRUE(results[0].ok());
  EXPECT_THAT(
      out.str(),
      AllOf(
          HasSubstr("attention from step 0: layers 0-1 full\n"),
          HasSubstr("attention from step 4: layer 0 moba 4 2, layer 1 full\n"),
          HasSubstr("attention from step 7: layers 0-1 full\n")));
  const std::string text = out.str();
  std::size_t lines = 0;
  for (std::size_t at = 0; (at = text.find("attention from", at)) != std::string::npos; ++at) {
    ++lines;
  }
  EXPECT_EQ(lines, 3U);
}

// What the line of the first step ends in after the word reach; empty where it is not there.
std::string printed_reach(TrainOptions options) {
  options.steps = 1;
  options.print_every = 1;
  std::ostringstream out;
  const auto results = run_job(2, options, [&](TrainSetup& setup) { setup.out = &out; });
  EXPECT_TRUE(results[0].ok()) << results[0].status().to_string();
  const std::size_t at = out.str().find(" reach ");
  return at == std::string::npos ? "" : out.str().substr(at + 7);
}

TEST(MoeLmAttention, LossOnFewTokensLowersTheReachAndALastFullLayerRaisesIt) {
  EXPECT_EQ(printed_reach(small_options()), "");
  TrainOptions options = scheduled("moba:2,2");
  // Every block is the current one of its own tokens.
  EXPECT_THAT(printed_reach(options), StartsWith("1.0000/1.0000 1.0000/1.0000"));
  options.loss_every = 16;
  // Each sequence's only token with loss attends to 2 of its 8 blocks per head.
  EXPECT_THAT(printed_reach(options), HasSubstr(" 0.2500/0.0625"));
  options = scheduled("moba:2,2,last_full=1");
  options.loss_every = 16;
  EXPECT_THAT(printed_reach(options), StartsWith("1.0000/1.0000 full"));
}

// The share of 25 blocks that 4 queries, in blocks 6, 12, 18 and 24, reach when each chooses 2 of
// the blocks before its own at random.
double reach_of_random_choice() {
  double reached = 0;
  for (int block = 0; block < 25; ++block) {
    double missed = 1;
    for (const int current : {6, 12, 18, 24}) {
      if (block <= current) {
        missed *= block == current ? 0 : 1 - 2.0 / current;
      }
    }
    reached += 1 - missed;
  }
  return reached / 25;
}

// docs/evidence/moba_experiments.md has the same over a whole run.
TEST(MoeLmAttention, LossOnOneTokenInAHundredReachesWhatRandomChoiceWould) {
  TrainOptions options = scheduled("moba:16,3");
  options.model.sequence = 400;
  options.loss_every = 100;
  const std::string reach = printed_reach(options);
  const std::size_t last = reach.rfind(' ');
  // Eight sequences of 25 blocks under two heads, some of them close to each other in what is
  // chosen: three standard deviations of independent choices are 0.07.
  EXPECT_NEAR(std::stod(reach.substr(last)), reach_of_random_choice(), 0.1) << reach;
  EXPECT_THAT(reach.substr(last), HasSubstr("/0.0100"));
  options.attention = agent::AttentionSchedule::parse("moba:16,3,last_full=1").value();
  EXPECT_THAT(printed_reach(options), StartsWith("1.0000/1.0000 full"));
}

TEST(MoeLmAttention, ALossMaskLearnsFromItsTokensAlone) {
  TrainOptions options = small_options();
  options.loss_every = 4;
  options.steps = 20;
  const auto losses = losses_of_job(2, options);
  EXPECT_NEAR(losses.front(), std::log(256.0), 0.2);  // The mean over tokens that bear loss.
  EXPECT_LT(losses.back(), losses.front() - 1.0);
  options.loss_every = 17;
  EXPECT_THAT(validate(options, 1).message(), HasSubstr("--loss-every 17 leaves no token"));
  options.loss_every = 0;
  EXPECT_THAT(validate(options, 1).message(), HasSubstr("--loss-every 0"));
}

// Takes up the checkpoint of a step that a run saved in `folder`.
std::function<void(TrainSetup&)> resume(const ScratchFolder& folder, std::int64_t step) {
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

// Ten steps with a checkpoint after five and at the end, saved in `folder`.
std::string saved_bits(TrainOptions options, const ScratchFolder& folder) {
  options.checkpoint_interval = 5;
  return final_bits(
      2, options, [&](TrainSetup& setup) { setup.agent.checkpoint_root = folder.path(); });
}

void expect_refused(
    const TrainOptions& options,
    const std::function<void(TrainSetup&)>& adjust,
    const std::string& saved,
    const std::string& now) {
  for (const auto& result : run_job(2, options, adjust)) {
    EXPECT_EQ(result.status().code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(
        result.status().message(),
        AllOf(
            HasSubstr("saved under the attention schedule '" + saved + "'"),
            HasSubstr("this run has '" + now + "'")));
  }
}

TEST(MoeLmAttentionResume, ARestartedRunEndsWithTheBitsOfAnUndisturbedOne) {
  const ScratchFolder folder;
  const TrainOptions options = scheduled("steps 2:7 moba 4 2\nsteps 7: layers 0 moba 3 2");
  const std::string straight = saved_bits(options, folder);
  EXPECT_EQ(final_bits(2, options, resume(folder, 5)), straight);
}

TEST(MoeLmAttentionResume, AnotherScheduleIsRefusedWithBothTexts) {
  const ScratchFolder folder;
  static_cast<void>(saved_bits(scheduled("steps 2:7 moba 4 2\nlast_full 1"), folder));
  for (const char* other : {"full", "moba:4,2"}) {
    expect_refused(scheduled(other), resume(folder, 5), "steps 2:7 moba 4 2; last_full 1", other);
  }
}

TEST(MoeLmAttentionResume, AnAllowedChangeIsWhatTheNextCheckpointWasSavedWith) {
  const ScratchFolder first;
  const ScratchFolder second;
  static_cast<void>(saved_bits(small_options(), first));
  TrainOptions options = scheduled("steps 8: moba 4 2");
  options.allow_attention_change = true;
  const auto take_up = resume(first, 5);
  const std::string changed = final_bits(2, options, [&](TrainSetup& setup) {
    take_up(setup);
    setup.agent.checkpoint_root = second.path();
  });
  options.allow_attention_change = false;
  EXPECT_EQ(final_bits(2, options, resume(second, 10)), changed);
  expect_refused(small_options(), resume(second, 10), "steps 8: moba 4 2", "full");
}

CommandLine with_attention(const std::string& argument) {
  const std::vector<const char*> words{
      "moe_lm", "--data", "x", "--attention", argument.c_str(), "--allow-attention-change"};
  return parse_command_line(static_cast<int>(words.size()), words.data());
}

TEST(MoeLmAttentionFlag, TakesAShortFormOrAFile) {
  EXPECT_EQ(with_attention("full").options.attention.to_string(), "full");
  EXPECT_EQ(with_attention("moba:64,3").options.attention.to_string(), "moba:64,3");
  EXPECT_TRUE(with_attention("full").options.allow_attention_change);
  const ScratchFolder folder;
  const auto file = folder.path() / "schedule";
  std::ofstream{file} << "# stages\nsteps 0:9 layers 0-2 moba 64 3\nlast_full 1\n";
  EXPECT_EQ(
      with_attention(file.string()).options.attention.to_string(),
      "steps 0:9 layers 0-2 moba 64 3\nlast_full 1\n");
}

TEST(MoeLmAttentionFlag, RefusesWhatIsNoScheduleByName) {
  const ScratchFolder folder;
  const auto file = folder.path() / "schedule";
  std::ofstream{file} << "full\nlayer 3 full\n";
  const std::vector<std::pair<std::string, std::string>> cases{
      {"moba:64", "moba:BLOCK,TOPK"},
      {"mobba:64,3", "nor a file to read"},
      {file.string(), "schedule: attention schedule, line 2: unexpected word in a rule: 'layer'"}};
  for (const auto& [argument, message] : cases) {
    ::testing::internal::CaptureStderr();
    const CommandLine line = with_attention(argument);
    EXPECT_THAT(
        ::testing::internal::GetCapturedStderr(),
        AllOf(HasSubstr("--attention"), HasSubstr(message)));
    EXPECT_EQ(line.exit_code, agent::kExitNeverRestart);
  }
}

TEST(MoeLmAttentionFlag, RefusesLayersAndHeadsThatTheModelDoesNotHave) {
  TrainOptions options = scheduled("layers 1 moba 4 2");
  options.model.layers = 1;
  EXPECT_THAT(validate(options, 1).message(), HasSubstr("--attention: attention schedule: rule"));
  options.model.layers = 2;
  options.model.heads = 4;  // of 4 elements each
  EXPECT_THAT(validate(options, 1).message(), HasSubstr("heads of 8 to 256 elements"));
}

}  // namespace
}  // namespace muster::moe_lm
