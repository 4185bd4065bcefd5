// SPDX-License-Identifier: Apache-2.0
// The metrics an agent publishes: their schema, and the values of one step in the schema's order.
//
// Immutable after construction. `fill` neither allocates nor makes a system call.
#pragma once

#include "agent/src/metrics/layer_columns.h"
#include "agent/src/metrics/metric.h"
#include "agent/src/metrics/step_facts.h"

#include <muster/agent/agent.h>
#include <muster/common/telemetry.h>

#include <span>
#include <string>
#include <vector>

namespace muster::agent {

// Every family an agent can publish, in the order of docs/reference/metrics.md.
[[nodiscard]] std::span<const MetricFamily> metric_families();

// A norm and statistics group of the optimizer, and the states that the rules of its parameters
// keep.
struct GroupInfo {
  std::string name;
  bool has_second_moment{false};  // some parameter has a v
  bool has_momentum{true};        // some parameter has an m or a momentum
  bool has_blocks{false};         // some parameter is orthogonalised
  double beta2{0};                // of v; NaN if the rules of the group differ
};

[[nodiscard]] std::vector<GroupInfo> groups_of(optimizer::Optimizer& optimizer);

class MetricCatalog {
 public:
  struct Scope {
    bool job{true};            // the job's metrics too; rank 0 sends them
    bool clips_groups{false};  // some group has its own limit: a clip factor per group
    bool statistics{true};     // OptimizerOptions::statistics
  };

  MetricCatalog(const ModelInfo& model, std::vector<GroupInfo> groups, Scope scope);

  [[nodiscard]] const MetricSchema& schema() const { return schema_; }

  // `values` [schema().metrics.size()].
  void fill(const StepSample& sample, std::span<float> values) const;

 private:
  // Visits every table of columns in the order of the schema, except for the last column.
  template <typename Visitor>
  void visit_tables(Visitor& visitor) const;
  template <typename Visitor>
  void visit_attention(Visitor& visitor) const;
  template <typename Visitor>
  void visit_group(Visitor& visitor, std::size_t position) const;

  std::vector<GroupInfo> groups_;
  Scope scope_;
  LayerColumns layers_;
  MetricSchema schema_;
};

}  // namespace muster::agent
