#include "src/region.h"

#include <numeric>

namespace muster::optimizer {
namespace {

std::span<float> memory_of(const Segment& segment, std::span<float> buffer) {
  const std::size_t size =
      std::accumulate(segment.counts.begin(), segment.counts.end(), std::size_t{0});
  return buffer.subspan(segment.begin, size);
}

}  // namespace

Expected<Region> Region::create(
    RegionPlan plan, comm::Communicator& memory, comm::Communicator& holders, Deadline deadline) {
  Region region{std::move(plan), holders};
  const std::size_t size = region.plan_.size;
  MUSTER_ASSIGN_OR_RETURN(region.values_, memory.allocate<float>(size, deadline));
  MUSTER_ASSIGN_OR_RETURN(region.gradients_, memory.allocate<float>(size, deadline));
  return region;
}

Status Region::reduce_gradients(Deadline deadline) {
  if (holders_->size() == 1) {
    return {};
  }
  for (const Segment& segment : plan_.segments) {
    MUSTER_RETURN_IF_ERROR(holders_->reduce_scatter(
        memory_of(segment, gradients_), segment.counts, comm::ReduceOp::kSum, deadline));
  }
  return {};
}

Status Region::gather_values(Deadline deadline) {
  if (holders_->size() == 1) {
    return {};
  }
  for (const Segment& segment : plan_.segments) {
    MUSTER_RETURN_IF_ERROR(
        holders_->all_gather(memory_of(segment, values_), segment.counts, deadline));
  }
  return {};
}

}  // namespace muster::optimizer
