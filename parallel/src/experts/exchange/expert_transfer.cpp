// SPDX-License-Identifier: Apache-2.0
#include "parallel/src/experts/exchange/expert_transfer.h"

#include "parallel/src/experts/exchange/rows.h"

#include <muster/common/hash.h>

#include <array>
#include <cstring>
#include <span>

namespace muster::parallel::experts {

namespace {

std::int64_t elements(const EpProjection& projection) {
  return projection.rows * projection.cols;
}

// Hash of plan and layer: ranks must agree on both.
std::uint64_t fingerprint(const EpPlan& plan, const EpLayerMemory& layer) {
  std::uint64_t hash = plan.hash;
  for (const EpProjectionMemory& memory : layer.projections) {
    const std::array<std::uint64_t, 3> words{hash, memory.home_offset, memory.home_gradient_offset};
    hash = hash64(std::as_bytes(std::span{words}));
  }
  return hash;
}

}  // namespace

// Visits (expert, peer, slot) by rank and slot ascending.
template <typename Visit>
void ExpertTransfer::for_slots(const EpPlan& plan, const Visit& visit) const {
  const int slots = options_.shape.slot_count();
  std::size_t cell = 0;
  for (int peer = 0; peer < heap_.size(); ++peer) {
    for (int slot = 0; slot < slots; ++slot) {
      const int expert = plan.slot_experts[cell++];
      if (expert >= 0) {
        visit(expert, peer, slot);
      }
    }
  }
}

template <typename Visit>
void ExpertTransfer::for_slots_of_own_experts(const EpPlan& plan, const Visit& visit) const {
  for_slots(plan, [&](int expert, int peer, int slot) {
    if (expert / options_.shape.local_experts() == heap_.rank()) {
      visit(expert, peer, slot);
    }
  });
}

Status ExpertTransfer::prefetch(
    const EpPlan& plan, const EpLayerMemory& layer, const Status& plan_fits, Deadline deadline) {
  const Status fits = plan_fits.ok() ? check_layer(layer) : plan_fits;
  const Record mine = make_record(Operation::kPrefetch, fingerprint(plan, layer));
  if (options_.entry_barriers) {
    // A peer may still compute with the contents of its slots.
    MUSTER_RETURN_IF_ERROR(barrier_.validate("prefetch, entry", mine, fits, deadline));
  }
  if (fits.ok()) {
    for_slots_of_own_experts(
        plan, [&](int expert, int peer, int slot) { push_weights(layer, expert, peer, slot); });
    finish_copies();
  }
  if (!options_.entry_barriers) {
    MUSTER_RETURN_IF_ERROR(barrier_.validate("prefetch, exit", mine, fits, deadline));
  } else {
    MUSTER_RETURN_IF_ERROR(barrier_.wait("prefetch, exit", deadline));
  }
  count_bytes(plan, size_bytes(pool_->weight_type(), 1), Direction::kToSlots);
  return {};
}

Status ExpertTransfer::reduce_gradients(
    const EpPlan& plan, const EpLayerMemory& layer, const Status& plan_fits, Deadline deadline) {
  Status fits = plan_fits.ok() ? check_layer(layer) : plan_fits;
  if (fits.ok() && pool_->use() == EpPoolUse::kInference) {
    fits = failed_precondition("the pool is for inference: create it with EpPoolUse::kTraining");
  }
  if (fits.ok() && plan.statistics.overflow_groups > 0) {
    fits = failed_precondition(
        plan.statistics.overflow_groups,
        " experts have no slot for their gradients: training needs slots = ",
        options_.shape.local_experts(),
        " (experts / ranks)");
  }
  const Record mine = make_record(Operation::kReduce, fingerprint(plan, layer));
  if (options_.entry_barriers) {
    // A peer may still add to the gradients in its slots.
    MUSTER_RETURN_IF_ERROR(barrier_.validate("reduce, entry", mine, fits, deadline));
  }
  if (fits.ok()) {
    for_slots_of_own_experts(
        plan, [&](int expert, int peer, int slot) { add_gradients(layer, expert, peer, slot); });
  }
  // Home ranks have read the slots; after this each rank may clear its own.
  if (!options_.entry_barriers) {
    MUSTER_RETURN_IF_ERROR(barrier_.validate("reduce, middle", mine, fits, deadline));
  } else {
    MUSTER_RETURN_IF_ERROR(barrier_.wait("reduce, middle", deadline));
  }
  clear_own_slots(plan);
  count_bytes(plan, std::int64_t{sizeof(float)}, Direction::kToHomes);
  return {};
}

Status ExpertTransfer::check_layer(const EpLayerMemory& layer) const {
  if (pool_ == nullptr) {
    return failed_precondition("the exchange has no pool of slots: create it with an EpPool");
  }
  const std::span<const EpProjection> projections = pool_->projections();
  if (layer.projections.size() != projections.size()) {
    return invalid_argument(
        layer.name,
        " has ",
        layer.projections.size(),
        " projections, the pool ",
        projections.size(),
        ": map the layer with this pool");
  }
  const auto local = static_cast<std::size_t>(options_.shape.local_experts());
  for (std::size_t p = 0; p < projections.size(); ++p) {
    const auto count = local * static_cast<std::size_t>(elements(projections[p]));
    const auto weights = count * static_cast<std::size_t>(size_bytes(pool_->weight_type()));
    const EpProjectionMemory& memory = layer.projections[p];
    const std::size_t gradients = pool_->use() == EpPoolUse::kTraining ? count * sizeof(float) : 0;
    if (memory.home_offset + weights > heap_.stride() ||
        memory.home_gradient_offset + gradients > heap_.stride()) {
      return invalid_argument(
          "projection ",
          p,
          " of ",
          layer.name,
          " is outside the heap: map the layer with this pool");
    }
  }
  return {};
}

void ExpertTransfer::push_weights(const EpLayerMemory& layer, int expert, int peer, int slot) {
  const auto local = static_cast<std::size_t>(expert % options_.shape.local_experts());
  const std::span<const EpProjection> projections = pool_->projections();
  for (std::size_t p = 0; p < projections.size(); ++p) {
    const auto bytes =
        static_cast<std::size_t>(size_bytes(pool_->weight_type(), elements(projections[p])));
    std::memcpy(
        pool_->slots(peer, p) + static_cast<std::size_t>(slot) * bytes,
        heap_.pointer(heap_.rank(), layer.projections[p].home_offset) + local * bytes,
        bytes);
  }
}

void ExpertTransfer::add_gradients(const EpLayerMemory& layer, int expert, int peer, int slot) {
  const auto local = static_cast<std::size_t>(expert % options_.shape.local_experts());
  const std::span<const EpProjection> projections = pool_->projections();
  for (std::size_t p = 0; p < projections.size(); ++p) {
    const auto count = static_cast<std::size_t>(elements(projections[p]));
    add(heap_.at<float>(heap_.rank(), layer.projections[p].home_gradient_offset) + local * count,
        pool_->slot_gradients(peer, p) + static_cast<std::size_t>(slot) * count,
        count);
  }
}

void ExpertTransfer::clear_own_slots(const EpPlan& plan) {
  const std::span<const EpProjection> projections = pool_->projections();
  for_slots(plan, [&](int, int peer, int slot) {
    for (std::size_t p = 0; peer == heap_.rank() && p < projections.size(); ++p) {
      const auto count = static_cast<std::size_t>(elements(projections[p]));
      std::memset(
          pool_->slot_gradients(peer, p) + static_cast<std::size_t>(slot) * count,
          0,
          count * sizeof(float));
    }
  });
}

void ExpertTransfer::count_bytes(
    const EpPlan& plan, std::int64_t element_bytes, Direction direction) {
  std::int64_t bytes = 0;
  for (const EpProjection& projection : pool_->projections()) {
    bytes += elements(projection) * element_bytes;
  }
  const bool to_slots = direction == Direction::kToSlots;
  for_slots(plan, [&](int expert, int peer, int) {
    if (expert / options_.shape.local_experts() == heap_.rank()) {
      (to_slots ? event_.bytes_out : event_.bytes_in) += bytes;
    }
    if (peer == heap_.rank()) {
      (to_slots ? event_.bytes_in : event_.bytes_out) += bytes;
    }
  });
}

}  // namespace muster::parallel::experts
