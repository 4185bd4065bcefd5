// SPDX-License-Identifier: Apache-2.0
// The ZeRO-1 optimizer: owns parameter and gradient storage, reduces gradients to their owner,
// updates the local shard and gathers the new values.
//
// One step, in this order (the agent runs it; `decide` in agent/ makes the decision):
// reduce_gradients()   reduce-scatter of every bucket
// local_statistics()   sums of raw gradients over the elements this rank owns
//   [verdict over all ranks]
// apply(decision, ...) update of the local shard; no change when skipped
//   scale_heads(...)     QK-clip, after an applied update only
//   gather_parameters()  all-gather
//   zero_gradients()
//
// Layouts, buffers and buckets: options.h and docs/concepts/zero1_layouts.md. The plan is a pure
// function of the specs (plan.h), so all ranks compute the same one; its hash is compared at
// creation.
//
// Thread-safety: none; the training thread owns it. With options.overlap, a communication thread
// runs the collectives of buckets on separate communicators.
#pragma once

#include <muster/comm/communicator.h>
#include <muster/common/tensor_piece.h>
#include <muster/optimizer/options.h>
#include <muster/optimizer/parameter.h>
#include <muster/optimizer/update_statistics.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace muster::optimizer {

// Sums over the gradient elements this rank owns, before any scaling. Each element has exactly one
// owner, so a SUM over ranks gives the global value.
struct LocalStatistics {
  std::vector<double> squared_norm;  // [groups]
  std::int64_t nonfinite_count{0};   // NaN and +-Inf gradients, including those
                                     // of this rank before the reduction.
};

// The part of a verdict that the optimizer obeys (agent::Verdict extends it). Identical on all
// ranks.
struct StepDecision {
  bool skip{false};
  // 1 / (tokens of the step over all ranks and micro-batches * loss scale)
  double gradient_scale{1.0};
  double clip_factor{1.0};  // min(1, clip_norm / norm), applied after gradient_scale
  double learning_rate{0.0};
  std::vector<double> group_clip_factors;  // [groups] replaces clip_factor unless empty
};

using StateTensor [[deprecated("use muster::TensorPiece")]] = TensorPiece;

// Source of load_state: a checkpoint of any number of ranks in any layout, or memory in tests.
class StateSource {
 public:
  struct Tensor {
    std::string dtype;                       // safetensors name
    std::vector<std::int64_t> global_shape;  // may be flattened to rank 1
  };

  StateSource() = default;
  StateSource(const StateSource&) = delete;
  StateSource& operator=(const StateSource&) = delete;
  StateSource(StateSource&&) = delete;
  StateSource& operator=(StateSource&&) = delete;
  virtual ~StateSource() = default;

  // Null when there is no such tensor or value.
  [[nodiscard]] virtual const Tensor* find(const std::string& name) = 0;
  [[nodiscard]] virtual const std::string* value(const std::string& key) = 0;
  // Reads elements [begin, begin + n) of the flattened global tensor, n from out.size(). kDataLoss
  // when they are damaged or not covered by any piece.
  [[nodiscard]] virtual Status read(
      const std::string& name, std::int64_t begin, std::span<std::byte> out) = 0;
  // All names, to find tensors that nothing loads.
  [[nodiscard]] virtual std::vector<std::string> names() = 0;
};

// Bytes this rank sent in the last step, counted at the call of the communicator with the ring
// formula of plan.h.
struct MovedBytes {
  double reduce_scatter{0};
  double all_gather{0};
  double exchange{0};
  double agc{0};
  std::int64_t collectives{0};
};

// Rows of a query or key projection that belong to one attention head, and their factor.
struct HeadScale {
  std::string parameter;  // [rows, cols], or a bias [rows]; rows grouped by head
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
  // When `decision.skip`, nothing changes, bit for bit, and nothing is sent. Else collective where
  // the layout moves matrices or adaptive clipping needs row norms; the schedule of collectives
  // depends on the plan only, never on gradients. An error is a lost peer.
  [[nodiscard]] virtual Status apply(const StepDecision& decision, Deadline deadline) = 0;
  // Multiplies rows this rank owns, on master and 16-bit copy; rows of other ranks arrive with
  // gather_parameters. Checks everything before it touches anything.
  [[nodiscard]] virtual Status scale_heads(std::span<const HeadScale> scales) = 0;
  [[nodiscard]] virtual Status gather_parameters(Deadline deadline) = 0;
  virtual void zero_gradients() = 0;

  // --- overlap with forward and backward (options.overlap; without it these do nothing) ---
  // Reports that the gradient of parameters()[index] is complete for this step. The reduction of a
  // bucket starts once all its gradients, and those of all earlier buckets, are complete.
  // reduce_gradients starts the rest and waits for all. Local gradients are checked for NaN before
  // they move.
  virtual void gradient_ready(std::size_t index) = 0;
  // Starts gather_parameters in the background; then, before the values of parameters()[index] are
  // read, wait_gathered. gather_parameters waits for all.
  virtual void begin_gather(Deadline deadline) = 0;
  [[nodiscard]] virtual Status wait_gathered(std::size_t index, Deadline deadline) = 0;

  // Writes values [prod(shape)] of parameters()[index] on this rank, rounded to its dtype, and the
  // owned part of the master in full precision. All ranks that hold it must pass the same values.
  [[nodiscard]] virtual Status set_values(std::size_t index, std::span<const float> values) = 0;

  // [groups], from the last apply.
  [[nodiscard]] virtual std::span<const GroupUpdateStatistics> update_statistics() const = 0;

  // A 52-bit digest of all values of replicated parameters as this rank sees them: equal on all
  // ranks unless replicas diverged. 52 bits survive a double lane exactly.
  [[nodiscard]] virtual std::uint64_t replica_digest() const = 0;

  // The pieces this rank saves: fp32 values or masters, and states in their storage type. In every
  // layout each element is saved by exactly one rank. Spans stay valid for the optimizer's life and
  // show its current state.
  [[nodiscard]] virtual std::vector<TensorPiece> state() = 0;
  // Values saved beside the pieces: applied steps, momentum form and mu, rule of every parameter,
  // 8-bit maps. The same on all ranks.
  [[nodiscard]] virtual std::map<std::string, std::string> state_values() const = 0;
  // Loads what state() and state_values() saved on any number of ranks in any layout. Momentum is
  // converted to this optimizer's form, states to this optimizer's storage type (bit for bit when
  // the type is the same). Everything is checked before anything is changed; the error names
  // parameter, shape and remedy. Not collective; gather_parameters must follow.
  [[nodiscard]] virtual Status load_state(StateSource& source) = 0;

  // The layout as text for people (plan.h).
  [[nodiscard]] virtual std::string describe_plan() const = 0;
  [[nodiscard]] virtual const MovedBytes& moved_bytes() const = 0;
  // Newton-Schulz runs of this rank so far, in blocks.
  [[nodiscard]] virtual std::int64_t newton_schulz_calls() const = 0;
};

}  // namespace muster::optimizer
