// The ZeRO-1 optimizer: owns parameter and gradient storage, reduces gradients to their owner,
// updates the local shard and gathers the new values.
//
// One step, in this order (the agent does it; `decide` in agent/ makes the decision):
//   reduce_gradients()   reduce-scatter of every region
//   local_statistics()   sums over the elements this rank owns, of raw gradients
//   [verdict over all ranks]
//   apply(decision)      update of the local shard, or nothing at all when skipped
//   scale_heads(...)     QK-clip, after an applied update only
//   gather_parameters()  all-gather
//   zero_gradients()
//
// Layout (docs/optimizers.md): AdamW parameters lie concatenated and are cut into equal flat
// shards; Muon matrices stay whole and go to the rank that longest-processing-time bin packing on
// Newton-Schulz cost gives them. Each (placement, rule) pair is one region with one
// reduce-scatter and one all-gather over the ranks that hold it. The plan is a pure function of the
// specs, so all ranks compute the same; its hash is compared at creation.
//
// Thread-safety: none; the training thread owns it.
#pragma once

#include <muster/comm/communicator.h>
#include <muster/optimizer/options.h>
#include <muster/optimizer/parameter.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace muster::optimizer {

// Sums over the gradient elements this rank owns, before any scaling. SUM over ranks gives the
// global value: every element is owned by exactly one rank.
struct LocalStatistics {
  std::vector<double> squared_norm;  // [groups]
  std::int64_t nonfinite_count{0};   // NaN and +-Inf gradients, this rank's *local* gradients
                                     // before the reduction included.
};

// What the verdict tells the optimizer. Identical on all ranks.
struct StepDecision {
  bool skip{false};
  double gradient_scale{1.0};  // 1 / tokens of the step, over all ranks and micro-batches.
  double clip_factor{1.0};     // min(1, clip_norm / norm), applied after gradient_scale.
  double learning_rate{0.0};
};

// Per group, from inside the update pass, of the elements this rank owns. SUM over ranks where it
// says sum, MAX where it says max. All zero after a skipped step.
struct GroupUpdateStatistics {
  std::int64_t element_count{0};
  double update_squared_sum{0};     // of the applied delta without decay, learning rate included
  double parameter_squared_sum{0};  // after the update
  double parameter_abs_max{0};
  double momentum_squared_sum{0};  // Adam m, Muon momentum
  double momentum_sum{0};
  double momentum_abs_max{0};
  double second_moment_sum{0};  // Adam v; 0 for Muon groups
  double second_moment_squared_sum{0};
  double second_moment_abs_max{0};
};

// One named piece of state for the checkpoint. `global_shape`, `offset` say where the local piece
// lies in the whole tensor; flat pieces have rank 1.
struct StateTensor {
  std::string name;  // e.g. "param/layers.0.attention.wq", "adamw_m/...", "muon_momentum/..."
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> global_shape;
  std::vector<std::int64_t> offset;
  std::span<float> data;
};

// Rows of a query or key projection that belong to one attention head, and the factor they get.
struct HeadScale {
  std::string parameter;  // [rows, cols], rows grouped by head
  std::int64_t row_begin{0};
  std::int64_t row_end{0};
  double factor{1.0};
};

class Optimizer {
 public:
  // Collective. `world` and `expert_peers` (the ranks that hold the same experts, this one
  // included; may be null without expert parameters) must outlive the optimizer. Errors: a
  // parameter without a route or a Muon route on a vector (named), duplicate names, ranks whose
  // plans differ.
  [[nodiscard]] static Expected<std::unique_ptr<Optimizer>> create(
      std::vector<ParameterSpec> specs,
      OptimizerOptions options,
      comm::Communicator& world,
      comm::Communicator* expert_peers,
      Deadline deadline);

  Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;
  Optimizer(Optimizer&&) = delete;
  Optimizer& operator=(Optimizer&&) = delete;
  virtual ~Optimizer() = default;

  // In the order of `specs`.
  [[nodiscard]] virtual std::span<Parameter> parameters() = 0;
  // Null when there is no such parameter.
  [[nodiscard]] virtual Parameter* find(std::string_view name) = 0;
  [[nodiscard]] virtual const std::vector<std::string>& group_names() const = 0;
  [[nodiscard]] virtual const OptimizerOptions& options() const = 0;

  // Applied (not skipped) updates so far; the t of AdamW's bias correction.
  [[nodiscard]] virtual std::int64_t applied_steps() const = 0;
  virtual void set_applied_steps(std::int64_t steps) = 0;

  [[nodiscard]] virtual Status reduce_gradients(Deadline deadline) = 0;
  [[nodiscard]] virtual LocalStatistics local_statistics() = 0;
  // Never communicates. When `decision.skip`, nothing changes, bit for bit.
  virtual void apply(const StepDecision& decision) = 0;
  // Multiplies rows this rank owns; rows of other ranks arrive with gather_parameters.
  [[nodiscard]] virtual Status scale_heads(std::span<const HeadScale> scales) = 0;
  [[nodiscard]] virtual Status gather_parameters(Deadline deadline) = 0;
  virtual void zero_gradients() = 0;

  // [groups], of the last apply.
  [[nodiscard]] virtual std::span<const GroupUpdateStatistics> update_statistics() const = 0;

  // A 52-bit digest of all values of replicated parameters as this rank sees them: equal on all
  // ranks unless replicas diverged. 52 bits survive a double lane exactly.
  [[nodiscard]] virtual std::uint64_t replica_digest() const = 0;

  // The local shard: parameters and states. Spans are valid for the optimizer's life. After writing
  // into them (restore) call gather_parameters.
  [[nodiscard]] virtual std::vector<StateTensor> state() = 0;

  // The layout as text for people: bytes and Newton-Schulz flops per rank and region.
  [[nodiscard]] virtual std::string describe_plan() const = 0;
};

}  // namespace muster::optimizer
