// SPDX-License-Identifier: Apache-2.0
#include "agent/src/metrics/catalog.h"

#include "agent/src/metrics/group_metrics.h"
#include "agent/src/metrics/job_metrics.h"
#include "agent/src/metrics/layer_metrics.h"
#include "agent/src/metrics/rank_metrics.h"

#include <muster/common/check.h>

#include <limits>
#include <optional>
#include <string_view>
#include <utility>

namespace muster::agent {
namespace {

// Labels of a column beside its name.
struct Labels {
  std::string_view group{};
  int layer{-1};
};

// Builds the schema: a descriptor per column.
class SchemaBuilder {
 public:
  explicit SchemaBuilder(MetricSchema& schema) : schema_(schema) {}

  void add(const MetricFamily& family, const Labels& labels, int index = -1) {
    MetricDescriptor metric;
    metric.id = static_cast<std::uint32_t>(schema_.metrics.size());
    metric.name = family.name;
    metric.unit = family.unit;
    metric.kind = family.kind;
    metric.scope = family.scope;
    metric.layer = labels.layer;
    metric.index = index;
    metric.group = labels.group;
    schema_.metrics.push_back(std::move(metric));
  }

  template <typename Table, typename MakeView>
  void columns(const Table& table, const Labels& labels, const MakeView& /*make_view*/) {
    for (const auto& metric : table) {
      add(metric.family, labels);
    }
  }

  template <typename Table, typename MakeView>
  void indexed_columns(
      const Table& table, const Labels& labels, int count, const MakeView& /*make_view*/) {
    for (int index = 0; index < count; ++index) {
      for (const auto& metric : table) {
        add(metric.family, labels, index);
      }
    }
  }

 private:
  MetricSchema& schema_;
};

// Fills a row of values, column after column.
class RowFiller {
 public:
  RowFiller(const StepFacts& facts, std::span<float> values) : facts_(facts), values_(values) {}

  template <typename Table, typename MakeView>
  void columns(const Table& table, const Labels& /*labels*/, const MakeView& make_view) {
    const auto& view = make_view(facts_);
    for (const auto& metric : table) {
      put(metric.value(view));
    }
  }

  template <typename Table, typename MakeView>
  void indexed_columns(
      const Table& table, const Labels& /*labels*/, int count, const MakeView& make_view) {
    const auto& view = make_view(facts_);
    for (std::size_t index = 0; index < static_cast<std::size_t>(count); ++index) {
      for (const auto& metric : table) {
        put(metric.value(view, index));
      }
    }
  }

  [[nodiscard]] std::size_t position() const { return next_; }

 private:
  void put(double value) { values_[next_++] = static_cast<float>(value); }

  const StepFacts& facts_;
  std::span<float> values_;
  std::size_t next_{0};
};

const StepFacts& whole_step(const StepFacts& facts) {
  return facts;
}

std::vector<MetricFamily> collect_families() {
  std::vector<MetricFamily> families;
  const auto add = [&families](const auto&... tables) {
    const auto add_table = [&families](const auto& table) {
      for (const auto& metric : table) {
        families.push_back(metric.family);
      }
    };
    (add_table(tables), ...);
  };
  add(kJobMetrics, kLogitMetrics, kModeMetrics, kMobaHeadMetrics, kMobaLayerMetrics);
  add(kBlockShareMetrics, kMoeLayerMetrics, kExpertMetrics, kEpLayerMetrics);
  add(kGroupUpdateMetrics, kMomentumMetrics, kSecondMomentMetrics, kBlockMetrics, kQkClipMetrics);
  add(kStepTimeMetrics, kPhaseMetrics, kRankMetrics, kEpWaitMetrics, kEpTimeMetrics);
  families.push_back(kTelemetrySeconds);
  return families;
}

// beta2 of a rule's v; nullopt for rules without one.
std::optional<double> beta2_of(optimizer::Rule rule, const optimizer::OptimizerOptions& options) {
  switch (rule) {
    case optimizer::Rule::kAdamW:
      return options.adamw.beta2;
    case optimizer::Rule::kAdam:
      return options.adam.beta2;
    case optimizer::Rule::kRmsProp:
      return options.rmsprop.alpha;
    case optimizer::Rule::kMuon:
    case optimizer::Rule::kSgd:
    case optimizer::Rule::kMomentum:
      break;
  }
  return std::nullopt;
}

bool has_momentum(optimizer::Rule rule) {
  return rule != optimizer::Rule::kSgd && rule != optimizer::Rule::kRmsProp;
}

}  // namespace

std::span<const MetricFamily> metric_families() {
  static const std::vector<MetricFamily> kFamilies = collect_families();
  return kFamilies;
}

std::vector<GroupInfo> groups_of(optimizer::Optimizer& optimizer) {
  std::vector<GroupInfo> groups;
  for (const std::string& name : optimizer.group_names()) {
    groups.push_back({name, false, false, false, 0});
  }
  for (const optimizer::Parameter& parameter : optimizer.parameters()) {
    GroupInfo& group = groups[static_cast<std::size_t>(parameter.group_index)];
    const optimizer::Rule rule = parameter.route.rule;
    group.has_momentum = group.has_momentum || has_momentum(rule);
    group.has_blocks = group.has_blocks || rule == optimizer::Rule::kMuon;
    if (const auto beta2 = beta2_of(rule, optimizer.options())) {
      const bool differs = group.has_second_moment && group.beta2 != *beta2;
      group.beta2 = differs ? std::numeric_limits<double>::quiet_NaN() : *beta2;
      group.has_second_moment = true;
    }
  }
  return groups;
}

template <typename Visitor>
void MetricCatalog::visit_attention(Visitor& visitor) const {
  for (std::size_t layer = 0; layers_.modes && layer < layers_.attention_ids.size(); ++layer) {
    visitor.columns(kModeMetrics, {{}, layers_.attention_ids[layer]}, [&](const StepFacts& facts) {
      return ModeView{facts, layer};
    });
  }
  for (std::size_t layer = 0; layer < layers_.moba_heads.size(); ++layer) {
    const int heads = layers_.moba_heads[layer];
    if (heads == 0) {
      continue;
    }
    const Labels labels{{}, layers_.attention_ids[layer]};
    const auto moba = [layer](const StepFacts& facts) -> const MobaLanes& {
      return facts.lanes.moba[layer];
    };
    visitor.indexed_columns(kMobaHeadMetrics, labels, heads, moba);
    visitor.columns(kMobaLayerMetrics, labels, moba);
    visitor.indexed_columns(
        kBlockShareMetrics,
        labels,
        static_cast<int>(MobaLanes::kBins),
        [&](const StepFacts& facts) { return BlockShareView{moba(facts)}; });
  }
}

template <typename Visitor>
void MetricCatalog::visit_group(Visitor& visitor, std::size_t position) const {
  const GroupInfo& group = groups_[position];
  const auto visit = [&](const auto& table) {
    visitor.columns(table, {group.name, -1}, [&](const StepFacts& facts) {
      return GroupView{facts, position, group.beta2};
    });
  };
  visit(kGroupGradientMetrics);
  if (scope_.clips_groups) {
    visit(kGroupClipMetrics);
  }
  if (!scope_.statistics) {
    return;
  }
  visit(kGroupUpdateMetrics);
  if (group.has_momentum) {
    visit(kMomentumMetrics);
  }
  if (group.has_second_moment) {
    visit(kSecondMomentMetrics);
  }
  if (group.has_blocks) {
    visit(kBlockMetrics);
  }
}

template <typename Visitor>
void MetricCatalog::visit_tables(Visitor& visitor) const {
  if (scope_.job) {
    visitor.columns(kJobMetrics, {}, &whole_step);
    for (std::size_t layer = 0; layer < layers_.attention_heads.size(); ++layer) {
      visitor.indexed_columns(
          kLogitMetrics,
          {{}, layers_.attention_ids[layer]},
          layers_.attention_heads[layer],
          [&](const StepFacts& facts) -> const auto& { return facts.lanes.max_logits[layer]; });
    }
    for (std::size_t layer = 0; layer < layers_.experts.size(); ++layer) {
      const Labels labels{{}, static_cast<int>(layer)};
      const auto tokens = [&](const StepFacts& facts) -> const auto& {
        return facts.lanes.expert_counts[layer];
      };
      visitor.columns(kMoeLayerMetrics, labels, tokens);
      visitor.indexed_columns(kExpertMetrics, labels, layers_.experts[layer], tokens);
    }
    visit_attention(visitor);
    for (std::size_t layer = 0; layer < layers_.ep_layers; ++layer) {
      visitor.columns(kEpLayerMetrics, {{}, static_cast<int>(layer)}, [&](const StepFacts& facts) {
        return EpView{facts.lanes.ep[layer], static_cast<double>(layers_.expert_ranks)};
      });
    }
    for (std::size_t group = 0; group < groups_.size(); ++group) {
      visit_group(visitor, group);
    }
    visitor.columns(
        kQkClipMetrics, {}, [](const StepFacts& facts) -> const Verdict& { return facts.verdict; });
  }
  visitor.columns(kStepTimeMetrics, {}, &whole_step);
  for (std::size_t phase = 0; phase < kPhaseCount; ++phase) {
    const auto which = static_cast<Phase>(phase);
    visitor.columns(kPhaseMetrics, {to_string(which), -1}, [&](const StepFacts& facts) {
      return PhaseView{facts, which};
    });
  }
  visitor.columns(kRankMetrics, {}, &whole_step);
  if (layers_.expert_ranks > 0) {
    const auto times = [](const StepFacts& facts) { return EpTimesView{facts}; };
    visitor.indexed_columns(kEpWaitMetrics, {}, layers_.expert_ranks, times);
    visitor.columns(kEpTimeMetrics, {}, times);
  }
}

MetricCatalog::MetricCatalog(const ModelInfo& model, std::vector<GroupInfo> groups, Scope scope)
    : groups_(std::move(groups)), scope_(scope), layers_(layer_columns(model)) {
  SchemaBuilder builder{schema_};
  visit_tables(builder);
  builder.add(kTelemetrySeconds, {});
}

void MetricCatalog::fill(const StepSample& sample, std::span<float> values) const {
  RowFiller filler{sample.facts, values};
  visit_tables(filler);
  MUSTER_CHECK(filler.position() + 1 == values.size(), "values follow the columns of the schema");
  values.back() = static_cast<float>(sample.telemetry_seconds);
}

}  // namespace muster::agent
