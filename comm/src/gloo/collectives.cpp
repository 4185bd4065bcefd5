// SPDX-License-Identifier: Apache-2.0
#include "comm/src/gloo/communicator.h"
#include "comm/src/reduce.h"

#include <algorithm>
#include <cstring>

namespace muster::comm {

namespace {

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) {
    MUSTER_CHECK(to != nullptr && from != nullptr, "a part with bytes and no memory");
    std::memmove(to, from, bytes);
  }
}

}  // namespace

// --- parts ---

std::vector<GlooCommunicator::Part> GlooCommunicator::parts_of(
    std::span<const std::uint64_t> counts, DType dtype) const {
  std::vector<Part> parts;
  std::size_t begin = 0;
  for (const std::uint64_t count : counts) {
    parts.push_back({begin, count * size_bytes(dtype)});
    begin += parts.back().size;
  }
  return parts;
}

// One slice per rank, cut at multiples of 64 bytes and so between elements.
std::vector<GlooCommunicator::Part> GlooCommunicator::slices_of(std::size_t bytes) const {
  const std::size_t slice = ((bytes + size_ - 1) / size_ + 63) / 64 * 64;
  std::vector<Part> parts;
  for (std::size_t r = 0; r < size_; ++r) {
    const std::size_t begin = std::min(bytes, r * slice);
    parts.push_back({begin, std::min(slice, bytes - begin)});
  }
  return parts;
}

// Kept between calls: fresh pages would cost more than the reduction.
std::byte* GlooCommunicator::scratch(std::size_t size) {
  if (size > scratch_size_ || scratch_ == nullptr) {
    scratch_ = std::make_unique_for_overwrite<std::byte[]>(std::max<std::size_t>(size, 1));
    scratch_size_ = size;
  }
  return scratch_.get();
}

// Each rank sends each part to its owner, which reduces in rank order.
Status GlooCommunicator::reduce_parts(
    std::byte* data, std::span<const Part> parts, Deadline deadline) {
  const Part& mine = parts[self_];
  std::byte* received = scratch(mine.size * size_);
  std::vector<const std::byte*> sources(size_);
  sources[self_] = data + mine.begin;
  std::vector<Piece> outgoing;
  std::vector<Piece> incoming;
  for (std::size_t step = 1; step < size_; ++step) {
    const std::size_t r = (self_ + step) % size_;
    sources[r] = received + r * mine.size;
    if (parts[r].size > 0) {
      outgoing.push_back({r, data + parts[r].begin, parts[r].size});
    }
    if (mine.size > 0) {
      incoming.push_back({r, received + r * mine.size, mine.size});
    }
  }
  MUSTER_RETURN_IF_ERROR(transfer(outgoing, incoming, deadline));
  std::byte* output = data + mine.begin;
  const CallRecord& call = own().record;
  reduce_in_order(sources, mine.size, call.dtype, call.op, std::span{&output, 1});
  return {};
}

// Each rank sends its part to all others.
Status GlooCommunicator::gather_parts(
    std::byte* data, std::span<const Part> parts, Deadline deadline) {
  std::vector<Piece> outgoing;
  std::vector<Piece> incoming;
  for (std::size_t step = 1; step < size_; ++step) {
    const std::size_t r = (self_ + step) % size_;
    if (parts[self_].size > 0) {
      outgoing.push_back({r, data + parts[self_].begin, parts[self_].size});
    }
    if (parts[r].size > 0) {
      incoming.push_back({r, data + parts[r].begin, parts[r].size});
    }
  }
  return transfer(outgoing, incoming, deadline);
}

// The root deals slices out and the others pass them on: the root sends the data once, not once
// per rank.
Status GlooCommunicator::broadcast_slices(
    std::byte* data, std::size_t bytes, std::size_t root, Deadline deadline) {
  const std::vector<Part> slices = slices_of(bytes);
  const auto piece = [&](std::size_t peer, std::size_t slice) {
    return Piece{peer, data + slices[slice].begin, slices[slice].size};
  };
  std::vector<Piece> dealt_out;
  std::vector<Piece> dealt_in;
  std::vector<Piece> outgoing;
  std::vector<Piece> incoming;
  for (std::size_t r = 0; r < size_; ++r) {
    if (r == self_) {
      continue;
    }
    if (self_ == root) {
      dealt_out.push_back(piece(r, r));
      outgoing.push_back(piece(r, root));
    } else {
      incoming.push_back(piece(r, r));
      if (r == root) {
        dealt_in.push_back(piece(root, self_));
      } else {
        outgoing.push_back(piece(r, self_));
      }
    }
  }
  const auto is_empty = [](const Piece& one) { return one.size == 0; };
  for (std::vector<Piece>* list : {&dealt_out, &dealt_in, &outgoing, &incoming}) {
    std::erase_if(*list, is_empty);
  }
  MUSTER_RETURN_IF_ERROR(transfer(dealt_out, dealt_in, deadline));
  return transfer(outgoing, incoming, deadline);
}

Status GlooCommunicator::exchange_parts(std::byte* send, std::byte* receive, Deadline deadline) {
  const CallRecord& call = own().record;
  const std::vector<Part> sent = parts_of(std::span{call.counts, size_}, call.dtype);
  const std::vector<Part> received = parts_of(std::span{call.receive_counts, size_}, call.dtype);
  copy_bytes(receive + received[self_].begin, send + sent[self_].begin, sent[self_].size);
  std::vector<Piece> outgoing;
  std::vector<Piece> incoming;
  for (std::size_t step = 1; step < size_; ++step) {
    const std::size_t r = (self_ + step) % size_;
    if (sent[r].size > 0) {
      outgoing.push_back({r, send + sent[r].begin, sent[r].size});
    }
    if (received[r].size > 0) {
      incoming.push_back({r, receive + received[r].begin, received[r].size});
    }
  }
  return transfer(outgoing, incoming, deadline);
}

// --- the calls ---

Status GlooCommunicator::all_reduce_bytes(
    void* data, std::size_t count, DType dtype, ReduceOp op, Deadline deadline) {
  Frame& frame = begin(CallKind::kAllReduce);
  frame.record.count = count;
  frame.record.dtype = dtype;
  frame.record.op = op;
  if (!is_reducible(dtype)) {
    return refuse(concat("all_reduce: cannot reduce ", dtype));
  }
  if (data == nullptr && count > 0) {
    return refuse("all_reduce: data is null");
  }
  const std::size_t bytes = count * size_bytes(dtype);
  auto* values = static_cast<std::byte*>(data);
  place(frame, data, bytes);
  MUSTER_RETURN_IF_ERROR(enter(deadline));
  if (!all_inline()) {
    const std::vector<Part> slices = slices_of(bytes);
    MUSTER_RETURN_IF_ERROR(reduce_parts(values, slices, deadline));
    return gather_parts(values, slices, deadline);
  }
  std::vector<const std::byte*> sources;
  for (const Frame& other : frames_) {
    sources.push_back(other.payload);
  }
  reduce_in_order(sources, bytes, dtype, op, std::span{&values, 1});
  return {};
}

Status GlooCommunicator::reduce_scatter_bytes(
    void* data, std::span<const std::size_t> counts, DType dtype, ReduceOp op, Deadline deadline) {
  Frame& frame = begin(CallKind::kReduceScatter);
  frame.record.dtype = dtype;
  frame.record.op = op;
  if (counts.size() != size_) {
    return refuse("reduce_scatter: needs one count per rank");
  }
  if (!is_reducible(dtype)) {
    return refuse(concat("reduce_scatter: cannot reduce ", dtype));
  }
  std::copy(counts.begin(), counts.end(), frame.record.counts);
  const std::vector<Part> parts = parts_of(counts, dtype);
  const std::size_t bytes = parts.back().begin + parts.back().size;
  if (data == nullptr && bytes > 0) {
    return refuse("reduce_scatter: data is null");
  }
  auto* values = static_cast<std::byte*>(data);
  place(frame, data, bytes);
  MUSTER_RETURN_IF_ERROR(enter(deadline));
  if (!all_inline()) {
    return reduce_parts(values, parts, deadline);
  }
  std::vector<const std::byte*> sources;
  for (const Frame& other : frames_) {
    sources.push_back(other.payload + parts[self_].begin);
  }
  std::byte* output = values + parts[self_].begin;
  reduce_in_order(sources, parts[self_].size, dtype, op, std::span{&output, 1});
  return {};
}

Status GlooCommunicator::all_gather_bytes(
    void* data, std::span<const std::size_t> counts, DType dtype, Deadline deadline) {
  Frame& frame = begin(CallKind::kAllGather);
  frame.record.dtype = dtype;
  if (counts.size() != size_) {
    return refuse("all_gather: needs one count per rank");
  }
  std::copy(counts.begin(), counts.end(), frame.record.counts);
  const std::vector<Part> parts = parts_of(counts, dtype);
  if (data == nullptr && parts.back().begin + parts.back().size > 0) {
    return refuse("all_gather: data is null");
  }
  auto* values = static_cast<std::byte*>(data);
  place(frame, values + parts[self_].begin, parts[self_].size);
  MUSTER_RETURN_IF_ERROR(enter(deadline));
  if (!all_inline()) {
    return gather_parts(values, parts, deadline);
  }
  for (std::size_t r = 0; r < size_; ++r) {
    copy_bytes(values + parts[r].begin, frames_[r].payload, parts[r].size);
  }
  return {};
}

Status GlooCommunicator::broadcast_bytes(
    void* data, std::size_t count, DType dtype, int root, Deadline deadline) {
  Frame& frame = begin(CallKind::kBroadcast);
  frame.record.dtype = dtype;
  frame.record.count = count;
  frame.record.root = root;
  if (root < 0 || root >= size()) {
    return refuse(concat("broadcast: there is no rank ", root));
  }
  if (data == nullptr && count > 0) {
    return refuse("broadcast: data is null");
  }
  const std::size_t bytes = count * size_bytes(dtype);
  const auto from = static_cast<std::size_t>(root);
  auto* values = static_cast<std::byte*>(data);
  place(frame, data, bytes);
  MUSTER_RETURN_IF_ERROR(enter(deadline));
  if (!all_inline()) {
    return broadcast_slices(values, bytes, from, deadline);
  }
  copy_bytes(values, frames_[from].payload, bytes);
  return {};
}

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
  auto* output = static_cast<std::byte*>(receive);
  place(frame, send, send_bytes);
  MUSTER_RETURN_IF_ERROR(enter(deadline));
  if (!all_inline()) {
    // Gloo only reads it, but takes a pointer to non-const.
    return exchange_parts(
        const_cast<std::byte*>(static_cast<const std::byte*>(send)), output, deadline);
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

}  // namespace muster::comm
