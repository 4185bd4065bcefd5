#include "src/gloo_communicator.h"
#include "src/reduce.h"

#include <gloo/allgatherv.h>
#include <gloo/allreduce.h>
#include <gloo/alltoallv.h>
#include <gloo/broadcast.h>

#include <algorithm>
#include <cstring>

namespace muster::comm {

namespace {

std::uint32_t tag_of(const CallRecord& call) {
  return static_cast<std::uint32_t>(call.index);
}

std::vector<std::int64_t> bytes_per_rank(std::span<const std::size_t> counts, DType dtype) {
  std::vector<std::int64_t> bytes;
  for (const std::size_t count : counts) {
    bytes.push_back(static_cast<std::int64_t>(count * size_bytes(dtype)));
  }
  return bytes;
}

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) {
    std::memmove(to, from, bytes);
  }
}

}  // namespace

// --- all_reduce ---

Status GlooCommunicator::all_reduce_bytes(
    void* data, std::size_t count, DType dtype, ReduceOp op, Deadline deadline) {
  Frame& frame = begin(CallKind::kAllReduce);
  frame.record.count = count;
  frame.record.dtype = dtype;
  frame.record.op = op;
  if (data == nullptr && count > 0) {
    return refuse("all_reduce: data is null");
  }
  const std::size_t bytes = count * size_bytes(dtype);
  place(frame, data, bytes);
  MUSTER_RETURN_IF_ERROR(enter(deadline));
  if (all_inline()) {
    std::vector<const std::byte*> sources;
    for (const Frame& other : frames_) {
      sources.push_back(other.payload);
    }
    auto* output = static_cast<std::byte*>(data);
    reduce_in_order(sources, bytes, dtype, op, std::span{&output, 1});
    return {};
  }
  return guarded(deadline, [&] {
    gloo::AllreduceOptions options{mesh_.context};
    options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
    options.setTag(tag_of(frame.record));
    options.setTimeout(gloo_timeout(deadline));
    // The ring cuts between elements, so it must know their size.
    const auto combine = [dtype, op](void* to, const void* a, const void* b, std::size_t n) {
      const std::byte* sources[] = {
          static_cast<const std::byte*>(a), static_cast<const std::byte*>(b)};
      auto* output = static_cast<std::byte*>(to);
      reduce_in_order(sources, n * size_bytes(dtype), dtype, op, std::span{&output, 1});
    };
    options.setReduceFunction(combine);
    switch (size_bytes(dtype)) {
      case 8:
        options.setOutput(static_cast<std::uint64_t*>(data), count);
        break;
      case 4:
        options.setOutput(static_cast<std::uint32_t*>(data), count);
        break;
      default:
        options.setOutput(static_cast<std::uint8_t*>(data), count);
        break;
    }
    gloo::allreduce(options);
  });
}

// --- reduce_scatter ---

Status GlooCommunicator::reduce_scatter_bytes(
    void* data, std::span<const std::size_t> counts, DType dtype, ReduceOp op, Deadline deadline) {
  Frame& frame = begin(CallKind::kReduceScatter);
  frame.record.dtype = dtype;
  frame.record.op = op;
  if (counts.size() != size_) {
    return refuse("reduce_scatter: needs one count per rank");
  }
  std::copy(counts.begin(), counts.end(), frame.record.counts);
  const std::size_t bytes = begin_bytes(counts, size_, dtype);
  if (data == nullptr && bytes > 0) {
    return refuse("reduce_scatter: data is null");
  }
  place(frame, data, bytes);
  MUSTER_RETURN_IF_ERROR(enter(deadline));
  auto* begin_of_data = static_cast<std::byte*>(data);
  if (!all_inline()) {
    return reduce_parts(begin_of_data, counts, deadline);
  }
  const std::size_t first = begin_bytes(counts, self_, dtype);
  std::vector<const std::byte*> sources;
  for (const Frame& other : frames_) {
    sources.push_back(other.payload + first);
  }
  std::byte* output = begin_of_data + first;
  reduce_in_order(sources, counts[self_] * size_bytes(dtype), dtype, op, std::span{&output, 1});
  return {};
}

// Kept between calls: fresh pages would cost more than the reduction.
std::byte* GlooCommunicator::scratch(std::size_t size) {
  if (size > scratch_size_ || scratch_ == nullptr) {
    scratch_ = std::make_unique_for_overwrite<std::byte[]>(std::max<std::size_t>(size, 1));
    scratch_size_ = size;
  }
  return scratch_.get();
}

// Everybody sends each part to its owner, who reduces in rank order: half the bytes of a full
// all_reduce, and the same result as on one host.
Status GlooCommunicator::reduce_parts(
    std::byte* data, std::span<const std::size_t> counts, Deadline deadline) {
  const CallRecord& call = own().record;
  const std::size_t part = counts[self_] * size_bytes(call.dtype);
  std::byte* received = scratch(part * size_);
  MUSTER_RETURN_IF_ERROR(guarded(deadline, [&] {
    gloo::AlltoallvOptions options{mesh_.context};
    options.setTag(tag_of(call));
    options.setTimeout(gloo_timeout(deadline));
    options.setInput(reinterpret_cast<char*>(data), bytes_per_rank(counts, call.dtype));
    options.setOutput(
        reinterpret_cast<char*>(received),
        std::vector<std::int64_t>(size_, static_cast<std::int64_t>(part)));
    gloo::alltoallv(options);
  }));
  std::vector<const std::byte*> sources;
  for (std::size_t r = 0; r < size_; ++r) {
    sources.push_back(received + r * part);
  }
  std::byte* output = data + begin_bytes(counts, self_, call.dtype);
  reduce_in_order(sources, part, call.dtype, call.op, std::span{&output, 1});
  return {};
}

// --- all_gather, broadcast ---

Status GlooCommunicator::all_gather_bytes(
    void* data, std::span<const std::size_t> counts, DType dtype, Deadline deadline) {
  Frame& frame = begin(CallKind::kAllGather);
  frame.record.dtype = dtype;
  if (counts.size() != size_) {
    return refuse("all_gather: needs one count per rank");
  }
  std::copy(counts.begin(), counts.end(), frame.record.counts);
  if (data == nullptr && begin_bytes(counts, size_, dtype) > 0) {
    return refuse("all_gather: data is null");
  }
  auto* begin_of_data = static_cast<std::byte*>(data);
  place(
      frame, begin_of_data + begin_bytes(counts, self_, dtype), counts[self_] * size_bytes(dtype));
  MUSTER_RETURN_IF_ERROR(enter(deadline));
  if (!all_inline()) {
    return gather_parts(begin_of_data, counts, deadline);
  }
  for (std::size_t r = 0; r < size_; ++r) {
    copy_bytes(
        begin_of_data + begin_bytes(counts, r, dtype),
        frames_[r].payload,
        counts[r] * size_bytes(dtype));
  }
  return {};
}

Status GlooCommunicator::gather_parts(
    std::byte* data, std::span<const std::size_t> counts, Deadline deadline) {
  const CallRecord& call = own().record;
  return guarded(deadline, [&] {
    std::vector<std::size_t> bytes;
    for (const std::size_t count : counts) {
      bytes.push_back(count * size_bytes(call.dtype));
    }
    gloo::AllgathervOptions options{mesh_.context};
    options.setTag(tag_of(call));
    options.setTimeout(gloo_timeout(deadline));
    options.setOutput(reinterpret_cast<char*>(data), bytes);
    gloo::allgatherv(options);
  });
}

Status GlooCommunicator::broadcast_bytes(
    void* data, std::size_t count, DType dtype, int root, Deadline deadline) {
  Frame& frame = begin(CallKind::kBroadcast);
  frame.record.dtype = dtype;
  frame.record.count = count;
  frame.record.root = root;
  if (root < 0 || root >= size()) {
    return refuse("broadcast: there is no rank " + std::to_string(root));
  }
  if (data == nullptr && count > 0) {
    return refuse("broadcast: data is null");
  }
  const std::size_t bytes = count * size_bytes(dtype);
  place(frame, data, bytes);
  MUSTER_RETURN_IF_ERROR(enter(deadline));
  if (all_inline()) {
    copy_bytes(
        static_cast<std::byte*>(data), frames_[static_cast<std::size_t>(root)].payload, bytes);
    return {};
  }
  return guarded(deadline, [&] {
    gloo::BroadcastOptions options{mesh_.context};
    options.setTag(tag_of(frame.record));
    options.setTimeout(gloo_timeout(deadline));
    options.setRoot(root);
    options.setOutput(static_cast<char*>(data), bytes);
    gloo::broadcast(options);
  });
}

// --- all_to_all ---

Status GlooCommunicator::all_to_all_bytes(
    const void* send,
    std::span<const std::size_t> send_counts,
    void* receive,
    std::span<const std::size_t> receive_counts,
    DType dtype,
    Deadline deadline) {
  Frame& frame = begin(CallKind::kAllToAll);
  frame.record.dtype = dtype;
  if (send_counts.size() != size_ || receive_counts.size() != size_) {
    return refuse("all_to_all: needs one send and one receive count per rank");
  }
  std::copy(send_counts.begin(), send_counts.end(), frame.record.counts);
  std::copy(receive_counts.begin(), receive_counts.end(), frame.record.receive_counts);
  const std::size_t send_bytes = begin_bytes(send_counts, size_, dtype);
  const std::size_t receive_bytes = begin_bytes(receive_counts, size_, dtype);
  if ((send == nullptr && send_bytes > 0) || (receive == nullptr && receive_bytes > 0)) {
    return refuse("all_to_all: a buffer is null");
  }
  place(frame, send, send_bytes);
  MUSTER_RETURN_IF_ERROR(enter(deadline));
  auto* output = static_cast<std::byte*>(receive);
  if (!all_inline()) {
    return exchange_parts(static_cast<const std::byte*>(send), output, deadline);
  }
  for (std::size_t r = 0; r < size_; ++r) {
    const std::span sent{frames_[r].record.counts, size_};
    copy_bytes(
        output + begin_bytes(receive_counts, r, dtype),
        frames_[r].payload + begin_bytes(sent, self_, dtype),
        receive_counts[r] * size_bytes(dtype));
  }
  return {};
}

Status GlooCommunicator::exchange_parts(
    const std::byte* send, std::byte* receive, Deadline deadline) {
  const CallRecord& call = own().record;
  return guarded(deadline, [&] {
    gloo::AlltoallvOptions options{mesh_.context};
    options.setTag(tag_of(call));
    options.setTimeout(gloo_timeout(deadline));
    // Gloo reads only, but takes a pointer to non-const.
    options.setInput(
        reinterpret_cast<char*>(const_cast<std::byte*>(send)),
        bytes_per_rank(std::span{call.counts, size_}, call.dtype));
    options.setOutput(
        reinterpret_cast<char*>(receive),
        bytes_per_rank(std::span{call.receive_counts, size_}, call.dtype));
    gloo::alltoallv(options);
  });
}

}  // namespace muster::comm
