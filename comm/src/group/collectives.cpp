// SPDX-License-Identifier: Apache-2.0
#include "comm/src/group/communicator.h"
#include "comm/src/reduce.h"

#include <algorithm>
#include <cstring>

namespace muster::comm {

namespace {

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0 && to != from) {
    std::memcpy(to, from, bytes);
  }
}

}  // namespace

// --- pieces ---

GroupCommunicator::Rounds GroupCommunicator::plan(
    std::span<const Part> parts, std::size_t staged_window) const {
  std::size_t largest = 0;
  for (const Part& part : parts) {
    largest = std::max(largest, part.size);
  }
  const std::size_t window = any_staged() ? staged_window : std::max<std::size_t>(largest, 1);
  return {(largest + window - 1) / window, window};
}

GroupCommunicator::Part GroupCommunicator::cut(
    const Part& part, const Rounds& rounds, std::size_t round) {
  const std::size_t done = std::min(part.size, round * rounds.window);
  return {part.begin + done, std::min(rounds.window, part.size - done)};
}

std::byte* GroupCommunicator::staging(std::size_t r) const {
  return session_->staging(group_, barrier_.members()[r]);
}

// Bytes of rank r's contribution that begin at `begin`, of which a staged rank shows the current
// window at `stage_at`.
std::byte* GroupCommunicator::reach(std::size_t r, std::size_t begin, std::size_t stage_at) const {
  const CallRecord& call = record(r);
  switch (call.placement) {
    case Placement::kInline:
      return barrier_.block().slots[r].inline_data[call_count_ % 2] + begin;
    case Placement::kDirect:
      return session_->heap().resolve(call.offset) + begin;
    case Placement::kStaged:
      break;
  }
  return staging(r) + stage_at;
}

void GroupCommunicator::stage(const void* data, const Part& piece, std::size_t stage_at) {
  const auto self = static_cast<std::size_t>(rank_);
  if (record(self).placement == Placement::kStaged) {
    copy_bytes(
        staging(self) + stage_at, static_cast<const std::byte*>(data) + piece.begin, piece.size);
  }
}

void GroupCommunicator::unstage(void* data, const Part& piece, std::size_t stage_at) const {
  const auto self = static_cast<std::size_t>(rank_);
  if (record(self).placement == Placement::kStaged) {
    copy_bytes(static_cast<std::byte*>(data) + piece.begin, staging(self) + stage_at, piece.size);
  }
}

void GroupCommunicator::reduce_piece(
    const Part& piece, std::size_t stage_at, std::span<std::byte* const> outputs) {
  const std::byte* sources[kRankMax];
  for (std::size_t r = 0; r < size_; ++r) {
    sources[r] = reach(r, piece.begin, stage_at);
  }
  const CallRecord& call = record(static_cast<std::size_t>(rank_));
  reduce_in_order(std::span{sources, size_}, piece.size, call.dtype, call.op, outputs);
}

std::vector<GroupCommunicator::Part> GroupCommunicator::parts_of(
    std::span<const std::uint64_t> counts, DType dtype) const {
  std::vector<Part> parts;
  std::size_t begin = 0;
  for (const std::uint64_t count : counts) {
    parts.push_back({begin, count * size_bytes(dtype)});
    begin += parts.back().size;
  }
  return parts;
}

// --- all_reduce ---

Status GroupCommunicator::all_reduce_bytes(
    void* data, std::size_t count, DType dtype, ReduceOp op, Deadline deadline) {
  const Presence presence{*this};
  MUSTER_RETURN_IF_ERROR(presence.admission());
  CallRecord& call = begin(CallKind::kAllReduce);
  call.dtype = dtype;
  call.op = op;
  call.count = count;
  const std::size_t bytes = count * size_bytes(dtype);
  if (!is_reducible(dtype)) {
    return refuse(concat("all_reduce: cannot reduce ", dtype));
  }
  if (data == nullptr && count > 0) {
    return refuse("all_reduce: data is null");
  }
  place(call, data, bytes);
  if (call.placement != Placement::kInline) {
    return all_reduce_rounds(static_cast<std::byte*>(data), deadline);
  }
  MUSTER_RETURN_IF_ERROR(enter(deadline));
  auto* output = static_cast<std::byte*>(data);
  reduce_piece({0, bytes}, 0, std::span{&output, 1});
  return {};
}

// Rank r reduces slice r over all ranks and stores the result for all of them.
Status GroupCommunicator::all_reduce_rounds(std::byte* data, Deadline deadline) {
  const CallRecord& call = record(static_cast<std::size_t>(rank_));
  const std::size_t bytes = call.count * size_bytes(call.dtype);
  // Slices end at cache lines, so that no line is written by two ranks.
  const std::size_t slice = ((bytes + size_ - 1) / size_ + 63) / 64 * 64;
  std::vector<Part> parts;
  for (std::size_t r = 0; r < size_; ++r) {
    const std::size_t first = std::min(bytes, r * slice);
    parts.push_back({first, std::min(slice, bytes - first)});
  }
  const std::size_t window = share_of_staging();
  const auto self = static_cast<std::size_t>(rank_);
  const auto for_all_parts = [&](const Rounds& rounds, std::size_t round, auto&& action) {
    for (std::size_t p = 0; p < size_; ++p) {
      action(cut(parts[p], rounds, round), p * window);
    }
  };
  const auto stage_all = [&](const Part& piece, std::size_t at) { stage(data, piece, at); };
  const auto unstage_all = [&](const Part& piece, std::size_t at) { unstage(data, piece, at); };
  for_all_parts(Rounds{1, window}, 0, stage_all);
  MUSTER_RETURN_IF_ERROR(enter(deadline));
  const Rounds rounds = plan(parts, window);
  for (std::size_t round = 0; round < rounds.count; ++round) {
    if (round > 0) {
      for_all_parts(rounds, round, stage_all);
      MUSTER_RETURN_IF_ERROR(synchronize(deadline));
    }
    const Part piece = cut(parts[self], rounds, round);
    std::byte* outputs[kRankMax];
    for (std::size_t r = 0; r < size_; ++r) {
      outputs[r] = reach(r, piece.begin, self * window);
    }
    reduce_piece(piece, self * window, std::span{outputs, size_});
    MUSTER_RETURN_IF_ERROR(synchronize(deadline));
    for_all_parts(rounds, round, unstage_all);
  }
  return {};
}

// --- reduce_scatter ---

Status GroupCommunicator::reduce_scatter_bytes(
    void* data, std::span<const std::size_t> counts, DType dtype, ReduceOp op, Deadline deadline) {
  const Presence presence{*this};
  MUSTER_RETURN_IF_ERROR(presence.admission());
  CallRecord& call = begin(CallKind::kReduceScatter);
  call.dtype = dtype;
  call.op = op;
  if (counts.size() != size_) {
    return refuse("reduce_scatter: needs one count per rank");
  }
  if (!is_reducible(dtype)) {
    return refuse(concat("reduce_scatter: cannot reduce ", dtype));
  }
  std::copy(counts.begin(), counts.end(), call.counts);
  const std::vector<Part> parts = parts_of(counts, dtype);
  const std::size_t bytes = parts.back().begin + parts.back().size;
  if (data == nullptr && bytes > 0) {
    return refuse("reduce_scatter: data is null");
  }
  place(call, data, bytes);
  const std::size_t window = share_of_staging();
  const auto stage_all = [&](const Rounds& rounds, std::size_t round) {
    for (std::size_t p = 0; p < size_; ++p) {
      stage(data, cut(parts[p], rounds, round), p * window);
    }
  };
  stage_all(Rounds{1, window}, 0);
  MUSTER_RETURN_IF_ERROR(enter(deadline));
  const auto self = static_cast<std::size_t>(rank_);
  const Rounds rounds = plan(parts, window);
  const bool is_inline = call.placement == Placement::kInline;
  for (std::size_t round = 0; round < rounds.count; ++round) {
    if (round > 0) {
      stage_all(rounds, round);
      MUSTER_RETURN_IF_ERROR(synchronize(deadline));
    }
    const Part piece = cut(parts[self], rounds, round);
    std::byte* output = static_cast<std::byte*>(data) + piece.begin;
    reduce_piece(piece, self * window, std::span{&output, 1});
    if (!is_inline) {
      MUSTER_RETURN_IF_ERROR(synchronize(deadline));
    }
  }
  return {};
}

// --- all_gather, broadcast ---

Status GroupCommunicator::all_gather_bytes(
    void* data, std::span<const std::size_t> counts, DType dtype, Deadline deadline) {
  const Presence presence{*this};
  MUSTER_RETURN_IF_ERROR(presence.admission());
  CallRecord& call = begin(CallKind::kAllGather);
  call.dtype = dtype;
  if (counts.size() != size_) {
    return refuse("all_gather: needs one count per rank");
  }
  std::copy(counts.begin(), counts.end(), call.counts);
  const std::vector<Part> parts = parts_of(counts, dtype);
  if (data == nullptr && parts.back().begin + parts.back().size > 0) {
    return refuse("all_gather: data is null");
  }
  return gather_parts(static_cast<std::byte*>(data), parts, deadline);
}

Status GroupCommunicator::broadcast_bytes(
    void* data, std::size_t count, DType dtype, int root, Deadline deadline) {
  const Presence presence{*this};
  MUSTER_RETURN_IF_ERROR(presence.admission());
  CallRecord& call = begin(CallKind::kBroadcast);
  call.dtype = dtype;
  call.count = count;
  call.root = root;
  if (root < 0 || root >= size()) {
    return refuse(concat("broadcast: there is no rank ", root));
  }
  if (data == nullptr && count > 0) {
    return refuse("broadcast: data is null");
  }
  std::vector<Part> parts(size_, Part{0, 0});
  parts[static_cast<std::size_t>(root)].size = count * size_bytes(dtype);
  return gather_parts(static_cast<std::byte*>(data), parts, deadline);
}

// Each rank copies the part of rank r from rank r.
Status GroupCommunicator::gather_parts(
    std::byte* data, std::span<const Part> parts, Deadline deadline) {
  const auto self = static_cast<std::size_t>(rank_);
  CallRecord& own = own_slot().records[call_count_ % 2];
  place(own, data + parts[self].begin, parts[self].size);
  stage(data, cut(parts[self], Rounds{1, kStagingBytes}, 0), 0);
  MUSTER_RETURN_IF_ERROR(enter(deadline));
  const Rounds rounds = plan(parts, kStagingBytes);
  const bool inline_only = all_inline();
  for (std::size_t round = 0; round < rounds.count; ++round) {
    if (round > 0) {
      stage(data, cut(parts[self], rounds, round), 0);
      MUSTER_RETURN_IF_ERROR(synchronize(deadline));
    }
    for (std::size_t step = 1; step < size_; ++step) {
      const std::size_t r = (self + step) % size_;  // Not all at the same owner at once.
      const Part piece = cut(parts[r], rounds, round);
      copy_bytes(data + piece.begin, reach(r, piece.begin - parts[r].begin, 0), piece.size);
    }
    if (!inline_only) {
      MUSTER_RETURN_IF_ERROR(synchronize(deadline));
    }
  }
  return {};
}

// --- all_to_all ---

Status GroupCommunicator::all_to_all_bytes(
    const void* send,
    std::span<const std::size_t> send_counts,
    void* receive,
    std::span<const std::size_t> receive_counts,
    DType dtype,
    Deadline deadline) {
  const Presence presence{*this};
  MUSTER_RETURN_IF_ERROR(presence.admission());
  CallRecord& call = begin(CallKind::kAllToAll);
  call.dtype = dtype;
  if (send_counts.size() != size_ || receive_counts.size() != size_) {
    return refuse("all_to_all: needs one send and one receive count per rank");
  }
  std::copy(send_counts.begin(), send_counts.end(), call.counts);
  std::copy(receive_counts.begin(), receive_counts.end(), call.receive_counts);
  const std::size_t send_bytes = begin_bytes(send_counts, size_, dtype);
  const std::size_t receive_bytes = begin_bytes(receive_counts, size_, dtype);
  if ((send == nullptr && send_bytes > 0) || (receive == nullptr && receive_bytes > 0)) {
    return refuse("all_to_all: a buffer is null");
  }
  place(call, send, send_bytes);
  return exchange_rounds(
      static_cast<const std::byte*>(send), static_cast<std::byte*>(receive), deadline);
}

// Receivers fetch: rank r copies part r of every sender.
Status GroupCommunicator::exchange_rounds(
    const std::byte* send, std::byte* receive, Deadline deadline) {
  const auto self = static_cast<std::size_t>(rank_);
  const CallRecord& own = record(self);
  const std::vector<Part> sent = parts_of(std::span{own.counts, size_}, own.dtype);
  const std::size_t window = share_of_staging();
  const auto stage_all = [&](const Rounds& rounds, std::size_t round) {
    for (std::size_t p = 0; p < size_; ++p) {
      stage(send, cut(sent[p], rounds, round), p * window);
    }
  };
  stage_all(Rounds{1, window}, 0);
  MUSTER_RETURN_IF_ERROR(enter(deadline));
  std::vector<Part> all;  // Parts of every sender and receiver: all ranks need the same rounds.
  std::vector<Part> incoming;  // For this rank, placed as the senders have them.
  for (std::size_t r = 0; r < size_; ++r) {
    const std::vector<Part> parts = parts_of(std::span{record(r).counts, size_}, own.dtype);
    all.insert(all.end(), parts.begin(), parts.end());
    incoming.push_back(parts[self]);
  }
  const std::vector<Part> received = parts_of(std::span{own.receive_counts, size_}, own.dtype);
  const Rounds rounds = plan(all, window);
  const bool inline_only = all_inline();
  for (std::size_t round = 0; round < rounds.count; ++round) {
    if (round > 0) {
      stage_all(rounds, round);
      MUSTER_RETURN_IF_ERROR(synchronize(deadline));
    }
    for (std::size_t step = 0; step < size_; ++step) {
      const std::size_t r = (self + step) % size_;
      const Part piece = cut(incoming[r], rounds, round);
      copy_bytes(
          receive + cut(received[r], rounds, round).begin,
          reach(r, piece.begin, self * window),
          piece.size);
    }
    if (!inline_only) {
      MUSTER_RETURN_IF_ERROR(synchronize(deadline));
    }
  }
  return {};
}

}  // namespace muster::comm
