// SPDX-License-Identifier: Apache-2.0
// The needle task, and that block attention solves it like full attention does.
#include "trainer/moe_lm/src/needle.h"

#include "tests/unit/trainer/job.h"
#include "trainer/moe_lm/src/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace muster::moe_lm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr std::int64_t kLength = 40;
constexpr std::int64_t kNeedles = 5;

NeedleSource source(std::uint64_t seed) {
  return {.seed = seed, .sequences_per_batch = 4, .length = kLength, .pairs = kNeedles};
}

// The value that the sequence's needle at `origin` gives to the key that `question` asks for; -1
// when it is no needle of this key.
std::int32_t recalled(std::int32_t needle, std::int32_t question) {
  const std::int64_t key = question - 'A';
  const bool fits = needle >= needle_byte(key, 0) && needle < needle_byte(key + 1, 0);
  return fits ? '0' + needle - needle_byte(key, 0) : -1;
}

TEST(MoeLmNeedle, EveryQuestionIsAnsweredByTheNeedleAtItsOrigin) {
  const Batch batch = source(1).sequences(2, 0, 4);
  ASSERT_THAT(batch.tokens, SizeIs(4 * kLength));
  ASSERT_THAT(batch.targets, SizeIs(4 * kLength));
  ASSERT_THAT(batch.origins, SizeIs(4 * kLength));
  std::int64_t questions = 0;
  for (std::int64_t at = 0; at < 4 * kLength; ++at) {
    const auto i = static_cast<std::size_t>(at);
    const bool is_question = at % kLength >= kLength - kQuestionsPerNeedle * kNeedles;
    ASSERT_EQ(batch.targets[i] >= 0, is_question) << at;
    ASSERT_EQ(batch.origins[i] >= 0, is_question) << at;
    if (is_question) {
      const auto needle = static_cast<std::size_t>(at - at % kLength + batch.origins[i]);
      EXPECT_EQ(recalled(batch.tokens[needle], batch.tokens[i]), batch.targets[i]) << at;
      ++questions;
    }
  }
  EXPECT_EQ(questions, 4 * kQuestionsPerNeedle * kNeedles);
}

TEST(MoeLmNeedle, ASequenceHasOneNeedlePerKeyAndFillerElsewhere) {
  const Batch batch = source(1).sequences(0, 0, 1);
  std::vector<std::int64_t> keys;
  const std::int64_t hay = kLength - kQuestionsPerNeedle * kNeedles;
  for (std::int64_t at = 0; at < hay; ++at) {
    const std::int32_t byte = batch.tokens[static_cast<std::size_t>(at)];
    if (byte >= needle_byte(0, 0)) {
      keys.push_back((byte - needle_byte(0, 0)) / kNeedleValues);
    } else {
      EXPECT_TRUE(byte >= 'a' && byte <= 'z') << byte;
    }
  }
  EXPECT_THAT(keys, SizeIs(kNeedles));
  std::sort(keys.begin(), keys.end());
  EXPECT_EQ(std::adjacent_find(keys.begin(), keys.end()), keys.end());
}

TEST(MoeLmNeedle, RanksTakePartsOfOneBatchAndSeedsAndIndicesDiffer) {
  const Batch whole = source(1).sequences(3, 0, 4);
  Batch parts = source(1).sequences(3, 0, 2);
  const Batch second = source(1).sequences(3, 2, 2);
  parts.tokens.insert(parts.tokens.end(), second.tokens.begin(), second.tokens.end());
  EXPECT_EQ(parts.tokens, whole.tokens);
  EXPECT_NE(source(2).sequences(3, 0, 4).tokens, whole.tokens);
  EXPECT_NE(source(1).sequences(4, 0, 4).tokens, whole.tokens);
}

TEST(MoeLmNeedle, HeldOutSequencesAreThoseOfNoBatchAndOfEverySeed) {
  const Batch held_out = source(1).held_out(0, 4);
  EXPECT_EQ(source(2).held_out(0, 4).tokens, held_out.tokens);
  EXPECT_NE(source(1).sequences(0, 0, 4).tokens, held_out.tokens);
}

TEST(MoeLmNeedle, RefusesNeedlesThatDoNotFitByFlag) {
  EXPECT_TRUE(validate_needle(5, 25).ok());
  EXPECT_THAT(validate_needle(5, 24).message(), HasSubstr("--seq 24"));
  EXPECT_THAT(validate_needle(9, 400).message(), HasSubstr("got 9"));
  TrainOptions options = small_options();
  options.needle_pairs = 3;
  options.loss_every = 2;
  EXPECT_THAT(validate(options, 1).message(), HasSubstr("--loss-every"));
  options.loss_every = 1;
  options.eval_every = 1;
  options.eval_sequences = 3;
  EXPECT_THAT(validate(options, 2).message(), HasSubstr("--eval-sequences 3"));
}

TEST(MoeLmNeedle, TheCommandLineTakesTextOrNeedlesAndNotBoth) {
  const auto exit_code = [](std::vector<const char*> words) {
    words.insert(words.begin(), "moe_lm");
    ::testing::internal::CaptureStderr();
    const CommandLine line = parse_command_line(static_cast<int>(words.size()), words.data());
    static_cast<void>(::testing::internal::GetCapturedStderr());
    return line.exit_code.value_or(0);
  };
  EXPECT_EQ(exit_code({"--needle", "4"}), 0);
  EXPECT_EQ(exit_code({"--data", "x"}), 0);
  EXPECT_EQ(exit_code({}), agent::kExitNeverRestart);
  EXPECT_EQ(exit_code({"--data", "x", "--needle", "4"}), agent::kExitNeverRestart);
}

TrainOptions needle_run(const std::string& attention, std::int64_t steps) {
  TrainOptions options = small_options();
  options.model = {
      .layers = 2, .d_model = 32, .heads = 4, .experts = 1, .top_k = 1, .ffn = 32, .sequence = 64};
  options.needle_pairs = 4;
  options.batch = 16;
  options.steps = steps;
  options.warmup = 20;
  options.learning_rate = 0.02;
  options.seed = 1;
  options.eval_every = options.steps;
  options.attention = agent::AttentionSchedule::parse(attention).value();
  return options;
}

// The last evaluation, on 64 held out sequences of 16 questions.
Evaluation trained(const std::string& attention, std::int64_t steps) {
  const TrainOptions options = needle_run(attention, steps);
  const auto results = run_job(1, options);
  EXPECT_TRUE(results[0].ok()) << results[0].status().to_string();
  return results[0]->evaluations.back();
}

// Sixteen blocks of 4, of which a query sees 6; guessing is right one time in 8, and a guess among
// the needles of the sequence not much more often. Both end near 0.98.
TEST(MoeLmNeedle, BlockAttentionThatSelectsTheNeedlesBlockAnswersLikeFullAttention) {
  const Evaluation full = trained("full", 400);
  const Evaluation blocks = trained("moba:4,6", 400);
  EXPECT_GE(full.accuracy, 0.95);
  EXPECT_GE(blocks.accuracy, full.accuracy - 0.05);
  EXPECT_THAT(full.answer_attended, ElementsAre(1.0, 1.0));
  // Chance is 0.8 for four heads of one layer.
  EXPECT_GE(*std::max_element(blocks.answer_attended.begin(), blocks.answer_attended.end()), 0.93);
}

TEST(MoeLmNeedle, OneBlockPerQueryCannotAnswer) {
  const Evaluation alone = trained("moba:4,1", 100);
  EXPECT_LT(alone.accuracy, 0.3);
  EXPECT_THAT(alone.answer_attended, ElementsAre(::testing::Lt(0.1), ::testing::Lt(0.1)));
}

// Guards what the evaluation may not do: clip, count or train.
TEST(MoeLmNeedle, AnEvaluationChangesNoBitOfTheRun) {
  TrainOptions options = needle_run("moba:4,3", 6);
  options.eval_every = 0;
  const std::string alone = final_bits(2, options);
  options.eval_every = 2;
  EXPECT_EQ(final_bits(2, options), alone);
}

}  // namespace
}  // namespace muster::moe_lm
