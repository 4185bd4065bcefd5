// Expert weights to the slots of a plan, their gradients home.
#include "parallel/src/experts/exchange/exchange.h"
#include "parallel/src/experts/exchange/rows.h"

#include <muster/common/hash.h>

#include <array>
#include <cstring>
#include <string>

namespace muster::parallel::experts {

namespace {

std::int64_t elements(const EpProjection& projection) {
  return projection.rows * projection.cols;
}

// Of plan and layer: ranks must agree about both.
std::uint64_t hash_of(const EpPlan& plan, const EpLayerMemory& layer) {
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
void Exchange::for_slots(const EpPlan& plan, const Visit& visit) const {
  const int slots = options_.shape.slot_count();
  std::size_t cell = 0;
  for (int peer = 0; peer < ranks_; ++peer) {
    for (int slot = 0; slot < slots; ++slot) {
      const int expert = plan.slot_experts[cell++];
      if (expert >= 0) {
        visit(expert, peer, slot);
      }
    }
  }
}

Status Exchange::prefetch(const EpPlan& plan, const EpLayerMemory& layer, Deadline deadline) {
  const Stopwatch watch{*this, event_.move_ns};
  const Status fits = check_layer(plan, layer);
  const Record mine = record(Operation::kPrefetch, hash_of(plan, layer));
  if (options_.entry_barriers) {
    // A peer may still compute with what its slots hold.
    MUSTER_RETURN_IF_ERROR(meet("prefetch, entry", mine, fits, deadline));
  }
  if (fits.ok()) {
    for_slots(plan, [&](int expert, int peer, int slot) {
      if (expert / options_.shape.local_experts() == rank_) {
        push_expert(layer, expert, peer, slot);
      }
    });
    finish_copies();
  }
  if (!options_.entry_barriers) {
    MUSTER_RETURN_IF_ERROR(meet("prefetch, exit", mine, fits, deadline));
  } else {
    MUSTER_RETURN_IF_ERROR(barrier("prefetch, exit", deadline));
  }
  count_experts(plan, size_bytes(pool_->weight_type()), true);
  return {};
}

Status Exchange::reduce_gradients(
    const EpPlan& plan, const EpLayerMemory& layer, Deadline deadline) {
  const Stopwatch watch{*this, event_.move_ns};
  Status fits = check_layer(plan, layer);
  if (fits.ok() && plan.statistics.overflow_groups > 0) {
    fits = failed_precondition(
        std::to_string(plan.statistics.overflow_groups) +
        " experts have no slot and so no place for gradients: training needs slots = " +
        std::to_string(options_.shape.local_experts()) + " (experts / ranks)");
  }
  const Record mine = record(Operation::kReduce, hash_of(plan, layer));
  if (options_.entry_barriers) {
    // A peer may still add to the gradients of its slots.
    MUSTER_RETURN_IF_ERROR(meet("reduce, entry", mine, fits, deadline));
  }
  if (fits.ok()) {
    for_slots(plan, [&](int expert, int peer, int slot) {
      if (expert / options_.shape.local_experts() == rank_) {
        add_slot_gradients(layer, expert, peer, slot);
      }
    });
  }
  // Homes have read the slots: they are their ranks' to clear.
  if (!options_.entry_barriers) {
    MUSTER_RETURN_IF_ERROR(meet("reduce, middle", mine, fits, deadline));
  } else {
    MUSTER_RETURN_IF_ERROR(barrier("reduce, middle", deadline));
  }
  clear_used_slots(plan);
  count_experts(plan, std::int64_t{sizeof(float)}, false);
  return {};
}

Status Exchange::check_layer(const EpPlan& plan, const EpLayerMemory& layer) const {
  MUSTER_RETURN_IF_ERROR(check_plan_argument(plan));
  if (pool_ == nullptr) {
    return failed_precondition("the exchange has no pool of slots: create it with an EpPool");
  }
  const std::span<const EpProjection> projections = pool_->projections();
  if (layer.projections.size() != projections.size()) {
    return invalid_argument(
        layer.name + " has " + std::to_string(layer.projections.size()) +
        " projections, the pool " + std::to_string(projections.size()) +
        ": map the layer with this pool");
  }
  const auto local = static_cast<std::size_t>(options_.shape.local_experts());
  for (std::size_t p = 0; p < projections.size(); ++p) {
    const auto count = local * static_cast<std::size_t>(elements(projections[p]));
    const auto weights = count * static_cast<std::size_t>(size_bytes(pool_->weight_type()));
    const EpProjectionMemory& memory = layer.projections[p];
    if (memory.home_offset + weights > heap_.stride() ||
        memory.home_gradient_offset + count * sizeof(float) > heap_.stride()) {
      return invalid_argument(
          "projection " + std::to_string(p) + " of " + layer.name +
          " lies outside the heap: map the layer with this pool");
    }
  }
  return {};
}

void Exchange::push_expert(const EpLayerMemory& layer, int expert, int peer, int slot) {
  const auto local = static_cast<std::size_t>(expert % options_.shape.local_experts());
  const std::span<const EpProjection> projections = pool_->projections();
  for (std::size_t p = 0; p < projections.size(); ++p) {
    const auto bytes =
        static_cast<std::size_t>(elements(projections[p]) * size_bytes(pool_->weight_type()));
    std::memcpy(
        pool_->slots(peer, p) + static_cast<std::size_t>(slot) * bytes,
        heap_.pointer(rank_, layer.projections[p].home_offset) + local * bytes,
        bytes);
  }
}

void Exchange::add_slot_gradients(const EpLayerMemory& layer, int expert, int peer, int slot) {
  const auto local = static_cast<std::size_t>(expert % options_.shape.local_experts());
  const std::span<const EpProjection> projections = pool_->projections();
  for (std::size_t p = 0; p < projections.size(); ++p) {
    const auto count = static_cast<std::size_t>(elements(projections[p]));
    add(at<float>(rank_, layer.projections[p].home_gradient_offset) + local * count,
        pool_->slot_gradients(peer, p) + static_cast<std::size_t>(slot) * count,
        count);
  }
}

void Exchange::clear_used_slots(const EpPlan& plan) {
  const std::span<const EpProjection> projections = pool_->projections();
  for_slots(plan, [&](int, int peer, int slot) {
    for (std::size_t p = 0; peer == rank_ && p < projections.size(); ++p) {
      const auto count = static_cast<std::size_t>(elements(projections[p]));
      std::memset(
          pool_->slot_gradients(peer, p) + static_cast<std::size_t>(slot) * count,
          0,
          count * sizeof(float));
    }
  });
}

// Experts leave their home when weights move, and come back as gradients.
void Exchange::count_experts(const EpPlan& plan, std::int64_t element_bytes, bool away) {
  std::int64_t bytes = 0;
  for (const EpProjection& projection : pool_->projections()) {
    bytes += elements(projection) * element_bytes;
  }
  for_slots(plan, [&](int expert, int peer, int) {
    if (expert / options_.shape.local_experts() == rank_) {
      (away ? event_.bytes_out : event_.bytes_in) += bytes;
    }
    if (peer == rank_) {
      (away ? event_.bytes_in : event_.bytes_out) += bytes;
    }
  });
}

}  // namespace muster::parallel::experts
