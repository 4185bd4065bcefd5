// SPDX-License-Identifier: Apache-2.0
#include "parallel/src/experts/exchange/exchange.h"
#include "parallel/src/experts/exchange/rows.h"

#include <cstring>
#include <string>

namespace muster::parallel::experts {

Status Exchange::combine(
    const EpPlan& plan,
    std::span<std::byte> rows,
    std::span<const float> row_values,
    std::span<std::byte> y,
    std::span<float> values,
    Deadline deadline) {
  const Stopwatch watch{clock_, barrier_, event_.move_ns};
  const bool with_values = !row_values.empty();
  const Status fits = check_combine(plan, rows, row_values, y, values);
  if (pulled_after_ == barrier_.count()) {
    // Peers may still pull the rows of this rank's last combine.
    MUSTER_RETURN_IF_ERROR(barrier_.wait("combine, rows free", deadline));
  }
  if (fits.ok()) {
    stage(plan, rows, row_values);
    sum_duplicates(plan);
  }
  const Operation operation = with_values ? Operation::kCombineWithValues : Operation::kCombine;
  MUSTER_RETURN_IF_ERROR(
      barrier_.validate("combine", make_record(operation, plan.hash), fits, deadline));
  pull(plan, y);
  if (with_values) {
    pull_values(plan, values);
  }
  pulled_after_ = barrier_.count();
  count_combine(plan, with_values);
  return {};
}

Status Exchange::check_combine(
    const EpPlan& plan,
    std::span<const std::byte> rows,
    std::span<const float> row_values,
    std::span<const std::byte> y,
    std::span<const float> values) const {
  MUSTER_RETURN_IF_ERROR(check_plan(plan));
  const auto receive = static_cast<std::size_t>(receive_rows_);
  const auto tokens = static_cast<std::size_t>(plan.tokens);
  const auto choices = tokens * static_cast<std::size_t>(options_.shape.top_k);
  if (rows.size() != receive * row_bytes_) {
    return invalid_argument(
        "rows must be [receive_rows, hidden], ", receive * row_bytes_, " bytes, got ", rows.size());
  }
  if (y.size() != tokens * row_bytes_) {
    return invalid_argument(
        "y has ", y.size(), " bytes; the plan is of ", tokens, " tokens of ", row_bytes_, " bytes");
  }
  if (!row_values.empty() && row_values.size() != receive) {
    return invalid_argument(
        row_values.size(), " row values for ", receive, " rows: give [receive_rows] or none");
  }
  if (values.size() != (row_values.empty() ? 0 : choices)) {
    return invalid_argument(
        values.size(),
        " values for ",
        choices,
        " choices: give [tokens, top_k] with row values, and none without");
  }
  const std::byte* own = row(rank_, 0);
  if (rows.data() != own && rows.data() < own + rows.size() && own < rows.data() + rows.size()) {
    return invalid_argument(
        "rows overlap the exchange's own memory: give all of `received.rows` or none of it");
  }
  return {};
}

void Exchange::stage(
    const EpPlan& plan, std::span<const std::byte> rows, std::span<const float> row_values) {
  const auto used = static_cast<std::size_t>(ep_row_count(plan, rank_));
  if (rows.data() != row(rank_, 0)) {
    std::memcpy(row(rank_, 0), rows.data(), used * row_bytes_);
    event_.bytes_local += static_cast<std::int64_t>(used * row_bytes_);
  }
  float* values = at<float>(rank_, layout_.values);
  if (!row_values.empty() && row_values.data() != values) {
    std::memcpy(values, row_values.data(), used * sizeof(float));
    event_.bytes_local += static_cast<std::int64_t>(used * sizeof(float));
  }
}

// Adds the rows of each token on this rank into the first of them, in the order of its choices.
void Exchange::sum_duplicates(const EpPlan& plan) {
  if (separate_) {
    return;
  }
  std::int64_t added = 0;
  for_own_rows(plan, [&](std::int64_t index, std::int32_t entry) {
    added += entry < 0 ? 1 : 0;
    if (entry > 0 && options_.type == DType::kBFloat16) {
      sum_chain<std::uint16_t>(plan, index, entry);
    } else if (entry > 0) {
      sum_chain<float>(plan, index, entry);
    }
  });
  event_.bytes_local += added * static_cast<std::int64_t>(row_bytes_);
}

template <typename T>
void Exchange::sum_chain(const EpPlan& plan, std::int64_t first, std::int64_t next) {
  RowList<T> list;
  for (list.push(typed_row<T>(rank_, first)); next > 0;) {
    list.push(typed_row<T>(rank_, next - 1));
    next = next_in_chain(plan.row_chain[static_cast<std::size_t>(next - 1)]);
  }
  sum(typed_row<T>(rank_, first), list, static_cast<std::size_t>(options_.hidden));
}

void Exchange::pull(const EpPlan& plan, std::span<std::byte> y) {
  const auto top_k = static_cast<std::size_t>(options_.shape.top_k);
  for (std::size_t t = 0; t < static_cast<std::size_t>(plan.tokens); ++t) {
    const std::int64_t* destinations = plan.destinations.data() + t * top_k;
    std::byte* to = y.data() + t * row_bytes_;
    if (separate_) {
      pull_separate(destinations, bfloat16(to));
    } else if (options_.type == DType::kBFloat16) {
      pull_firsts(destinations, bfloat16(to));
    } else {
      pull_firsts(destinations, float32(to));
    }
  }
}

template <typename T>
void Exchange::pull_firsts(const std::int64_t* destinations, T* y) const {
  RowList<T> list;
  for (int k = 0; k < options_.shape.top_k; ++k) {
    const Place from = place(destinations[k]);
    if (from.is_first) {
      list.push(typed_row<T>(from.rank, from.row));
    }
  }
  if (list.size == 1) {
    std::memcpy(y, list.rows[0], row_bytes_);
  } else {
    sum(y, list, static_cast<std::size_t>(options_.hidden));
  }
}

// The same order of sums as for float32 rows: per rank first, then over ranks. A token's first
// choice is always the first on its rank.
void Exchange::pull_separate(const std::int64_t* destinations, std::uint16_t* y) {
  const auto hidden = static_cast<std::size_t>(options_.hidden);
  const int top_k = options_.shape.top_k;
  for (int k = 0; k < top_k; ++k) {
    const Place first = place(destinations[k]);
    if (!first.is_first) {
      continue;
    }
    std::vector<float>& part = k == 0 ? sum_ : partial_;
    widen(part.data(), bfloat16(row(first.rank, first.row)), hidden);
    for (int j = k + 1; j < top_k; ++j) {
      const Place from = place(destinations[j]);
      if (from.rank == first.rank) {
        add(part.data(), bfloat16(row(from.rank, from.row)), hidden);
      }
    }
    if (k > 0) {
      add(sum_.data(), partial_.data(), hidden);
    }
  }
  narrow(y, sum_.data(), hidden);
}

void Exchange::pull_values(const EpPlan& plan, std::span<float> values) const {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Place from = place(plan.destinations[i]);
    values[i] = at<float>(from.rank, layout_.values)[from.row];
  }
}

// Counts pulled bytes as received, and bytes that peers pull as sent.
void Exchange::count_combine(const EpPlan& plan, bool with_values) {
  Sent mine;
  const auto choices = static_cast<std::size_t>(plan.tokens * plan.shape.top_k);
  for (std::size_t i = 0; i < choices; ++i) {
    const Place from = place(plan.destinations[i]);
    const std::size_t where = from.rank == rank_ ? 0 : 1;
    ++mine.choices[where];
    mine.rows[where] += from.is_first || separate_ ? 1 : 0;
  }
  Received here;
  for_own_rows(plan, [&](std::int64_t, std::int32_t entry) {
    ++here.choices;
    here.rows += entry >= 0 || separate_ ? 1 : 0;
  });
  const auto row_bytes = static_cast<std::int64_t>(row_bytes_);
  const std::int64_t value_bytes = with_values ? std::int64_t{sizeof(float)} : 0;
  event_.bytes_local += mine.rows[0] * row_bytes + mine.choices[0] * value_bytes;
  event_.bytes_in += mine.rows[1] * row_bytes + mine.choices[1] * value_bytes;
  event_.bytes_out +=
      (here.rows - mine.rows[0]) * row_bytes + (here.choices - mine.choices[0]) * value_bytes;
}

}  // namespace muster::parallel::experts
