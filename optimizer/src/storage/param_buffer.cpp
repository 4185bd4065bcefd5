#include "optimizer/src/storage/param_buffer.h"

#include <muster/kernels/statistics.h>

#include <map>
#include <string>
#include <utility>

namespace muster::optimizer {

Region::Region(RegionPlan plan, const Routing& routing, const RegionCommunicators& communicators)
    : plan_(std::move(plan)),
      extents_(plan_.segments.size()),
      holders_(communicators.holders),
      buckets_(communicators.buckets) {
  std::map<std::size_t, std::size_t> begin_of;
  for (const PlacedParameter& placed : plan_.placed) {
    begin_of[placed.parameter] = placed.begin;
  }
  for (std::size_t index = 0; index < extents_.size(); ++index) {
    for (const std::size_t parameter : plan_.segments[index].parameters) {
      extents_[index].push_back({begin_of.at(parameter), routing.parameters[parameter].size});
    }
  }
}

namespace {

// Of a region's values or gradients.
Expected<std::span<std::byte>> allocate(
    const RegionKey& key,
    std::size_t bytes,
    comm::Communicator& memory,
    const OptimizerOptions& options,
    Deadline deadline) {
  if (key.placement != Placement::kExpert || !options.expert_memory) {
    return memory.allocate_bytes(bytes, deadline);
  }
  MUSTER_ASSIGN_OR_RETURN(const std::span<std::byte> given, options.expert_memory(bytes));
  if (given.size() < bytes) {
    return invalid_argument(
        "expert_memory gave " + std::to_string(given.size()) + " of " + std::to_string(bytes) +
        " bytes");
  }
  return given.first(bytes);
}

template <typename T>
std::span<T> elements(std::span<std::byte> bytes) {
  return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};  // NOLINT
}

}  // namespace

Expected<Region> Region::create(
    RegionPlan plan,
    const Routing& routing,
    const RegionCommunicators& communicators,
    const OptimizerOptions& options,
    Deadline deadline) {
  Region region{std::move(plan), routing, communicators};
  comm::Communicator& memory = *communicators.memory;
  const RegionKey& key = region.plan_.key;
  const std::size_t size = region.plan_.size;
  const std::size_t width = region.is_narrow() ? sizeof(std::uint16_t) : sizeof(float);
  MUSTER_ASSIGN_OR_RETURN(
      const std::span<std::byte> values, allocate(key, size * width, memory, options, deadline));
  if (region.is_narrow()) {
    region.values16_ = elements<std::uint16_t>(values);
  } else {
    region.values_ = elements<float>(values);
  }
  MUSTER_ASSIGN_OR_RETURN(
      const std::span<std::byte> gradients,
      allocate(key, size * sizeof(float), memory, options, deadline));
  region.gradients_ = elements<float>(gradients);
  return region;
}

Status Region::reduce(std::size_t index, Deadline deadline) {
  if (buckets_->size() == 1) {
    return {};
  }
  const Segment& segment = plan_.segments[index];
  const std::span<float> memory = gradients_.subspan(segment.begin, segment.size);
  return segment.counts.empty()
             ? buckets_->all_reduce(memory, comm::ReduceOp::kSum, deadline)
             : buckets_->reduce_scatter(memory, segment.counts, comm::ReduceOp::kSum, deadline);
}

Status Region::gather(std::size_t index, Deadline deadline) {
  const Segment& segment = plan_.segments[index];
  if (buckets_->size() == 1 || segment.counts.empty()) {
    return {};
  }
  if (!is_narrow()) {
    return buckets_->all_gather(
        values_.subspan(segment.begin, segment.size), segment.counts, deadline);
  }
  std::vector<std::size_t> counts = segment.counts;
  for (std::size_t& count : counts) {
    count *= sizeof(std::uint16_t);
  }
  return buckets_->all_gather_bytes(
      values16_.data() + segment.begin, counts, comm::DType::kUint8, deadline);
}

double Region::ring_bytes(std::size_t elements, std::size_t width) const {
  const auto ranks = static_cast<double>(holders_->size());
  return (ranks - 1) / ranks * static_cast<double>(elements * width);
}

double Region::reduce_bytes(std::size_t index) const {
  const Segment& segment = plan_.segments[index];
  return (segment.counts.empty() ? 2 : 1) * ring_bytes(segment.size, sizeof(float));
}

double Region::gather_bytes(std::size_t index) const {
  const Segment& segment = plan_.segments[index];
  const std::size_t width = is_narrow() ? sizeof(std::uint16_t) : sizeof(float);
  return segment.counts.empty() ? 0 : ring_bytes(segment.size, width);
}

std::int64_t Region::count_nonfinite(std::size_t index) const {
  std::int64_t count = 0;
  for (const Extent& extent : extents_[index]) {
    count +=
        kernels::norm_and_nonfinite(gradients_.subspan(extent.begin, extent.size)).nonfinite_count;
  }
  return count;
}

}  // namespace muster::optimizer
