// SPDX-License-Identifier: Apache-2.0
// The agent's guards over thread ranks and a real optimizer: QK-clip for every attention, clipping,
// loss scale, evaluation, overlap.
#include "tests/unit/agent/train_group.h"

#include <muster/checkpoint/pieces.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace muster::agent {
namespace {

using optimizer::AttentionKind;
using optimizer::AttentionLayer;
using ::testing::HasSubstr;

void expect_ok_and_equal(const std::vector<RankResult>& results) {
  for (const RankResult& result : results) {
    EXPECT_TRUE(result.status.ok()) << result.status.to_string();
    EXPECT_EQ(result.parameters, results.front().parameters);
  }
}

// One attention layer under two projections named wq and wk, given as rows each, 4 inputs.
GroupOptions attention_group(
    const AttentionLayer& layer, std::int64_t query_rows, std::int64_t key_rows) {
  GroupOptions group;
  group.model.emplace();
  group.model->attention = {layer};
  group.model->experts_per_layer = {3};
  group.specs = {{"wq", {query_rows, 4}}, {"wk", {key_rows, 4}}};
  group.total_steps = 3;
  group.adjust = [](AgentOptions& agent) { agent.qk_clip_threshold = 100.0; };
  return group;
}

// Rank 1 alone sees head `head` at 400 in the last step.
void make_loud(GroupOptions& group, std::size_t heads, std::size_t head) {
  group.on_step = [=](StepContext& context) {
    std::vector<float> logits(heads, 50.0F);
    if (context.rank == 1 && context.step == 2) {
      logits[head] = 400.0F;
    }
    context.agent.record_max_logits(0, logits);
  };
}

// Factors of QK-clip for each row of wq and then of wk: the quotient of a run with and one
// without it.
std::vector<double> row_factors(GroupOptions group, std::size_t heads, std::size_t head) {
  make_loud(group, heads, head);
  const auto clipped = train(group);
  expect_ok_and_equal(clipped);
  group.adjust = [](AgentOptions& agent) { agent.qk_clip_threshold = 0.0; };
  const auto plain = train(group);
  expect_ok_and_equal(plain);
  std::vector<double> factors;
  for (std::size_t row = 0; row < clipped[0].parameters.size() / 4; ++row) {
    factors.push_back(
        static_cast<double>(clipped[0].parameters[row * 4]) /
        static_cast<double>(plain[0].parameters[row * 4]));
  }
  return factors;
}

void expect_factors(const std::vector<double>& seen, const std::vector<double>& expected) {
  ASSERT_EQ(seen.size(), expected.size());
  for (std::size_t row = 0; row < seen.size(); ++row) {
    EXPECT_NEAR(seen[row], expected[row], 1e-6) << "row " << row;
  }
}

TEST(AgentQkClip, ScalesTheQueriesAloneOfGroupedAttention) {
  AttentionLayer layer{0, 4, 2, "wq", "wk"};
  layer.kind = AttentionKind::kGroupedQuery;
  layer.key_heads = 2;
  expect_factors(
      row_factors(attention_group(layer, 8, 4), 4, 1), {1, 1, 0.25, 0.25, 1, 1, 1, 1, 1, 1, 1, 1});
}

TEST(AgentQkClip, ScalesAWholeGroupByItsMinimumWhereAsked) {
  AttentionLayer layer{0, 4, 2, "wq", "wk"};
  layer.kind = AttentionKind::kGroupedQuery;
  layer.key_heads = 2;
  layer.grouped_clip = optimizer::GroupedClip::kGroupMinimum;
  expect_factors(
      row_factors(attention_group(layer, 8, 4), 4, 3),
      {1, 1, 1, 1, 0.5, 0.5, 0.5, 0.5, 1, 1, 0.5, 0.5});
}

TEST(AgentQkClip, ScalesLatentAttentionButNeitherValuesNorTheSharedKey) {
  AttentionLayer layer{0, 2, 0, "wq", "wk"};
  layer.kind = AttentionKind::kMultiHeadLatent;
  layer.nope_dim = 1;
  layer.rope_dim = 2;
  layer.value_dim = 2;
  expect_factors(
      row_factors(attention_group(layer, 6, 6), 2, 1),
      {1, 1, 1, 0.5, 0.25, 0.25, 1, 1, 1, 0.5, 1, 1});
}

AttentionLayer normalised() {
  AttentionLayer layer{3, 2, 4, "wq", "wk"};
  layer.qk_norm = true;
  return layer;
}

TEST(AgentQkClip, RefusesToStartWhereANormMakesItANoOp) {
  for (const RankResult& result : train(attention_group(normalised(), 8, 8))) {
    EXPECT_EQ(result.status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(result.status.message(), HasSubstr("attention layer 3"));
    EXPECT_THAT(result.status.message(), HasSubstr("QK-clip would do nothing"));
  }
}

TEST(AgentQkClip, AModelItCannotScaleMayStillRecordItsLogits) {
  GroupOptions group = attention_group(normalised(), 8, 8);
  group.adjust = nullptr;
  make_loud(group, 2, 0);
  std::vector<double> seen;
  group.on_step = [inner = group.on_step, &seen](StepContext& context) {
    inner(context);
    if (context.rank == 0 && context.step > 0) {
      seen.push_back(context.agent.lanes().max_logits[0][0]);
    }
  };
  group.total_steps = 5;
  expect_ok_and_equal(train(group));
  // Step by step, not the largest so far.
  EXPECT_EQ(seen, (std::vector<double>{50, 50, 400, 50}));
}

TEST(AgentQkClip, ACheckpointWithAThresholdIsRefusedByAModelItCannotScale) {
  const ScratchFolder folder;
  GroupOptions group = attention_group({3, 2, 4, "wq", "wk"}, 8, 8);
  group.adjust = [&](AgentOptions& agent) {
    agent.qk_clip_threshold = 100.0;
    agent.checkpoint_root = folder.path();
  };
  expect_ok_and_equal(train(group));
  const auto saved = checkpoint::newest_verified(folder.path(), "unit");
  ASSERT_TRUE(saved.ok()) << saved.status().to_string();
  group.model->attention[0].qk_norm = true;
  group.adjust = [&](AgentOptions& agent) {
    agent.identity.generation = Generation{2};
    agent.resume_from = saved->path;
  };
  for (const RankResult& result : train(group)) {
    EXPECT_THAT(result.status.message(), HasSubstr("saved with a QK-clip threshold of 100"));
  }
}

TEST(AgentQkClip, ASkippedStepScalesNothing) {
  GroupOptions group = attention_group({0, 2, 4, "wq", "wk"}, 8, 8);
  group.on_step = [](StepContext& context) {
    context.agent.record_max_logits(0, std::vector<float>{400.0F, 400.0F});
    context.inject_nan = true;
  };
  const auto results = train(group);
  expect_ok_and_equal(results);
  for (const float value : results[0].parameters) {
    EXPECT_EQ(value, 0.0F);
  }
  group.on_step = [](StepContext& context) { context.inject_nan = context.step > 0; };
  const auto quiet = train(group);
  group.on_step = [](StepContext& context) {
    context.inject_nan = context.step > 0;
    context.agent.record_max_logits(0, std::vector<float>(2, context.step > 0 ? 400.0F : 50.0F));
  };
  EXPECT_EQ(train(group)[0].parameters, quiet[0].parameters);
}

TEST(Evaluation, ForwardPassesOfAnEvaluationDoNotCount) {
  GroupOptions plain;
  plain.adjust = [](AgentOptions& agent) { agent.qk_clip_threshold = 50.0; };
  GroupOptions evaluating = plain;
  evaluating.on_step = [](StepContext& context) {
    const auto evaluation = context.agent.pause_recording();
    {
      const auto nested = context.agent.pause_recording();
      context.agent.record_max_logits(0, std::vector<float>{1e6F, 1e6F});
    }
    context.agent.record_max_logits(0, std::vector<float>{1e6F, 1e6F});
    context.agent.record_expert_counts(0, std::vector<std::int64_t>{1000, 0, 0});
  };
  const auto expected = train(plain);
  const auto results = train(evaluating);
  expect_ok_and_equal(results);
  EXPECT_EQ(results[0].parameters, expected[0].parameters);
  EXPECT_EQ(results[0].trainer_tensor, expected[0].trainer_tensor);  // From the expert counts.
  for (const Verdict& verdict : results[0].verdicts) {
    EXPECT_TRUE(verdict.head_gammas.empty());
  }
}

TEST(Evaluation, RecordingGoesOnAfterTheScope) {
  GroupOptions group;
  group.adjust = [](AgentOptions& agent) { agent.qk_clip_threshold = 50.0; };
  group.on_step = [](StepContext& context) {
    { const auto evaluation = context.agent.pause_recording(); }
    context.agent.record_max_logits(0, std::vector<float>{100.0F, 1.0F});
  };
  EXPECT_EQ(train(group)[0].verdicts[0].head_gammas[0], (std::vector<double>{0.5, 1.0}));
}

TEST(Loss, ARankWithoutTokensSkipsNoStep) {
  GroupOptions group;
  group.total_steps = 2;
  group.on_step = [](StepContext& context) {
    if (context.rank == 1) {
      context.tokens = 0;
      context.loss_sum = 0;
    }
  };
  const auto results = train(group);
  expect_ok_and_equal(results);
  EXPECT_EQ(results[0].applied_steps, 2);
}

TEST(Schedule, SkippedStepsDoNotAdvanceIt) {
  GroupOptions group;
  group.total_steps = 6;
  const auto plain = train(group);
  expect_ok_and_equal(plain);
  group.on_step = [](StepContext& context) { context.inject_nan = context.step % 2 == 1; };
  const auto results = train(group);
  expect_ok_and_equal(results);
  EXPECT_EQ(results[0].applied_steps, 3);
  // The rate rises over three applied steps, wherever skipped ones lie between them.
  const auto rate = [](const RankResult& result, std::size_t step) {
    return result.verdicts[step].learning_rate;
  };
  for (std::size_t applied = 0; applied < 3; ++applied) {
    EXPECT_EQ(rate(results[0], 2 * applied), rate(plain[0], applied)) << applied;
  }
  EXPECT_LT(rate(plain[0], 0), rate(plain[0], 1));
  EXPECT_LT(rate(plain[0], 1), rate(plain[0], 2));
}

TEST(GroupClipping, ScalesItsGroupAlone) {
  GroupOptions clipped;
  clipped.total_steps = 1;
  clipped.tune = [](auto& options) {
    options.clip_norm = 0;
    options.clipping.groups = {{"rest", 1e-3}};
    // The size of the first AdamW step does not depend on the gradient's; momentum SGD's does.
    options.routes = {
        {"w*", optimizer::Rule::kMuon, "hidden", 0.0, 1.0},
        {"*", optimizer::Rule::kMomentum, "rest", 0.0, 1.0}};
  };
  GroupOptions plain = clipped;
  plain.tune = [&](auto& options) {
    clipped.tune(options);
    options.clipping.groups.clear();
  };
  const auto with = train(clipped);
  const auto without = train(plain);
  expect_ok_and_equal(with);
  const std::vector<double>& factors = with[0].verdicts[0].group_clip_factors;
  ASSERT_EQ(factors.size(), 2U);
  EXPECT_EQ(factors[0], 1.0);
  EXPECT_LT(factors[1], 0.01);
  for (std::size_t i = 0; i < with[0].parameters.size(); ++i) {
    const bool rest = i >= 64;
    const auto expected = static_cast<double>(without[0].parameters[i]) * (rest ? factors[1] : 1.0);
    EXPECT_NEAR(static_cast<double>(with[0].parameters[i]), expected, std::abs(expected) * 1e-6)
        << i;
  }
}

TEST(GroupClipping, AGroupThatDoesNotExistIsNamedAtTheStart) {
  GroupOptions group;
  group.tune = [](auto& options) { options.clipping.groups = {{"hiden", 1.0}}; };
  EXPECT_THAT(train(group)[0].status.message(), HasSubstr("'hiden'"));
}

// Everything the guards remember must survive a restart: bit for bit the undisturbed run.
GroupOptions guarded_run() {
  GroupOptions group;
  group.total_steps = 14;
  for (const char* name : {"wq", "wk"}) {
    optimizer::ParameterSpec spec{name, {8, 4}};
    spec.dtype = DType::kFloat16;
    group.specs.push_back(spec);
  }
  group.specs.push_back({"bias", {9}});
  group.tune = [](auto& options) {
    options.clipping.zclip = optimizer::ZClipOptions{};
    options.clipping.zclip->warmup_steps = 3;
    options.loss_scale.growth_interval = 4;
    options.loss_scale.initial = 256;
  };
  group.on_step = [](StepContext& context) {
    // Overflows, three of them in a row, and a spike.
    context.inject_nan = context.step == 2 || context.step == 3 || context.step == 4;
    if (context.step == 11) {
      for (float& value : context.optimizer.parameters()[0].gradient) {
        value *= 100.0F;
      }
    }
  };
  return group;
}

TEST(LossScale, FollowsItsRulesThroughARun) {
  GroupOptions group = guarded_run();
  const auto results = train(group);
  expect_ok_and_equal(results);
  EXPECT_EQ(
      results[0].loss_scales,
      (std::vector<double>{256, 256, 256, 256, 128, 64, 64, 64, 64, 128, 128, 128, 128, 256}));
  EXPECT_TRUE(results[0].verdicts[3].skip);
  EXPECT_TRUE(results[0].verdicts[11].gradient_spike);
  EXPECT_LT(results[0].verdicts[11].clip_factor, 0.1);
}

// A power of two is in the gradient and out again without a trace.
TEST(LossScale, LeavesNoTraceInTheParameters) {
  GroupOptions small = guarded_run();
  small.on_step = nullptr;
  GroupOptions large = small;
  large.tune = [&](auto& options) {
    small.tune(options);
    options.loss_scale.initial = 65536;
  };
  const auto a = train(small);
  const auto b = train(large);
  expect_ok_and_equal(a);
  expect_ok_and_equal(b);
  EXPECT_NE(a[0].loss_scales, b[0].loss_scales);
  EXPECT_EQ(a[0].parameters, b[0].parameters);
  EXPECT_EQ(a[0].verdicts.back().gradient_norm, b[0].verdicts.back().gradient_norm);
}

TEST(LossScale, IsOneWithoutFp16Parameters) {
  GroupOptions group;
  group.tune = [](auto& options) { options.loss_scale.initial = 4096; };
  EXPECT_EQ(train(group)[0].loss_scales, std::vector<double>(10, 1.0));
}

TEST(Guards, ResumeWhereTheyWereBitForBit) {
  const ScratchFolder folder;
  const GroupOptions whole = guarded_run();
  const auto undisturbed = train(whole);
  expect_ok_and_equal(undisturbed);
  for (const std::int64_t last : {3, 9}) {  // Between two overflows; within a run of clean steps.
    GroupOptions first = whole;
    first.adjust = [&](AgentOptions& agent) {
      agent.identity.run_id = "unit" + std::to_string(last);
      agent.checkpoint_root = folder.path();
    };
    first.on_step = [&](StepContext& context) {
      whole.on_step(context);
      if (context.step == last) {
        context.agent.request_preemption();
      }
    };
    expect_ok_and_equal(train(first));
    const auto saved = checkpoint::newest_verified(folder.path(), "unit" + std::to_string(last));
    ASSERT_TRUE(saved.ok()) << saved.status().to_string();
    GroupOptions second = whole;
    second.adjust = [&](AgentOptions& agent) {
      agent.identity.run_id = "unit" + std::to_string(last);
      agent.identity.generation = Generation{2};
      agent.resume_from = saved->path;
    };
    const auto resumed = train(second);
    expect_ok_and_equal(resumed);
    EXPECT_EQ(resumed[0].first_step, last + 1);
    EXPECT_EQ(resumed[0].parameters, undisturbed[0].parameters);
    EXPECT_EQ(resumed[0].loss_scales.back(), undisturbed[0].loss_scales.back());
  }
}

TEST(Guards, CountersAreInTheCheckpointAndAccumulatorsAreNot) {
  const ScratchFolder folder;
  GroupOptions group;
  group.total_steps = 9;
  group.adjust = [&](AgentOptions& agent) {
    agent.qk_clip_threshold = 5.5;  // The first head is over it in steps 6, 7 and 8.
    agent.checkpoint_root = folder.path();
  };
  expect_ok_and_equal(train(group));
  const auto saved = checkpoint::newest_verified(folder.path(), "unit");
  ASSERT_TRUE(saved.ok()) << saved.status().to_string();
  const auto pieces = checkpoint::Pieces::open(saved->path);
  ASSERT_TRUE(pieces.ok()) << pieces.status().to_string();
  const auto values = (*pieces)->values(0);
  EXPECT_EQ(values.at("agent.clipped_heads"), "3");
  for (const auto& [key, value] : values) {
    EXPECT_EQ(key.find("logit"), std::string::npos) << key;
  }
}

TEST(Overlap, TrainsToTheSameBits) {
  GroupOptions plain;
  plain.ranks = 3;
  plain.adjust = [](AgentOptions& agent) {
    agent.digest_interval = 1;
    agent.qk_clip_threshold = 6.5;
  };
  plain.on_step = [](StepContext& context) {
    context.inject_nan = context.rank == 1 && context.step == 4;
  };
  GroupOptions overlapped = plain;
  overlapped.tune = [](auto& options) {
    options.overlap = true;
    options.bucket_bytes = 64;
  };
  const auto expected = train(plain);
  const auto results = train(overlapped);
  expect_ok_and_equal(expected);
  expect_ok_and_equal(results);
  EXPECT_EQ(results[0].parameters, expected[0].parameters);
  for (const Verdict& verdict : results[0].verdicts) {
    EXPECT_FALSE(verdict.diverged);
  }
}

TEST(Overlap, ACheckpointInTheMiddleHoldsTheNewParameters) {
  const ScratchFolder folder;
  GroupOptions group;
  group.tune = [](auto& options) { options.overlap = true; };
  const auto undisturbed = train(group);
  expect_ok_and_equal(undisturbed);
  GroupOptions first = group;
  first.adjust = [&](AgentOptions& agent) { agent.checkpoint_root = folder.path(); };
  first.on_step = [](StepContext& context) {
    if (context.step == 5) {
      context.agent.request_preemption();
    }
  };
  expect_ok_and_equal(train(first));
  const auto saved = checkpoint::newest_verified(folder.path(), "unit");
  ASSERT_TRUE(saved.ok()) << saved.status().to_string();
  GroupOptions second = group;
  second.adjust = [&](AgentOptions& agent) {
    agent.identity.generation = Generation{2};
    agent.resume_from = saved->path;
  };
  const auto resumed = train(second);
  expect_ok_and_equal(resumed);
  EXPECT_EQ(resumed[0].parameters, undisturbed[0].parameters);
}

}  // namespace
}  // namespace muster::agent
