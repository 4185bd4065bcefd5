// SPDX-License-Identifier: Apache-2.0
#include "agent/src/metrics/catalog.h"
#include "tests/unit/agent/lane_ranks.h"

#include <muster/common/file.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <sstream>

namespace muster::agent {
namespace {

using namespace std::chrono_literals;

ModelInfo small_model() {
  ModelInfo model;
  model.attention = {{5, 2, 4, "wq", "wk"}};
  model.experts_per_layer = {3};
  return model;
}

// Two attention layers of which one is under block attention, and experts over two ranks.
ModelInfo sparse_model() {
  ModelInfo model = small_model();
  model.attention.push_back({6, 2, 4, "wq", "wk"});
  model.attention_schedule = AttentionSchedule::parse("moba:64,3,last_full=1").value();
  model.expert_ranks = 2;
  return model;
}

MetricCatalog small_catalog(bool job_scope = true) {
  return MetricCatalog{small_model(), {{"hidden"}}, {job_scope, false, true}};
}

// A group whose rules keep everything there is.
GroupInfo full_group(const std::string& name) {
  return {name, true, true, true, 0.75};
}

const char* text(MetricKind kind) {
  switch (kind) {
    case MetricKind::kInstant:
      return "instant";
    case MetricKind::kDelta:
      return "delta";
    case MetricKind::kRatio:
      return "ratio";
    case MetricKind::kRate:
      return "rate";
  }
  return "";
}

std::string documented_row(const MetricFamily& family) {
  return std::string{"| `"} + family.name + "` | " + family.unit + " | " + text(family.kind) +
         " | " + (family.scope == MetricScope::kJob ? "job" : "rank") + " |";
}

// The values of one step by (name, layer, index, group).
class Row {
 public:
  Row(const MetricCatalog& catalog, const StepFacts& facts)
      : schema_(catalog.schema()), values_(schema_.metrics.size()) {
    catalog.fill({.telemetry_seconds = 0.25, .facts = facts}, values_);
  }

  [[nodiscard]] double get(
      const std::string& name,
      const std::string& group = "",
      int layer = -1,
      int index = -1) const {
    for (const MetricDescriptor& metric : schema_.metrics) {
      if (metric.name == name && metric.group == group && metric.layer == layer &&
          metric.index == index) {
        return static_cast<double>(values_[metric.id]);
      }
    }
    ADD_FAILURE() << "no column " << name;
    return 0.0;
  }

 private:
  MetricSchema schema_;
  std::vector<float> values_;
};

TEST(MetricCatalog, PageAndCodeNameTheSameMetrics) {
  const auto page = read_file(MUSTER_METRICS_PAGE);
  ASSERT_TRUE(page.ok()) << page.status().to_string();
  std::vector<std::string> rows;
  std::istringstream lines{*page};
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("| `")) {
      rows.push_back(line);
    }
  }
  const auto families = metric_families();
  ASSERT_EQ(rows.size(), families.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::string expected = documented_row(families[i]);
    EXPECT_EQ(rows[i].substr(0, expected.size()), expected);
  }
}

TEST(MetricCatalog, SchemaHasUniqueColumnsWithTheirPositionsAsIds) {
  const MetricCatalog catalog{
      sparse_model(), {full_group("a"), full_group("b")}, {true, true, true}};
  std::set<std::tuple<std::string, int, int, std::string>> seen;
  for (std::size_t i = 0; i < catalog.schema().metrics.size(); ++i) {
    const MetricDescriptor& metric = catalog.schema().metrics[i];
    EXPECT_EQ(metric.id, i);
    EXPECT_TRUE(seen.emplace(metric.name, metric.layer, metric.index, metric.group).second);
  }
  std::set<std::string> names;
  for (const auto& column : seen) {
    names.insert(std::get<0>(column));
  }
  EXPECT_EQ(names.size(), metric_families().size());
}

TEST(MetricCatalog, OtherRanksSendOnlyRankMetrics) {
  const MetricCatalog catalog{sparse_model(), {{"hidden"}}, {false, false, true}};
  for (const MetricDescriptor& metric : catalog.schema().metrics) {
    EXPECT_EQ(metric.scope, MetricScope::kRank);
  }
}

std::set<std::string> names_of(const GroupInfo& group, MetricCatalog::Scope scope) {
  std::set<std::string> names;
  const MetricCatalog catalog{small_model(), {group}, scope};
  for (const MetricDescriptor& metric : catalog.schema().metrics) {
    if (metric.group == group.name) {
      names.insert(metric.name);
    }
  }
  return names;
}

bool any_begins(const std::set<std::string>& names, const std::string& prefix) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return name.starts_with(prefix);
  });
}

TEST(MetricCatalog, GroupsHaveOnlyTheColumnsOfWhatTheirRulesKeep) {
  const std::set<std::string> sgd = names_of({"g", false, false, false, 0}, {});
  EXPECT_FALSE(any_begins(sgd, "train_momentum"));
  EXPECT_FALSE(any_begins(sgd, "train_adam"));
  EXPECT_FALSE(any_begins(sgd, "train_muon"));
  EXPECT_TRUE(any_begins(sgd, "train_update_rms"));
  EXPECT_TRUE(any_begins(names_of({"g", false, true, false, 0}, {}), "train_momentum"));
  EXPECT_TRUE(any_begins(names_of({"g", true, false, false, 0.9}, {}), "train_adam"));
  EXPECT_TRUE(any_begins(names_of({"g", false, true, true, 0}, {}), "train_muon"));
}

TEST(MetricCatalog, GroupsHaveAClipFactorOnlyWhereSomeHaveALimitOfTheirOwn) {
  EXPECT_FALSE(any_begins(names_of(full_group("g"), {true, false, true}), "train_grad_clip"));
  EXPECT_TRUE(any_begins(names_of(full_group("g"), {true, true, true}), "train_grad_clip"));
}

TEST(MetricCatalog, WithoutStatisticsOnlyTheGradientNormsAreLeftOfAGroup) {
  const std::set<std::string> names = names_of(full_group("g"), {true, false, false});
  EXPECT_EQ(names, std::set<std::string>{"train_grad_norm"});
}

TEST(MetricCatalog, ValuesLandUnderTheirNames) {
  LocalLanes rank = healthy_rank();
  rank.update.resize(1);
  rank.update[0].element_count = 4;
  rank.update[0].elements.update_squared_sum = 16.0;
  rank.update[0].elements.parameter_squared_sum = 64.0;
  rank.update[0].elements.momentum_sum = 8.0;
  rank.update[0].elements.momentum_squared_sum = 36.0;
  rank.update[0].elements.parameter_abs_max = 5.0;
  const ReducedLanes lanes = reduce(small_layout(), {rank});
  SharedState state;
  state.qk_clip_threshold = 6.0;
  const Verdict verdict = decide(lanes, {}, DecideOptions{}, state);
  StepFacts facts{lanes, verdict};
  facts.learning_rate = 0.25;
  facts.previous_learning_rate = 0.5;
  facts.local_loss = 2.0;
  facts.update_applied = true;
  facts.step_time = 2s;
  facts.phases[static_cast<std::size_t>(Phase::kReduce)] = 500ms;
  const Row row{small_catalog(), facts};
  EXPECT_EQ(row.get("train_loss_nats"), 2.0);
  EXPECT_FLOAT_EQ(static_cast<float>(row.get("train_grad_norm")), 0.2F);
  EXPECT_FLOAT_EQ(static_cast<float>(row.get("train_grad_norm", "hidden")), 0.2F);
  EXPECT_EQ(row.get("train_lr"), 0.25);
  EXPECT_EQ(row.get("train_tokens_per_second"), 5.0);
  EXPECT_EQ(row.get("train_step_skipped"), 0.0);
  EXPECT_EQ(row.get("train_attn_logit_max", "", 5, 1), 7.0);
  EXPECT_EQ(row.get("train_moe_maxvio_ratio", "", 0), 0.5);
  EXPECT_EQ(row.get("train_moe_expert_tokens", "", 0, 2), 3.0);
  EXPECT_EQ(row.get("train_update_rms", "hidden"), 4.0);
  EXPECT_EQ(row.get("train_update_param_ratio", "hidden"), 0.5);
  EXPECT_EQ(row.get("train_param_norm", "hidden"), 8.0);
  EXPECT_EQ(row.get("train_param_abs_max", "hidden"), 5.0);
  EXPECT_EQ(row.get("train_momentum_norm", "hidden"), 6.0);
  EXPECT_EQ(row.get("train_momentum_mean", "hidden"), 2.0);
  EXPECT_EQ(row.get("train_momentum_variance", "hidden"), 5.0);
  EXPECT_EQ(row.get("train_qkclip_heads"), 1.0);
  EXPECT_EQ(row.get("train_step_seconds"), 2.0);
  EXPECT_EQ(row.get("train_phase_seconds", "reduce"), 0.5);
  EXPECT_EQ(row.get("train_compute_seconds"), 1.5);
  EXPECT_EQ(row.get("train_loss_local_nats"), 2.0);
  EXPECT_EQ(row.get("train_update_applied"), 1.0);
}

// Two elements of one AdamW parameter and two matrices, of which one had a NaN.
TEST(MetricCatalog, StatesAreDescribedByTheirSums) {
  LocalLanes rank = healthy_rank();
  rank.update.resize(1);
  optimizer::GroupUpdateStatistics& update = rank.update[0];
  update.element_count = 2;
  update.elements.update_abs_max = 3.0;
  update.elements.momentum_abs_max = 1.75;
  update.elements.second_moment_abs_max = 2.25;
  update.elements.second_moment_squared_sum = 5.0;
  update.elements.momentum_squared_sum = 4.0;
  update.elements.gradient_squared_sum = 9.0;
  update.elements.momentum_gradient_sum = -3.0;
  update.elements.second_moment_sum = 3.0;
  update.elements.second_moment_before_sum = 4.0;
  update.elements.staleness_sum = 8.0;
  update.elements.second_moment_tiny_count = 1;
  update.elements.momentum_code_change_sum = 8.0;
  update.elements.momentum_code_motion_sum = 6.0;
  update.elements.second_moment_code_change_sum = 8.0;
  update.elements.second_moment_code_motion_sum = 1.0;
  update.elements.withheld_count = 3;
  update.blocks.block_count = 2;
  update.blocks.direction_norm_sum = 10.0;
  update.blocks.effective_rank_sum = 1.5;
  update.blocks.effective_rank_min = 0.5;
  update.blocks.orthogonality_error_sum = 0.5;
  update.blocks.orthogonality_error_max = 0.375;
  update.blocks.nonfinite_blocks = 1;
  update.blocks.recomputed_blocks = 2;
  const ReducedLanes lanes = reduce(small_layout(), {rank});
  SharedState state;
  const Verdict verdict = decide(lanes, {}, DecideOptions{}, state);
  StepFacts facts{lanes, verdict};
  facts.previous_learning_rate = 0.5;
  const Row row{MetricCatalog{small_model(), {full_group("hidden")}, {}}, facts};
  EXPECT_EQ(row.get("train_update_abs_max", "hidden"), 6.0);
  EXPECT_EQ(row.get("train_momentum_gradient_cosine", "hidden"), -0.5);
  EXPECT_EQ(row.get("train_momentum_abs_max", "hidden"), 1.75);
  EXPECT_EQ(row.get("train_momentum_stuck_ratio", "hidden"), 0.25);
  EXPECT_EQ(row.get("train_adam_v_stuck_ratio", "hidden"), 0.875);
  EXPECT_EQ(row.get("train_update_withheld", "hidden"), 3.0);
  EXPECT_EQ(row.get("train_adam_v_mean", "hidden"), 1.5);
  EXPECT_EQ(row.get("train_adam_v_variance", "hidden"), 0.25);
  EXPECT_EQ(row.get("train_adam_v_abs_max", "hidden"), 2.25);
  EXPECT_EQ(row.get("train_adam_v_tiny_ratio", "hidden"), 0.5);
  EXPECT_FLOAT_EQ(  // The mean of v shrank by beta2 = 3/4: nothing came in.
      static_cast<float>(row.get("train_adam_v_decay_saturation", "hidden")),
      1.0F);
  EXPECT_EQ(row.get("train_adam_rms_t", "hidden"), 2.0);
  EXPECT_EQ(row.get("train_adam_staleness_ratio", "hidden"), 1.0);
  EXPECT_EQ(row.get("train_muon_direction_norm", "hidden"), 5.0);
  EXPECT_EQ(row.get("train_muon_effective_rank_ratio", "hidden"), 0.75);
  EXPECT_EQ(row.get("train_muon_effective_rank_min_ratio", "hidden"), 0.5);
  EXPECT_EQ(row.get("train_muon_orthogonality_error", "hidden"), 0.25);
  EXPECT_EQ(row.get("train_muon_orthogonality_error_max", "hidden"), 0.375);
  EXPECT_EQ(row.get("train_muon_nonfinite_blocks", "hidden"), 1.0);
  EXPECT_EQ(row.get("train_muon_recomputed_blocks", "hidden"), 2.0);
}

// The maxima of one damaged rank, among healthy ones with larger values.
TEST(MetricCatalog, NanMaximaOfOneRankShowAsNan) {
  LocalLanes healthy = healthy_rank();
  healthy.update.resize(1);
  healthy.update[0].element_count = 2;
  healthy.update[0].blocks.block_count = 1;
  LocalLanes damaged = healthy;
  damaged.update[0].elements.update_abs_max = std::nan("");
  damaged.update[0].elements.parameter_abs_max = std::nan("");
  damaged.update[0].elements.momentum_abs_max = std::nan("");
  damaged.update[0].elements.second_moment_abs_max = std::nan("");
  damaged.update[0].blocks.effective_rank_min = std::nan("");
  damaged.update[0].blocks.orthogonality_error_max = std::nan("");
  const ReducedLanes lanes = reduce(small_layout(), {healthy, damaged, healthy});
  SharedState state;
  const Verdict verdict = decide(lanes, {}, DecideOptions{}, state);
  EXPECT_FALSE(verdict.skip);
  StepFacts facts{lanes, verdict};
  facts.previous_learning_rate = 0.5;
  const Row row{MetricCatalog{small_model(), {full_group("hidden")}, {}}, facts};
  for (const char* name :
       {"train_update_abs_max",
        "train_param_abs_max",
        "train_momentum_abs_max",
        "train_adam_v_abs_max",
        "train_muon_effective_rank_min_ratio",
        "train_muon_orthogonality_error_max"}) {
    EXPECT_TRUE(std::isnan(row.get(name, "hidden"))) << name;
  }
}

TEST(MetricCatalog, AfterASkippedStepNoStateIsDescribed) {
  const ReducedLanes lanes = reduce(small_layout(), {healthy_rank()});
  SharedState state;
  const Verdict verdict = decide(lanes, {}, DecideOptions{}, state);
  const MetricCatalog catalog{small_model(), {full_group("hidden")}, {}};
  const Row row{catalog, StepFacts{lanes, verdict}};
  for (const MetricDescriptor& metric : catalog.schema().metrics) {
    if (metric.group == "hidden" && metric.name != "train_grad_norm") {
      EXPECT_TRUE(std::isnan(row.get(metric.name, "hidden"))) << metric.name;
    }
  }
}

TEST(MetricCatalog, LossScaleAndClipFactorsPerGroupHaveTheirColumns) {
  const ReducedLanes lanes = reduce(small_layout(), {healthy_rank()});
  SharedState state;
  state.guard.loss_scale = 1024;
  DecideOptions options;
  options.group_names = {"hidden"};
  options.clipping.groups = {{"hidden", 1e-6}};
  const Verdict verdict = decide(lanes, {}, options, state);
  const Row row{
      MetricCatalog{small_model(), {full_group("hidden")}, {true, true, true}},
      StepFacts{lanes, verdict}};
  EXPECT_EQ(row.get("train_loss_scale"), 1024.0);
  EXPECT_EQ(row.get("train_grad_clip_ratio"), 1.0);
  EXPECT_LT(row.get("train_grad_clip_ratio", "hidden"), 0.1);
  // 2 / 10 tokens, without the loss scale that is still in the gradient: 2 / (10 * 1024).
  EXPECT_FLOAT_EQ(static_cast<float>(row.get("train_grad_norm")), 0.2F / 1024);
}

TEST(MetricCatalog, NonFiniteStepShowsAsNanWhereItWasNotFinite) {
  LocalLanes bad = healthy_rank();
  bad.loss_sum = std::nan("");
  bad.nonfinite_count = 3;
  bad.max_logits = {};
  const ReducedLanes lanes = reduce(small_layout(), {bad, bad});
  SharedState state;
  const Verdict verdict = decide(lanes, {}, DecideOptions{}, state);
  const Row row{small_catalog(), StepFacts{lanes, verdict}};
  EXPECT_TRUE(std::isnan(row.get("train_loss_nats")));
  EXPECT_TRUE(std::isnan(row.get("train_grad_norm")));
  EXPECT_TRUE(std::isnan(row.get("train_attn_logit_max", "", 5, 0)));
  EXPECT_TRUE(std::isnan(row.get("train_param_norm", "hidden")));
  EXPECT_EQ(row.get("train_nonfinite_count"), 6.0);
  EXPECT_EQ(row.get("train_step_skipped"), 1.0);
}

TEST(MetricCatalog, LayersHaveOnlyTheColumnsOfWhatTheyAre) {
  const auto count = [](const ModelInfo& model, const std::string& prefix, int layer) {
    const MetricCatalog catalog{model, {{"hidden"}}, {}};
    const auto& metrics = catalog.schema().metrics;
    return std::count_if(metrics.begin(), metrics.end(), [&](const MetricDescriptor& metric) {
      return metric.name.starts_with(prefix) && (layer < 0 || metric.layer == layer);
    });
  };
  EXPECT_EQ(count(small_model(), "train_attn_", -1), 2);  // The logits.
  EXPECT_EQ(count(small_model(), "train_moba_", -1), 0);
  EXPECT_EQ(count(small_model(), "train_ep_", -1), 0);
  EXPECT_EQ(count(sparse_model(), "train_attn_mode", -1), 2);
  EXPECT_EQ(count(sparse_model(), "train_moba_block_share", 5), 64);
  EXPECT_EQ(count(sparse_model(), "train_attn_gate_bound", 5), 2);
  EXPECT_EQ(count(sparse_model(), "train_attn_gate_bound", 6), 0);
  EXPECT_EQ(count(sparse_model(), "train_moba_", 6), 0);
  EXPECT_EQ(count(sparse_model(), "train_ep_wait_seconds", -1), 2);
}

LaneLayout sparse_layout() {
  LaneLayout layout = small_layout();
  layout.heads = {2, 2};
  layout.moba_heads = {2, 0};
  layout.ep_layers = 1;
  return layout;
}

LocalLanes sparse_rank() {
  LocalLanes rank = healthy_rank();
  rank.max_logits = {{5.0F, 7.0F}, {1.0F, 2.0F}};
  return rank;
}

TEST(MetricCatalog, BlockAttentionAndExpertParallelismLandUnderTheirNames) {
  LocalLanes rank = sparse_rank();
  rank.moba.resize(2);
  MobaLanes& moba = rank.moba[0];
  moba.gate_bound = {3.0, MobaLanes::kAbsent};
  moba.norm_bound = {9.0, 8.0};
  moba.queries_reached = 1.0;
  moba.queries = 4.0;
  moba.blocks_reached = 3.0;
  moba.reachable_blocks = 4.0;
  moba.sink_share_sum = 1.5;
  moba.sink_share_count = 2.0;
  moba.gate_margin_sum = 1.0;
  moba.gate_margin_count = 2.0;
  moba.block_max_over_mean = 1.5;
  moba.blocks = 3.0;
  moba.bin_counts[0] = 6.0;
  moba.bin_counts[2] = 2.0;
  // Two ranks of one group: figures of their plan are counted twice.
  rank.ep = {{2.5, 3.0, 10.0, 4.0, 16.0, 2.0, 100.0}};
  const ReducedLanes lanes = reduce(sparse_layout(), {rank, rank});
  SharedState state;
  const Verdict verdict = decide(lanes, {}, DecideOptions{}, state);
  EXPECT_FALSE(verdict.skip) << verdict.reason;
  StepFacts facts{lanes, verdict};
  facts.modes = {
      {kernels::MobaOptions{}, AttentionReason::kRule}, {std::nullopt, AttentionReason::kLastFull}};
  facts.ep = EpTimes{{1s, 2s}, 3s, 4s, true};
  const Row row{MetricCatalog{sparse_model(), {{"hidden"}}, {}}, facts};
  EXPECT_EQ(row.get("train_attn_mode", "", 5), 1.0);
  EXPECT_EQ(row.get("train_attn_mode", "", 6), 0.0);
  EXPECT_EQ(row.get("train_attn_gate_bound", "", 5, 0), 3.0);
  EXPECT_TRUE(std::isnan(row.get("train_attn_gate_bound", "", 5, 1)));
  EXPECT_EQ(row.get("train_attn_norm_bound", "", 5, 1), 8.0);
  EXPECT_EQ(row.get("train_attn_nonfinite_rows", "", 5), 0.0);
  EXPECT_EQ(row.get("train_attn_query_reach", "", 5), 0.25);
  EXPECT_EQ(row.get("train_attn_block_reach", "", 5), 0.75);
  EXPECT_EQ(row.get("train_moba_sink_share", "", 5), 0.75);
  EXPECT_EQ(row.get("train_moba_gate_margin", "", 5), 0.5);
  EXPECT_EQ(row.get("train_moba_block_max_over_mean", "", 5), 1.5);
  EXPECT_EQ(row.get("train_moba_block_share", "", 5, 0), 0.75);
  EXPECT_EQ(row.get("train_moba_block_share", "", 5, 1), 0.0);
  EXPECT_TRUE(std::isnan(row.get("train_moba_block_share", "", 5, 3)));
  EXPECT_EQ(row.get("train_ep_rank_imbalance_ratio", "", 0), 2.5);
  EXPECT_EQ(row.get("train_ep_copies", "", 0), 3.0);
  EXPECT_EQ(row.get("train_ep_rows_moved", "", 0), 10.0);
  EXPECT_EQ(row.get("train_ep_pad_ratio", "", 0), 0.25);
  EXPECT_EQ(row.get("train_ep_dedup_ratio", "", 0), 0.75);
  EXPECT_EQ(row.get("train_ep_bytes_out", "", 0), 200.0);
  EXPECT_EQ(row.get("train_ep_wait_seconds", "", -1, 1), 2.0);
  EXPECT_EQ(row.get("train_ep_plan_seconds"), 3.0);
  EXPECT_EQ(row.get("train_ep_move_seconds"), 4.0);
  EXPECT_EQ(row.get("train_telemetry_seconds"), 0.25);
}

TEST(MetricCatalog, WhatNoPassRecordedIsNoNumber) {
  const ReducedLanes lanes = reduce(sparse_layout(), {sparse_rank()});
  SharedState state;
  const Verdict verdict = decide(lanes, {}, DecideOptions{}, state);
  const Row row{MetricCatalog{sparse_model(), {{"hidden"}}, {}}, StepFacts{lanes, verdict}};
  for (const char* name :
       {"train_attn_mode",
        "train_attn_query_reach",
        "train_attn_block_reach",
        "train_moba_sink_share",
        "train_moba_gate_margin",
        "train_moba_block_max_over_mean"}) {
    EXPECT_TRUE(std::isnan(row.get(name, "", 5))) << name;
  }
  EXPECT_TRUE(std::isnan(row.get("train_attn_norm_bound", "", 5, 0)));
  EXPECT_TRUE(std::isnan(row.get("train_moba_block_share", "", 5, 0)));
  EXPECT_TRUE(std::isnan(row.get("train_ep_rank_imbalance_ratio", "", 0)));
  EXPECT_TRUE(std::isnan(row.get("train_ep_dedup_ratio", "", 0)));
  EXPECT_TRUE(std::isnan(row.get("train_ep_wait_seconds", "", -1, 0)));
  EXPECT_EQ(row.get("train_ep_copies", "", 0), 0.0);
}

TEST(PhaseStopwatch, NestedPhasesAreNotCountedTwice) {
  PhaseStopwatch watch;
  const MonotonicTime start{};
  watch.restart(start);
  watch.enter(Phase::kForward, start + 1ms);
  watch.enter(Phase::kExpertComm, start + 3ms);
  watch.leave(start + 7ms);
  watch.leave(start + 8ms);
  const auto times = watch.times(start + 10ms);
  EXPECT_EQ(times[static_cast<std::size_t>(Phase::kForward)], 3ms);
  EXPECT_EQ(times[static_cast<std::size_t>(Phase::kExpertComm)], 4ms);
  EXPECT_EQ(times[static_cast<std::size_t>(Phase::kOther)], 3ms);
}

TEST(PhaseStopwatch, PhasesAddUpToTheStepHoweverDeepTheyNest) {
  PhaseStopwatch watch;
  MonotonicTime now{};
  watch.restart(now);
  for (int depth = 0; depth < 40; ++depth) {
    watch.enter(static_cast<Phase>(depth % 9), now += 1ms);
  }
  for (int depth = 0; depth < 45; ++depth) {
    watch.leave(now += 1ms);
  }
  std::chrono::nanoseconds sum{0};
  for (const auto time : watch.times(now)) {
    sum += time;
  }
  EXPECT_EQ(sum, watch.elapsed(now));
}

}  // namespace
}  // namespace muster::agent
