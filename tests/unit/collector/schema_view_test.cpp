// SPDX-License-Identifier: Apache-2.0
#include "collector/src/schema_view.h"

#include "tests/unit/collector/scripted_client.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace muster::collector {
namespace {

TEST(SchemaView, AssemblesTheJobsViewOfAStep) {
  const SchemaView view{job_schema()};
  const auto seen = view.observe(
      Generation{3},
      job_frame(
          17,
          {.loss = 2.5F,
           .gradient_norm = 0.5F,
           .nonfinite_count = 2,
           .skipped = 1,
           .logit = 44.0F}));
  ASSERT_TRUE(seen.has_value());
  EXPECT_EQ(seen->step, 17);
  EXPECT_EQ(seen->generation, 3);
  EXPECT_DOUBLE_EQ(seen->loss, 2.5);
  EXPECT_DOUBLE_EQ(seen->gradient_norm, 0.5);
  EXPECT_DOUBLE_EQ(seen->nonfinite_count, 2);
  EXPECT_TRUE(seen->skipped);
  EXPECT_DOUBLE_EQ(seen->max_logit, 44.0);
  EXPECT_EQ(seen->max_logit_layer, 0);
  EXPECT_EQ(seen->max_logit_head, 1);
}

TEST(SchemaView, FindsTheLargestLogitBesideNaN) {
  const SchemaView view{job_schema()};
  SampleFrame frame = job_frame(1, {});
  frame.values[5] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_DOUBLE_EQ(view.observe(Generation{1}, frame)->max_logit, 5.0);
  frame.values[4] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(view.observe(Generation{1}, frame)->max_logit));
}

TEST(SchemaView, DoesNotTakeAGroupsNormForTheJobs) {
  MetricSchema schema{{
      {0, "train_grad_norm", "1", MetricKind::kInstant, MetricScope::kJob, -1, -1, "experts"},
      {1, "train_grad_norm", "1", MetricKind::kInstant, MetricScope::kJob, -1, -1, ""},
  }};
  const SchemaView view{schema};
  EXPECT_DOUBLE_EQ(view.observe(Generation{1}, {1, 0, 0, {9.0F, 2.0F}})->gradient_norm, 2.0);
}

TEST(SchemaView, HasNothingToJudgeWithoutLossAndNorm) {
  const SchemaView view{
      {{{0,
         "train_step_seconds",
         "seconds",
         MetricKind::kInstant,
         MetricScope::kRank,
         -1,
         -1,
         ""}}}};
  EXPECT_FALSE(view.observe(Generation{1}, {1, 0, 0, {9.0F}}).has_value());
}

TEST(SchemaView, GathersLayersInOrderAndLeavesWhatIsMissingUnknown) {
  constexpr auto kJob = MetricScope::kJob;
  constexpr auto kInstant = MetricKind::kInstant;
  const SchemaView view{{{
      {0, "train_loss_nats", "nats", kInstant, kJob, -1, -1, ""},
      {1, "train_attn_block_reach", "ratio", kInstant, kJob, 7, -1, ""},
      {2, "train_attn_mode", "1", kInstant, kJob, 7, -1, ""},
      {3, "train_attn_mode", "1", kInstant, kJob, 2, -1, ""},
      {4, "train_ep_rank_imbalance_ratio", "ratio", kInstant, kJob, 3, -1, ""},
  }}};
  const auto seen = view.observe(Generation{1}, {1, 0, 0, {2.0F, 0.25F, 1.0F, 0.0F, 1.5F}});
  ASSERT_TRUE(seen.has_value());
  ASSERT_EQ(seen->attention.size(), 2U);
  EXPECT_EQ(seen->attention[0].layer, 2);
  EXPECT_EQ(seen->attention[0].mode, 0.0);
  EXPECT_TRUE(std::isnan(seen->attention[0].block_reach));
  EXPECT_EQ(seen->attention[1].layer, 7);
  EXPECT_EQ(seen->attention[1].block_reach, 0.25);
  ASSERT_EQ(seen->experts.size(), 1U);
  EXPECT_EQ(seen->experts[0].rank_imbalance, 1.5);
  EXPECT_TRUE(std::isnan(seen->experts[0].maxvio));
}

TEST(SchemaView, ReadsTheRanksRowOfTheWaitMatrix) {
  constexpr auto kRank = MetricScope::kRank;
  constexpr auto kInstant = MetricKind::kInstant;
  const SchemaView view{{{
      {0, "train_ep_wait_seconds", "seconds", kInstant, kRank, -1, 2, ""},
      {1, "train_ep_wait_seconds", "seconds", kInstant, kRank, -1, 1, ""},
      {2, "train_ep_wait_seconds", "seconds", kInstant, kRank, -1, 2'000'000'000, ""},
  }}};
  EXPECT_EQ(view.wait_row({1, 0, 0, {0.5F, 0.25F, 9.0F}}), (std::vector<double>{0, 0.25, 0.5}));
  EXPECT_TRUE(SchemaView{job_schema()}.wait_row(job_frame(1, {})).empty());
}

}  // namespace
}  // namespace muster::collector
