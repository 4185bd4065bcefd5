// SPDX-License-Identifier: Apache-2.0
#include "parallel/src/experts/exchange/exchange.h"
#include "parallel/src/experts/exchange/rows.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace muster::parallel::experts {

namespace {

Status check_dispatch(
    const EpExchangeOptions& options,
    const EpPlan& plan,
    std::size_t row_bytes,
    std::span<const std::byte> x,
    std::span<const float> gates) {
  const auto tokens = static_cast<std::size_t>(plan.tokens);
  if (x.size() != tokens * row_bytes) {
    return invalid_argument(
        "x has ", x.size(), " bytes; the plan is of ", tokens, " tokens of ", row_bytes, " bytes");
  }
  const std::size_t choices = tokens * static_cast<std::size_t>(options.shape.top_k);
  if (!gates.empty() && gates.size() != choices) {
    return invalid_argument(
        gates.size(), " gates for ", choices, " choices: give [tokens, top_k] or none");
  }
  return {};
}

}  // namespace

Status Exchange::dispatch(
    const EpPlan& plan,
    std::span<const std::byte> x,
    std::span<const float> gates,
    EpRows& received,
    Deadline deadline) {
  const Stopwatch watch{clock_, barrier_, event_.move_ns};
  Status fits = check_plan(plan);
  if (fits.ok()) {
    fits = check_dispatch(options_, plan, row_bytes_, x, gates);
  }
  Record mine = make_record(Operation::kDispatch, plan.hash);
  if (fits.ok() && plan.tokens > 0) {
    mine.gates = gates.empty() ? Gates::kNo : Gates::kYes;
  }
  MUSTER_RETURN_IF_ERROR(barrier_.validate("dispatch, entry", mine, fits, deadline));
  bool with_gates = true;
  MUSTER_RETURN_IF_ERROR(agree_on_gates(with_gates));
  const Sent sent = push(plan, x, gates);
  clear_padding(plan, with_gates);
  finish_copies();
  MUSTER_RETURN_IF_ERROR(barrier_.wait("dispatch, exit", deadline));
  count_received(expand(plan), sent, with_gates);
  const auto rows = static_cast<std::size_t>(receive_rows_);
  received.rows = {row(rank_, 0), rows * row_bytes_};
  received.weights = {};
  if (with_gates) {
    received.weights = {at<float>(rank_, layout_.weights), rows};
  }
  return {};
}

// All ranks see the same records, so all return the same Status.
Status Exchange::agree_on_gates(bool& with_gates) const {
  const std::span<const Record> records = barrier_.records();
  int with = -1;
  int without = -1;
  for (int r = ranks_ - 1; r >= 0; --r) {
    const Gates gates = records[static_cast<std::size_t>(r)].gates;
    with = gates == Gates::kYes ? r : with;
    without = gates == Gates::kNo ? r : without;
  }
  with_gates = without < 0;
  if (with >= 0 && without >= 0) {
    return invalid_argument(
        "dispatch: rank ", with, " sends gates, rank ", without, " does not: all ranks do or none");
  }
  return {};
}

Exchange::Sent Exchange::push(
    const EpPlan& plan, std::span<const std::byte> x, std::span<const float> gates) {
  const auto top_k = static_cast<std::size_t>(options_.shape.top_k);
  const auto tokens = static_cast<std::size_t>(plan.tokens);
  const bool past_cache = tokens * row_bytes_ >= kPastCacheBytes;
  Sent sent;
  for (std::size_t t = 0; t < tokens; ++t) {
    const std::byte* token = x.data() + t * row_bytes_;
    for (std::size_t i = t * top_k; i < (t + 1) * top_k; ++i) {
      const Place to = place(plan.destinations[i]);
      const std::size_t where = to.rank == rank_ ? 0 : 1;
      ++sent.choices[where];
      if (to.is_first) {
        copy_row(row(to.rank, to.row), token, row_bytes_, past_cache);
        ++sent.rows[where];
      }
      if (!gates.empty()) {
        at<float>(to.rank, layout_.weights)[to.row] = gates[i];
      }
    }
  }
  const auto row_bytes = static_cast<std::int64_t>(row_bytes_);
  const std::int64_t weight_bytes = gates.empty() ? 0 : std::int64_t{sizeof(float)};
  event_.rows_out += sent.rows[1];
  event_.dedup_rows += sent.choices[0] + sent.choices[1] - sent.rows[0] - sent.rows[1];
  event_.bytes_local += sent.rows[0] * row_bytes + sent.choices[0] * weight_bytes;
  event_.bytes_out += sent.rows[1] * row_bytes + sent.choices[1] * weight_bytes;
  return sent;
}

void Exchange::clear_padding(const EpPlan& plan, bool with_gates) {
  const auto groups = static_cast<std::size_t>(plan.shape.group_count());
  const std::size_t base = static_cast<std::size_t>(rank_) * groups;
  for (std::size_t g = base; g < base + groups; ++g) {
    const std::int64_t first = plan.begins[g] + plan.group_rows[g];
    const auto count = static_cast<std::size_t>(plan.ends[g] - first);
    std::memset(row(rank_, first), 0, count * row_bytes_);
    if (with_gates) {
      std::fill_n(at<float>(rank_, layout_.weights) + first, count, 0.0F);
    }
  }
}

// Copies the first row of each token to its further rows on this rank, which were not sent.
Exchange::Received Exchange::expand(const EpPlan& plan) {
  Received received;
  const auto used = static_cast<std::size_t>(ep_row_count(plan, rank_));
  const bool past_cache = used * row_bytes_ >= kPastCacheBytes;
  for_own_rows(plan, [&](std::int64_t index, std::int32_t entry) {
    ++received.choices;
    received.rows += entry < 0 ? 0 : 1;
    for (std::int64_t next = entry; next > 0;) {
      copy_row(row(rank_, next - 1), row(rank_, index), row_bytes_, past_cache);
      next = next_in_chain(plan.row_chain[static_cast<std::size_t>(next - 1)]);
    }
  });
  finish_copies();
  return received;
}

void Exchange::count_received(const Received& received, const Sent& sent, bool with_gates) {
  const auto row_bytes = static_cast<std::int64_t>(row_bytes_);
  event_.bytes_local += (received.choices - received.rows) * row_bytes;
  event_.bytes_in += (received.rows - sent.rows[0]) * row_bytes;
  if (with_gates) {
    event_.bytes_in += (received.choices - sent.choices[0]) * std::int64_t{sizeof(float)};
  }
}

}  // namespace muster::parallel::experts
