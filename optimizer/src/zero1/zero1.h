// SPDX-License-Identifier: Apache-2.0
// The implementation behind Optimizer::create.
#pragma once

#include "optimizer/src/guards/agc.h"
#include "optimizer/src/routing/routing.h"
#include "optimizer/src/state/pieces.h"
#include "optimizer/src/storage/buckets.h"
#include "optimizer/src/storage/expert_position.h"
#include "optimizer/src/storage/param_buffer.h"
#include "optimizer/src/storage/shard.h"
#include "optimizer/src/update/matrices.h"

#include <muster/optimizer/optimizer.h>

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace muster::optimizer {

// State prepared by create(): routing, buffers and the ranks that hold them.
struct Zero1Setup {
  Routing routing;
  OptimizerOptions options;
  // Communicators of the communication thread (with overlap). Must outlive the buffers.
  std::vector<std::unique_ptr<comm::Communicator>> communicators;
  std::vector<ParamBuffer> buffers;  // hold every parameter of `routing` exactly once
  ExpertPosition expert_position;
  int world_size{1};
  int expert_ranks{1};  // that share each expert parameter
};

class Zero1Optimizer final : public Optimizer {
 public:
  explicit Zero1Optimizer(Zero1Setup setup);

  std::span<Parameter> parameters() override { return parameters_; }

  Parameter* find(std::string_view name) override;

  [[nodiscard]] const std::vector<std::string>& group_names() const override {
    return setup_.routing.group_names;
  }

  [[nodiscard]] const OptimizerOptions& options() const override { return setup_.options; }

  [[nodiscard]] std::int64_t applied_steps() const override { return applied_steps_; }

  void set_applied_steps(std::int64_t steps) override { applied_steps_ = steps; }

  Status reduce_gradients(Deadline deadline) override;
  LocalStatistics local_statistics() override;
  Status apply(const StepDecision& decision, Deadline deadline) override;
  Status scale_heads(std::span<const HeadScale> scales) override;
  Status gather_parameters(Deadline deadline) override;
  void zero_gradients() override;

  void gradient_ready(std::size_t index) override { buckets_->gradient_ready(index); }

  void begin_gather(Deadline deadline) override { buckets_->begin_gather(deadline); }

  Status wait_gathered(std::size_t index, Deadline deadline) override {
    return buckets_->wait_gathered(index, deadline);
  }

  Status set_values(std::size_t index, std::span<const float> values) override;

  [[nodiscard]] std::span<const GroupUpdateStatistics> update_statistics() const override {
    return update_statistics_;
  }

  [[nodiscard]] std::uint64_t replica_digest() const override;
  std::vector<TensorPiece> state() override;
  [[nodiscard]] std::map<std::string, std::string> state_values() const override;
  Status load_state(StateSource& source) override;
  [[nodiscard]] std::string describe_plan() const override;

  [[nodiscard]] const MovedBytes& moved_bytes() const override { return moved_; }

  [[nodiscard]] std::int64_t newton_schulz_calls() const override {
    return matrices_.newton_schulz_calls();
  }

 private:
  // One buffer with this rank's shards of it.
  struct Part {
    ParamBuffer* buffer;
    std::vector<ShardState> shards;  // in the order of the plan
    MatrixSchedule schedule;
    std::optional<AdaptiveClipper> clipper;
  };

  void adopt(ParamBuffer& buffer);
  [[nodiscard]] ShardState make_shard(const ParamBuffer& buffer, const Shard& range) const;
  [[nodiscard]] Status apply_part(Part& part, const StepDecision& decision, Deadline deadline);
  void update_elements(Part& part, const StepDecision& decision);
  [[nodiscard]] Expected<std::size_t> checked_rows(const HeadScale& scale) const;
  [[nodiscard]] GlobalTensor global_of(std::size_t parameter) const;
  void count_collectives();

  Zero1Setup setup_;
  std::vector<Parameter> parameters_;
  std::map<std::string, std::size_t, std::less<>> index_of_;
  std::vector<Part> parts_;
  std::vector<ShardState*> shard_of_;  // [parameters], null without a shard on this rank
  std::vector<bool> shaped_;           // [parameters], as saved
  MatrixUpdate matrices_;
  std::vector<GroupUpdateStatistics> update_statistics_;
  std::int64_t applied_steps_{0};
  MovedBytes moved_;
  std::int64_t reduce_collectives_{0};
  std::int64_t gather_collectives_{0};
  std::int64_t update_collectives_{0};
  std::unique_ptr<BucketScheduler> buckets_;  // last: its thread uses the buffers
};

}  // namespace muster::optimizer
