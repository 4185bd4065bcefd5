// The implementation behind Optimizer::create.
#pragma once

#include "src/expert_position.h"
#include "src/region.h"
#include "src/routing.h"
#include "src/shard.h"
#include "src/update.h"

#include <muster/optimizer/optimizer.h>

#include <map>
#include <string>
#include <vector>

namespace muster::optimizer {

class Zero1Optimizer final : public Optimizer {
 public:
  // `regions` hold every parameter of `routing` exactly once.
  Zero1Optimizer(
      Routing routing,
      OptimizerOptions options,
      std::vector<Region> regions,
      ExpertPosition expert_position);

  std::span<Parameter> parameters() override { return parameters_; }

  Parameter* find(std::string_view name) override;

  [[nodiscard]] const std::vector<std::string>& group_names() const override {
    return routing_.group_names;
  }

  [[nodiscard]] const OptimizerOptions& options() const override { return options_; }

  [[nodiscard]] std::int64_t applied_steps() const override { return applied_steps_; }

  void set_applied_steps(std::int64_t steps) override { applied_steps_ = steps; }

  Status reduce_gradients(Deadline deadline) override;
  LocalStatistics local_statistics() override;
  void apply(const StepDecision& decision) override;
  Status scale_heads(std::span<const HeadScale> scales) override;
  Status gather_parameters(Deadline deadline) override;
  void zero_gradients() override;

  [[nodiscard]] std::span<const GroupUpdateStatistics> update_statistics() const override {
    return update_statistics_;
  }

  [[nodiscard]] std::uint64_t replica_digest() const override;
  std::vector<StateTensor> state() override;
  [[nodiscard]] std::string describe_plan() const override;

 private:
  void adopt(const Region& region);
  [[nodiscard]] Expected<std::size_t> checked_rows(const HeadScale& scale) const;
  [[nodiscard]] StateTensor place(const Shard& shard) const;

  Routing routing_;
  OptimizerOptions options_;
  std::vector<Region> regions_;
  ExpertPosition expert_position_;
  std::vector<std::array<double, 3>> coefficients_;
  std::vector<Parameter> parameters_;
  std::map<std::string, std::size_t, std::less<>> index_of_;
  std::vector<Shard> shards_;
  MuonScratch scratch_;
  std::vector<GroupUpdateStatistics> update_statistics_;
  std::int64_t applied_steps_{0};
  std::int64_t nonfinite_before_reduction_{0};
};

}  // namespace muster::optimizer
