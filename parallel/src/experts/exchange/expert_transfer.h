// SPDX-License-Identifier: Apache-2.0
// Moves experts instead of tokens: weights from their home rank into the slots of a plan, gradients
// from the slots to the home rank.
#pragma once

#include "parallel/src/experts/exchange/validated_barrier.h"

#include <muster/parallel/experts/exchange.h>

#include <cstddef>
#include <cstdint>

namespace muster::parallel::experts {

// Collective and thread-safe like EpExchange, which owns it.
class ExpertTransfer {
 public:
  // `pool` may be null: all operations then return kFailedPrecondition. Adds bytes to `event`. The
  // arguments must outlive the transfer.
  ExpertTransfer(
      comm::SymmetricHeap& heap,
      EpPool* pool,
      const EpExchangeOptions& options,
      ValidatedBarrier& barrier,
      EpEvent& event)
      : heap_(heap), pool_(pool), options_(options), barrier_(barrier), event_(event) {}

  // EpExchange::prefetch and reduce_gradients. `plan_fits` is the refusal of the plan, if any.
  [[nodiscard]] Status prefetch(
      const EpPlan& plan, const EpLayerMemory& layer, const Status& plan_fits, Deadline deadline);
  [[nodiscard]] Status reduce_gradients(
      const EpPlan& plan, const EpLayerMemory& layer, const Status& plan_fits, Deadline deadline);

 private:
  enum class Direction { kToSlots, kToHomes };

  [[nodiscard]] Status check_layer(const EpLayerMemory& layer) const;
  template <typename Visit>
  void for_slots(const EpPlan& plan, const Visit& visit) const;
  template <typename Visit>
  void for_slots_of_own_experts(const EpPlan& plan, const Visit& visit) const;
  void push_weights(const EpLayerMemory& layer, int expert, int peer, int slot);
  void add_gradients(const EpLayerMemory& layer, int expert, int peer, int slot);
  void clear_own_slots(const EpPlan& plan);
  void count_bytes(const EpPlan& plan, std::int64_t element_bytes, Direction direction);

  comm::SymmetricHeap& heap_;
  EpPool* pool_;
  const EpExchangeOptions& options_;
  ValidatedBarrier& barrier_;
  EpEvent& event_;
};

}  // namespace muster::parallel::experts
