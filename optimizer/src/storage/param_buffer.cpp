// SPDX-License-Identifier: Apache-2.0
#include "optimizer/src/storage/param_buffer.h"

#include <muster/kernels/statistics.h>

#include <map>
#include <string>
#include <utility>

namespace muster::optimizer {

ParamBuffer::ParamBuffer(
    BufferPlan plan, const Routing& routing, const BufferCommunicators& communicators)
    : plan_(std::move(plan)),
      extents_(plan_.buckets.size()),
      holders_(communicators.holders),
      buckets_(communicators.buckets) {
  std::map<std::size_t, std::size_t> begin_of;
  for (const PlacedParameter& placed : plan_.placed) {
    begin_of[placed.parameter] = placed.begin;
  }
  for (std::size_t index = 0; index < extents_.size(); ++index) {
    for (const std::size_t parameter : plan_.buckets[index].parameters) {
      extents_[index].push_back({begin_of.at(parameter), routing.parameters[parameter].size});
    }
  }
}

namespace {

// Allocates a buffer's values or gradients.
Expected<std::span<std::byte>> allocate(
    const BufferKey& key,
    std::size_t bytes,
    comm::Communicator& memory,
    const OptimizerOptions& options,
    Deadline deadline) {
  if (key.placement != Placement::kExpert || !options.expert_memory) {
    return memory.allocate_bytes(bytes, deadline);
  }
  MUSTER_ASSIGN_OR_RETURN(const std::span<std::byte> given, options.expert_memory(bytes));
  if (given.size() < bytes) {
    return invalid_argument("expert_memory gave ", given.size(), " of ", bytes, " bytes");
  }
  return given.first(bytes);
}

template <typename T>
std::span<T> elements(std::span<std::byte> bytes) {
  return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};  // NOLINT
}

}  // namespace

Expected<ParamBuffer> ParamBuffer::create(
    BufferPlan plan,
    const Routing& routing,
    const BufferCommunicators& communicators,
    const OptimizerOptions& options,
    Deadline deadline) {
  ParamBuffer buffer{std::move(plan), routing, communicators};
  comm::Communicator& memory = *communicators.memory;
  const BufferKey& key = buffer.plan_.key;
  const std::size_t size = buffer.plan_.size;
  const std::size_t width = buffer.is_narrow() ? sizeof(std::uint16_t) : sizeof(float);
  MUSTER_ASSIGN_OR_RETURN(
      const std::span<std::byte> values, allocate(key, size * width, memory, options, deadline));
  if (buffer.is_narrow()) {
    buffer.values16_ = elements<std::uint16_t>(values);
  } else {
    buffer.values_ = elements<float>(values);
  }
  MUSTER_ASSIGN_OR_RETURN(
      const std::span<std::byte> gradients,
      allocate(key, size * sizeof(float), memory, options, deadline));
  buffer.gradients_ = elements<float>(gradients);
  return buffer;
}

Status ParamBuffer::reduce(std::size_t index, Deadline deadline) {
  if (buckets_->size() == 1) {
    return {};
  }
  const Bucket& bucket = plan_.buckets[index];
  const std::span<float> memory = gradients_.subspan(bucket.begin, bucket.size);
  return bucket.counts.empty()
             ? buckets_->all_reduce(memory, comm::ReduceOp::kSum, deadline)
             : buckets_->reduce_scatter(memory, bucket.counts, comm::ReduceOp::kSum, deadline);
}

Status ParamBuffer::gather(std::size_t index, Deadline deadline) {
  const Bucket& bucket = plan_.buckets[index];
  if (buckets_->size() == 1 || bucket.counts.empty()) {
    return {};
  }
  if (!is_narrow()) {
    return buckets_->all_gather(
        values_.subspan(bucket.begin, bucket.size), bucket.counts, deadline);
  }
  std::vector<std::size_t> counts = bucket.counts;
  for (std::size_t& count : counts) {
    count *= sizeof(std::uint16_t);
  }
  return buckets_->all_gather_bytes(
      values16_.data() + bucket.begin, counts, comm::DType::kUint8, deadline);
}

double ParamBuffer::ring_bytes(std::size_t elements, std::size_t width) const {
  const auto ranks = static_cast<double>(holders_->size());
  return (ranks - 1) / ranks * static_cast<double>(elements * width);
}

double ParamBuffer::reduce_bytes(std::size_t index) const {
  const Bucket& bucket = plan_.buckets[index];
  return (bucket.counts.empty() ? 2 : 1) * ring_bytes(bucket.size, sizeof(float));
}

double ParamBuffer::gather_bytes(std::size_t index) const {
  const Bucket& bucket = plan_.buckets[index];
  const std::size_t width = is_narrow() ? sizeof(std::uint16_t) : sizeof(float);
  return bucket.counts.empty() ? 0 : ring_bytes(bucket.size, width);
}

std::int64_t ParamBuffer::count_nonfinite(std::size_t index) const {
  std::int64_t count = 0;
  for (const Extent& extent : extents_[index]) {
    count +=
        kernels::norm_and_nonfinite(gradients_.subspan(extent.begin, extent.size)).nonfinite_count;
  }
  return count;
}

}  // namespace muster::optimizer
