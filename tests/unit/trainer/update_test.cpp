// SPDX-License-Identifier: Apache-2.0
// The model under every update rule and in every layout.
#include "tests/unit/trainer/job.h"
#include "trainer/moe_lm/src/command_line.h"
#include "trainer/moe_lm/src/parameters.h"

#include <muster/agent/agent.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace muster::moe_lm {
namespace {

using optimizer::Layout;
using optimizer::Rule;
using ::testing::HasSubstr;

constexpr Layout kLayouts[] = {
    Layout::kWholeMatrices,
    Layout::kFlatRedundant,
    Layout::kFlatOwner,
    Layout::kRowShards,
    Layout::kReplicated};

// Each rule with a rate that suits it: SGD's step is proportional to the gradient, the adaptive
// rules' is not.
struct RuleCase {
  Rule rule;
  double learning_rate;
};

constexpr RuleCase kRules[] = {
    {Rule::kAdamW, 1e-2},
    {Rule::kMuon, 1e-2},
    {Rule::kSgd, 0.5},
    {Rule::kMomentum, 0.1},
    {Rule::kRmsProp, 3e-3},
    {Rule::kAdam, 1e-2}};

// The text's words give the byte distribution away within a few steps: any rule that works falls
// from ln 256 = 5.5 by 0.5 in 30 steps, one that does not stays.
class EveryRule : public ::testing::TestWithParam<RuleCase> {};

TEST_P(EveryRule, LearnsOnTwoRanks) {
  TrainOptions options = small_options();
  options.steps = 30;
  options.update.rule = GetParam().rule;
  options.learning_rate = GetParam().learning_rate;
  expect_learns(losses_of_job(2, options));
}

// An elementwise rule does not see where the cuts are.
TEST_P(EveryRule, EndsWithTheSameBitsInEveryLayout) {
  TrainOptions options = small_options();
  options.update.rule = GetParam().rule;
  options.learning_rate = GetParam().learning_rate;
  const std::string bits = final_bits(2, options);
  for (const Layout layout : kLayouts) {
    options.update.layout = layout;
    EXPECT_EQ(final_bits(2, options), bits) << to_string(layout);
  }
}

INSTANTIATE_TEST_SUITE_P(MoeLm, EveryRule, ::testing::ValuesIn(kRules), [](const auto& one) {
  return std::string{to_string(one.param.rule)};
});

class EveryLayout : public ::testing::TestWithParam<Layout> {};

TEST_P(EveryLayout, LearnsUnderMuon) {
  TrainOptions options = small_options();
  options.steps = 30;
  options.update.layout = GetParam();
  expect_learns(losses_of_job(2, options));
}

TEST_P(EveryLayout, EndsOnThreeRanksWithTheBitsOfWholeMatrices) {
  TrainOptions options = small_options();
  options.batch = 9;
  const std::string bits = final_bits(3, options);
  options.update.layout = GetParam();
  EXPECT_EQ(final_bits(3, options), bits);
}

TEST_P(EveryLayout, MovesInTheBackgroundWithoutChangingABit) {
  TrainOptions options = small_options();
  options.micro_batches = 2;
  options.update.layout = GetParam();
  options.update.bucket_bytes = 4096;  // Several buckets, even of this model.
  const std::string bits = final_bits(2, options);
  options.update.overlap = true;
  EXPECT_EQ(final_bits(2, options), bits);
}

INSTANTIATE_TEST_SUITE_P(MoeLm, EveryLayout, ::testing::ValuesIn(kLayouts), [](const auto& one) {
  return std::string{to_string(one.param)};
});

TEST(MoeLmUpdate, AnInjectedNanIsSkippedWhileGradientsMoveInTheBackground) {
  TrainOptions options = small_options();
  options.update.overlap = true;
  options.update.bucket_bytes = 4096;
  TrainOptions spared = options;
  options.inject_nan = FaultPoint{1, 4};
  spared.leave_out_batch = 4;
  EXPECT_EQ(final_bits(2, options), final_bits(2, spared));
}

TEST(MoeLmUpdate, MomentumFormsFollowEachOther) {
  TrainOptions options = small_options();
  const auto heavy_ball = losses_of_job(1, options);
  options.update.muon.momentum_form = optimizer::MomentumForm::kEma;
  const auto ema = losses_of_job(1, options);
  // The direction is the same up to a factor that normalisation takes out; what is left is rounding
  // (see training_test.cpp).
  for (std::size_t step = 0; step < ema.size(); ++step) {
    EXPECT_NEAR(ema[step], heavy_ball[step], 5e-7 * static_cast<double>(step + 1));
  }
}

TEST(MoeLmUpdate, PerHeadMuonLearnsAndDiffersFromWholeProjections) {
  TrainOptions options = small_options();
  options.steps = 30;
  const auto whole = losses_of_job(1, options);
  options.update.per_head_muon = true;
  const auto per_head = losses_of_job(1, options);
  expect_learns(per_head);
  EXPECT_NE(per_head.back(), whole.back());
}

TEST(MoeLmUpdate, GuardsKeepTrainingFinite) {
  TrainOptions options = small_options();
  options.steps = 30;
  options.update.zclip = true;
  options.update.agc = 0.1;
  expect_learns(losses_of_job(2, options));
}

TEST(MoeLmUpdate, EveryScheduleAndCoefficientSetLearns) {
  using optimizer::NewtonSchulzSet;
  using optimizer::ScheduleKind;
  TrainOptions options = small_options();
  options.steps = 30;
  for (const ScheduleKind kind :
       {ScheduleKind::kConstant,
        ScheduleKind::kLinear,
        ScheduleKind::kWsd,
        ScheduleKind::kInverseSqrt}) {
    SCOPED_TRACE(to_string(kind));
    options.update.schedule = kind;
    expect_learns(losses_of_job(1, options));
  }
  options.update.schedule = ScheduleKind::kCosine;
  for (const NewtonSchulzSet set :
       {NewtonSchulzSet::kYou,
        NewtonSchulzSet::kPolarExpress,
        NewtonSchulzSet::kClassicCubic,
        NewtonSchulzSet::kDeepSeekV4}) {
    SCOPED_TRACE(to_string(set));
    options.update.muon.newton_schulz_set = set;
    options.update.muon.newton_schulz_steps = set == NewtonSchulzSet::kDeepSeekV4 ? 10 : 5;
    expect_learns(losses_of_job(1, options));
  }
}

TEST(MoeLmUpdate, ElementwiseRulesMoveEveryParameterAndMuonLeavesTheRestToAdamW) {
  TrainOptions options = small_options();
  for (const RuleCase& one : kRules) {
    options.update.rule = one.rule;
    for (const optimizer::RouteRule& route : optimizer_options(options).routes) {
      const bool hidden = route.group == "attention" || route.group == "experts";
      const bool adamw = one.rule == Rule::kMuon && !hidden;
      EXPECT_EQ(route.rule, adamw ? Rule::kAdamW : one.rule) << route.pattern;
    }
  }
}

CommandLine parse(std::vector<const char*> words) {
  words.insert(words.begin(), {"moe_lm", "--data", "x"});
  return parse_command_line(static_cast<int>(words.size()), words.data());
}

TEST(MoeLmUpdateFlags, SayHowParametersMove) {
  const CommandLine line = parse(
      {"--optimizer",
       "muon",
       "--layout",
       "row_shards",
       "--state-type",
       "int8",
       "--param-dtype",
       "bf16",
       "--schedule",
       "wsd",
       "--cooldown",
       "40",
       "--muon-scale",
       "keller",
       "--ns-set",
       "polar_express",
       "--ns-steps",
       "8",
       "--ns-precision",
       "bf16",
       "--momentum-form",
       "ema",
       "--momentum",
       "0.9",
       "--per-head-muon",
       "--zclip",
       "--agc",
       "0.01",
       "--overlap",
       "--adam-beta2",
       "0.99",
       "--weight-decay",
       "0.05",
       "--bucket-bytes",
       "65536"});
  ASSERT_FALSE(line.exit_code.has_value());
  const UpdateOptions& update = line.options.update;
  EXPECT_EQ(update.layout, Layout::kRowShards);
  EXPECT_EQ(update.state_type, optimizer::StateType::kInt8Block);
  EXPECT_EQ(update.parameter_type, DType::kBFloat16);
  const optimizer::OptimizerOptions chosen = optimizer_options(line.options);
  EXPECT_EQ(chosen.schedule.kind, optimizer::ScheduleKind::kWsd);
  EXPECT_EQ(chosen.schedule.cooldown_steps, 40);
  EXPECT_EQ(chosen.muon.scale, optimizer::MuonScale::kKeller);
  EXPECT_EQ(chosen.muon.newton_schulz_set, optimizer::NewtonSchulzSet::kPolarExpress);
  EXPECT_EQ(chosen.muon.newton_schulz_steps, 8);
  EXPECT_EQ(chosen.muon.precision, DType::kBFloat16);
  EXPECT_EQ(chosen.muon.momentum_form, optimizer::MomentumForm::kEma);
  EXPECT_EQ(chosen.muon.momentum, 0.9);
  EXPECT_EQ(chosen.adamw.beta2, 0.99);
  EXPECT_TRUE(chosen.clipping.zclip.has_value());
  EXPECT_EQ(chosen.clipping.agc->factor, 0.01);
  EXPECT_TRUE(chosen.overlap);
  EXPECT_EQ(chosen.bucket_bytes, 65536U);
  EXPECT_EQ(chosen.routes.back().weight_decay, 0.05);
  EXPECT_EQ(
      parameter_specs(line.options.model, 1, update)[2].blocks,
      (optimizer::MatrixBlocks{{32}, 4, false}));
}

TEST(MoeLmUpdateFlags, ANameThatIsNoneIsRefusedWithTheChoice) {
  const std::pair<std::vector<const char*>, const char*> cases[] = {
      {{"--optimizer", "adamx"}, "adamx"},
      {{"--layout", "fsdp"}, "row_shards"},
      {{"--state-type", "int4"}, "fp32, bf16, int8"},
      {{"--param-dtype", "fp8"}, "fp32, bf16, fp16"},
      {{"--ns-set", "aol"}, "aol"}};
  for (const auto& [words, expected] : cases) {
    ::testing::internal::CaptureStderr();
    const CommandLine line = parse(words);
    const std::string told = ::testing::internal::GetCapturedStderr();
    EXPECT_THAT(told, HasSubstr(words[0]));
    EXPECT_THAT(told, HasSubstr(expected));
    EXPECT_EQ(line.exit_code, agent::kExitNeverRestart);
  }
}

TEST(MoeLmUpdateFlags, PerHeadMuonWithoutMuonIsRefused) {
  TrainOptions options = small_options();
  options.update.rule = Rule::kAdamW;
  options.update.per_head_muon = true;
  EXPECT_THAT(validate(options, 1).message(), HasSubstr("--per-head-muon"));
}

}  // namespace
}  // namespace muster::moe_lm
