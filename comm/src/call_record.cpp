// SPDX-License-Identifier: Apache-2.0
#include "comm/src/call_record.h"

#include <algorithm>
#include <numeric>

namespace muster::comm {

std::string_view to_string(CallKind kind) {
  switch (kind) {
    case CallKind::kBarrier:
      return "barrier";
    case CallKind::kAllReduce:
      return "all_reduce";
    case CallKind::kReduceScatter:
      return "reduce_scatter";
    case CallKind::kAllGather:
      return "all_gather";
    case CallKind::kAllToAll:
      return "all_to_all";
    case CallKind::kBroadcast:
      return "broadcast";
    case CallKind::kAllocate:
      return "allocate";
    case CallKind::kSplit:
      return "split";
    case CallKind::kSymmetricHeap:
      return "symmetric_heap";
  }
  return "unknown call";
}

std::string to_string(const CallName& call) {
  return concat(call.kind, " #", call.index);
}

namespace {

std::string list_counts(const CallRecord& call, int size) {
  std::string text = "(";
  for (int r = 0; r < size; ++r) {
    text += concat(r == 0 ? "" : ", ", call.counts[r]);
  }
  return text + ")";
}

bool agree(const CallRecord& a, const CallRecord& b, std::size_t size) {
  if (a.index != b.index || a.kind != b.kind) {
    return false;
  }
  switch (a.kind) {
    case CallKind::kBarrier:
    case CallKind::kAllocate:
    case CallKind::kSplit:
      return true;
    case CallKind::kSymmetricHeap:
      return a.count == b.count;
    case CallKind::kAllReduce:
      return a.dtype == b.dtype && a.op == b.op && a.count == b.count;
    case CallKind::kBroadcast:
      return a.dtype == b.dtype && a.root == b.root && a.count == b.count;
    case CallKind::kReduceScatter:
      return a.dtype == b.dtype && a.op == b.op && std::equal(a.counts, a.counts + size, b.counts);
    case CallKind::kAllGather:
      return a.dtype == b.dtype && std::equal(a.counts, a.counts + size, b.counts);
    case CallKind::kAllToAll:
      return a.dtype == b.dtype;
  }
  return false;
}

bool agree_on_exchange(const CallRecord& from, const CallRecord& to, std::size_t f, std::size_t t) {
  return from.counts[t] == to.receive_counts[f];
}

}  // namespace

std::string describe(const CallRecord& call, int size) {
  std::string text{to_string(call.kind)};
  const bool reduces = call.kind == CallKind::kAllReduce || call.kind == CallKind::kReduceScatter;
  if (reduces) {
    text += call.op == ReduceOp::kSum ? "(sum)" : "(max)";
  }
  switch (call.kind) {
    case CallKind::kBarrier:
    case CallKind::kAllocate:
    case CallKind::kSplit:
      return text;
    case CallKind::kSymmetricHeap:
      return concat(text, " of ", call.count, " bytes");
    case CallKind::kAllReduce:
      return concat(text, " of ", call.count, " ", call.dtype);
    case CallKind::kBroadcast:
      return concat(text, " of ", call.count, " ", call.dtype, " from rank ", call.root);
    case CallKind::kReduceScatter:
    case CallKind::kAllGather:
    case CallKind::kAllToAll:
      break;
  }
  return concat(text, " of ", list_counts(call, size), " ", call.dtype);
}

bool is_agreed(std::span<const CallRecord* const> calls) {
  for (const CallRecord* call : calls.subspan(1)) {
    if (!agree(*calls[0], *call, calls.size())) {
      return false;
    }
  }
  if (calls[0]->kind != CallKind::kAllToAll) {
    return true;
  }
  for (std::size_t from = 0; from < calls.size(); ++from) {
    for (std::size_t to = 0; to < calls.size(); ++to) {
      if (!agree_on_exchange(*calls[from], *calls[to], from, to)) {
        return false;
      }
    }
  }
  return true;
}

Status disagreement(std::span<const CallRecord* const> calls, std::span<const std::string> names) {
  const int size = static_cast<int>(calls.size());
  const auto name_call = [&](std::size_t r) {
    return concat(names[r], " calls ", describe(*calls[r], size), " as #", calls[r]->index);
  };
  for (std::size_t r = 1; r < calls.size(); ++r) {
    if (!agree(*calls[0], *calls[r], calls.size())) {
      return invalid_argument(
          "ranks disagree: ",
          name_call(0),
          ", ",
          name_call(r),
          "; all ranks must make the same calls in the same order");
    }
  }
  for (std::size_t from = 0; from < calls.size(); ++from) {
    for (std::size_t to = 0; to < calls.size(); ++to) {
      if (!agree_on_exchange(*calls[from], *calls[to], from, to)) {
        return invalid_argument(
            CallName{CallKind::kAllToAll, calls[from]->index},
            ": ",
            names[from],
            " sends ",
            calls[from]->counts[to],
            " elements to ",
            names[to],
            ", which expects ",
            calls[to]->receive_counts[from]);
      }
    }
  }
  return internal_error("disagreement asked for calls that agree");
}

std::size_t begin_bytes(std::span<const std::uint64_t> counts, std::size_t part, DType dtype) {
  const auto before = counts.first(part);
  return std::accumulate(before.begin(), before.end(), std::uint64_t{0}) * size_bytes(dtype);
}

}  // namespace muster::comm
