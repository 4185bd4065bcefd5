// The memory of one region and its collectives.
//
// Thread-safety: none. The communicators must outlive it and own its memory.
#pragma once

#include "src/layout.h"

#include <muster/comm/communicator.h>

#include <span>

namespace muster::optimizer {

class Region {
 public:
  // Collective over `memory`, which owns the buffers; reductions run over `holders`.
  [[nodiscard]] static Expected<Region> create(
      RegionPlan plan, comm::Communicator& memory, comm::Communicator& holders, Deadline deadline);

  [[nodiscard]] Status reduce_gradients(Deadline deadline);
  [[nodiscard]] Status gather_values(Deadline deadline);

  [[nodiscard]] const RegionPlan& plan() const { return plan_; }

  [[nodiscard]] comm::Communicator& holders() const { return *holders_; }

  [[nodiscard]] std::span<float> values() const { return values_; }

  [[nodiscard]] std::span<float> gradients() const { return gradients_; }

 private:
  Region(RegionPlan plan, comm::Communicator& holders)
      : plan_(std::move(plan)), holders_(&holders) {}

  RegionPlan plan_;
  comm::Communicator* holders_;
  std::span<float> values_;
  std::span<float> gradients_;
};

}  // namespace muster::optimizer
