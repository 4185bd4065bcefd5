// SPDX-License-Identifier: Apache-2.0
#include "parallel/src/context/full_pairs.h"

#include <algorithm>
#include <limits>

namespace muster::parallel {

namespace {

// The operator reports how many rows are not finite. To identify them, each row is run alone; that
// happens only if something is wrong.
Status mark_rows(const ContextCall& call, const RingPair& pair, RowCounts& counts) {
  const ContextSizes sizes(call);
  const auto* q = static_cast<const float*>(pair.inputs.q.data);
  std::vector<float> out(static_cast<std::size_t>(sizes.q_row));
  std::vector<float> lse(static_cast<std::size_t>(sizes.heads));
  ContextCounts found(sizes.heads);
  for (std::int64_t row = 0; row < pair.queries.rows(); ++row) {
    const PairProblem problem(call.problem, 1, pair.diagonal ? row + 1 : pair.keys.rows(), false);
    MUSTER_RETURN_IF_ERROR(kernels::attention_forward(
        problem.get(),
        {{q + row * sizes.q_row}, pair.inputs.k, pair.inputs.v},
        {{out.data()}, lse.data()},
        found.spans()));
    for (std::int64_t head = 0; head < sizes.heads; ++head) {
      if (found.nonfinite_rows[static_cast<std::size_t>(head)] > 0) {
        counts.rows[static_cast<std::size_t>(head * sizes.rows + pair.queries.local + row)] = 1;
      }
    }
  }
  return {};
}

}  // namespace

RowCounts::RowCounts(const ContextSizes& sizes)
    : max_logit(static_cast<std::size_t>(sizes.heads), -std::numeric_limits<float>::infinity()),
      rows(static_cast<std::size_t>(sizes.heads * sizes.rows), 0) {}

std::vector<std::int64_t> RowCounts::totals(const ContextSizes& sizes) const {
  std::vector<std::int64_t> result;
  for (std::int64_t head = 0; head < sizes.heads; ++head) {
    const auto first = rows.begin() + head * sizes.rows;
    result.push_back(std::count(first, first + sizes.rows, std::uint8_t{1}));
  }
  return result;
}

Status attend_full_pair(
    const ContextCall& call,
    const RingPair& pair,
    const kernels::AttentionOutputs& part,
    RowCounts* counts) {
  const PairProblem problem(call.problem, pair.queries.rows(), pair.keys.rows(), pair.diagonal);
  ContextCounts found(call.problem.heads);
  MUSTER_RETURN_IF_ERROR(kernels::attention_forward(
      problem.get(),
      pair.inputs,
      part,
      counts == nullptr ? kernels::AttentionStatistics{} : found.spans()));
  if (counts == nullptr) {
    return {};
  }
  for (std::size_t h = 0; h < found.max_logit.size(); ++h) {
    counts->max_logit[h] = std::max(counts->max_logit[h], found.max_logit[h]);
  }
  const bool any =
      std::any_of(found.nonfinite_rows.begin(), found.nonfinite_rows.end(), [](std::int64_t n) {
        return n > 0;
      });
  return any ? mark_rows(call, pair, *counts) : Status{};
}

Status attend_full_pair_backward(
    const ContextCall& call, const RingPair& pair, const kernels::AttentionGradients& part) {
  const PairProblem problem(call.problem, pair.queries.rows(), pair.keys.rows(), pair.diagonal);
  return kernels::attention_backward(problem.get(), pair.inputs, part);
}

}  // namespace muster::parallel
