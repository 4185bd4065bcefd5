// The metrics an agent publishes: their schema, and the values of one step in the schema's order.
//
// Immutable after construction. `fill` neither allocates nor makes a system call.
#pragma once

#include "agent/src/metrics/layer_columns.h"
#include "agent/src/runtime/phase_stopwatch.h"

#include <muster/agent/agent.h>
#include <muster/common/telemetry.h>

#include <span>
#include <string>
#include <vector>

namespace muster::agent {

// One line of docs/reference/metrics.md.
struct MetricFamily {
  const char* name;
  const char* unit;
  MetricKind kind;
  MetricScope scope;
};

// Every family an agent can publish, in the order of docs/reference/metrics.md.
[[nodiscard]] std::span<const MetricFamily> metric_families();

// A norm and statistics group of the optimizer, and what the rules of its parameters keep.
struct GroupInfo {
  std::string name;
  bool has_second_moment{false};  // Some parameter of it has a v.
  bool has_momentum{true};        // Some parameter of it has an m or a momentum.
  bool has_blocks{false};         // Some parameter of it is orthogonalised.
  double beta2{0};                // Of its v; NaN when its rules have different ones.
};

[[nodiscard]] std::vector<GroupInfo> groups_of(optimizer::Optimizer& optimizer);

// What expert parallelism cost this rank in a step, over layers and passes.
struct EpTimes {
  std::vector<std::chrono::nanoseconds> waits;  // [ranks of the expert group]
  std::chrono::nanoseconds plan{0};
  std::chrono::nanoseconds move{0};
  bool any{false};  // A pass was recorded.

  void add(const parallel::EpEvent& event);
  // The storage stays.
  void clear();
};

// What one step leaves behind.
struct StepFacts {
  const ReducedLanes& lanes;
  const Verdict& verdict;
  double learning_rate{0};
  double previous_learning_rate{0};  // Of the update that lanes.update describes.
  double local_loss{0};              // NaN without tokens.
  bool update_applied{false};        // On this rank, as its optimizer counts.
  std::chrono::nanoseconds step_time{0};
  PhaseStopwatch::Times phases{};
  std::span<const AttentionMode> modes{};  // [attention layers]; empty: the model gave none yet
  const EpTimes* ep{nullptr};              // Null: no pass was recorded.
};

class MetricCatalog {
 public:
  struct Scope {
    bool job{true};            // The job's metrics too; rank 0 sends them.
    bool clips_groups{false};  // Some group has a limit of its own: a clip factor per group.
    bool statistics{true};     // OptimizerOptions::statistics.
  };

  MetricCatalog(const ModelInfo& model, std::vector<GroupInfo> groups, Scope scope);

  [[nodiscard]] const MetricSchema& schema() const { return schema_; }

  // `values` [schema().metrics.size()]; the last one, train_telemetry_seconds, is left to the
  // caller, who still has the clock running.
  void fill(const StepFacts& facts, std::span<float> values) const;

 private:
  void add(const char* name, const std::string& group = "", int layer = -1, int index = -1);
  void add_job_metrics(const ModelInfo& model);
  void add_layer_metrics();
  void add_ep_rank_metrics();
  void add_group_metrics(const GroupInfo& group);

  std::vector<GroupInfo> groups_;
  Scope scope_;
  LayerColumns layers_;
  MetricSchema schema_;
};

}  // namespace muster::agent
