// SPDX-License-Identifier: Apache-2.0
#include "parallel/src/context/moba_counts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

namespace muster::parallel {

namespace {

template <typename T>
Status check_span(const char* name, std::span<T> span, std::int64_t size) {
  if (span.empty() || static_cast<std::int64_t>(span.size()) == size) {
    return {};
  }
  return invalid_argument(name, " has ", span.size(), " elements, must have ", size, " or none");
}

// `room` where `wanted` has any.
template <typename T>
std::span<T> where(const std::span<T>& wanted, std::vector<T>& room) {
  return wanted.empty() ? std::span<T>{} : std::span<T>(room);
}

template <typename T>
void copy_wanted(const std::vector<T>& from, const std::span<T>& to) {
  if (!to.empty()) {
    std::copy_n(from.begin(), to.size(), to.begin());
  }
}

template <typename T>
void raise(std::vector<T>& to, const std::vector<T>& from) {
  std::transform(
      to.begin(), to.end(), from.begin(), to.begin(), [](T a, T b) { return std::max(a, b); });
}

template <typename T>
void add(std::vector<T>& to, const std::vector<T>& from) {
  std::transform(to.begin(), to.end(), from.begin(), to.begin(), std::plus<>());
}

}  // namespace

std::int64_t most_blocks(const ContextPlan& plan, std::int64_t block) {
  std::int64_t most = 0;
  for (std::size_t s = 0; s + 1 < plan.cu().size(); ++s) {
    most = std::max(most, kernels::moba_block_count(plan.cu().subspan(s, 2), block));
  }
  return most;
}

Status check_context_moba(
    const ContextCall& call,
    const kernels::MobaOptions& options,
    const kernels::MobaStatistics& s) {
  const std::int64_t heads = call.problem.heads;
  MUSTER_RETURN_IF_ERROR(check_span("selected_max_logit", s.selected_max_logit, heads));
  MUSTER_RETURN_IF_ERROR(check_span("gate_bound", s.gate_bound, heads));
  MUSTER_RETURN_IF_ERROR(check_span("norm_bound", s.norm_bound, heads));
  MUSTER_RETURN_IF_ERROR(check_span("nonfinite_rows", s.nonfinite_rows, heads));
  MUSTER_RETURN_IF_ERROR(check_span("nonfinite_scores", s.nonfinite_scores, heads));
  MUSTER_RETURN_IF_ERROR(
      check_span("block_counts", s.block_counts, heads * most_blocks(call.plan, options.block)));
  MUSTER_RETURN_IF_ERROR(check_span("sink_share", s.sink_share, heads));
  MUSTER_RETURN_IF_ERROR(check_span("gate_margin", s.gate_margin, heads));
  return check_span("gate_margin_rows", s.gate_margin_rows, heads);
}

ContextMobaCounts::Numbers::Numbers(std::size_t heads, std::size_t blocks)
    : max_logit(heads, -std::numeric_limits<float>::infinity()),
      gate_bound(max_logit),
      nonfinite_rows(heads, 0),
      nonfinite_scores(heads, 0),
      margin_rows(heads, 0),
      margin(heads, 0),
      block_counts(heads * blocks, 0) {}

ContextMobaCounts::ContextMobaCounts(
    const ContextCall& call,
    const kernels::MobaOptions& options,
    const kernels::MobaStatistics& wanted)
    : call_(call),
      options_(options),
      wanted_(wanted),
      sizes_(call),
      all_(
          static_cast<std::size_t>(sizes_.heads),
          static_cast<std::size_t>(most_blocks(call.plan, options.block))),
      segment_(0, 0) {}

kernels::MobaStatistics ContextMobaCounts::segment_spans(std::int64_t blocks, bool attended) {
  segment_blocks_ = blocks;
  segment_ =
      Numbers(static_cast<std::size_t>(sizes_.heads), static_cast<std::size_t>(segment_blocks_));
  kernels::MobaStatistics spans;
  if (attended) {
    spans.selected_max_logit = where(wanted_.selected_max_logit, segment_.max_logit);
    spans.nonfinite_rows = where(wanted_.nonfinite_rows, segment_.nonfinite_rows);
  }
  spans.gate_bound = where(wanted_.gate_bound, segment_.gate_bound);
  spans.nonfinite_scores = where(wanted_.nonfinite_scores, segment_.nonfinite_scores);
  if (!wanted_.gate_margin.empty() || !wanted_.gate_margin_rows.empty()) {
    spans.gate_margin = segment_.margin;
    spans.gate_margin_rows = segment_.margin_rows;
  }
  if (!wanted_.block_counts.empty() || !wanted_.sink_share.empty()) {
    spans.block_counts = segment_.block_counts;
  }
  return spans;
}

void ContextMobaCounts::add_segment() {
  raise(all_.max_logit, segment_.max_logit);
  raise(all_.gate_bound, segment_.gate_bound);
  add(all_.nonfinite_rows, segment_.nonfinite_rows);
  add(all_.nonfinite_scores, segment_.nonfinite_scores);
  add(all_.margin_rows, segment_.margin_rows);
  const auto heads = static_cast<std::size_t>(sizes_.heads);
  const auto own = static_cast<std::size_t>(segment_blocks_);
  const std::size_t blocks = all_.block_counts.size() / heads;
  for (std::size_t h = 0; h < heads; ++h) {
    if (segment_.margin_rows[h] > 0) {  // without rows the mean is NaN
      all_.margin[h] += segment_.margin[h] * static_cast<double>(segment_.margin_rows[h]);
    }
    for (std::size_t b = 0; b < own; ++b) {
      all_.block_counts[h * blocks + b] += segment_.block_counts[h * own + b];
    }
  }
}

void ContextMobaCounts::add_rows(const RowCounts& rows) {
  raise(all_.max_logit, rows.max_logit);
  add(all_.nonfinite_rows, rows.totals(sizes_));
}

Status ContextMobaCounts::share(std::span<const float> q, std::span<const float> k) {
  MUSTER_RETURN_IF_ERROR(share_maxima());
  MUSTER_RETURN_IF_ERROR(share_sums());
  return wanted_.norm_bound.empty() ? Status{} : share_norms(q, k);
}

Status ContextMobaCounts::share_maxima() {
  if (wanted_.selected_max_logit.empty() && wanted_.gate_bound.empty()) {
    return {};
  }
  std::vector<float> both = all_.max_logit;
  both.insert(both.end(), all_.gate_bound.begin(), all_.gate_bound.end());
  MUSTER_RETURN_IF_ERROR(
      call_.world.all_reduce(std::span<float>(both), comm::ReduceOp::kMax, call_.deadline));
  const auto half = both.begin() + sizes_.heads;
  copy_wanted(std::vector<float>(both.begin(), half), wanted_.selected_max_logit);
  copy_wanted(std::vector<float>(half, both.end()), wanted_.gate_bound);
  return {};
}

Status ContextMobaCounts::share_sums() {
  const std::array<std::vector<std::int64_t>*, 4> counts{
      &all_.nonfinite_rows, &all_.nonfinite_scores, &all_.margin_rows, &all_.block_counts};
  const bool margin = !wanted_.gate_margin.empty() || !wanted_.gate_margin_rows.empty();
  if (margin || !wanted_.nonfinite_rows.empty() || !wanted_.nonfinite_scores.empty() ||
      !wanted_.block_counts.empty() || !wanted_.sink_share.empty()) {
    std::vector<std::int64_t> packed;
    for (const auto* part : counts) {
      packed.insert(packed.end(), part->begin(), part->end());
    }
    MUSTER_RETURN_IF_ERROR(call_.world.all_reduce(
        std::span<std::int64_t>(packed), comm::ReduceOp::kSum, call_.deadline));
    auto from = packed.begin();
    for (auto* part : counts) {
      std::copy_n(from, part->size(), part->begin());
      from += std::ssize(*part);
    }
  }
  if (margin) {
    MUSTER_RETURN_IF_ERROR(call_.world.all_reduce(
        std::span<double>(all_.margin), comm::ReduceOp::kSum, call_.deadline));
  }
  copy_wanted(all_.nonfinite_rows, wanted_.nonfinite_rows);
  copy_wanted(all_.nonfinite_scores, wanted_.nonfinite_scores);
  copy_wanted(all_.margin_rows, wanted_.gate_margin_rows);
  copy_wanted(all_.block_counts, wanted_.block_counts);
  for (std::size_t h = 0; h < wanted_.gate_margin.size(); ++h) {
    wanted_.gate_margin[h] = all_.margin_rows[h] > 0
                                 ? all_.margin[h] / static_cast<double>(all_.margin_rows[h])
                                 : std::numeric_limits<double>::quiet_NaN();
  }
  write_sink_share();
  return {};
}

// Under a mask every query counts its current block once, although it does not choose it.
void ContextMobaCounts::write_sink_share() const {
  std::int64_t current = 0;
  std::int64_t current_first = 0;
  for (std::size_t s = 0; call_.problem.causal && s + 1 < call_.plan.cu().size(); ++s) {
    const std::int64_t length = call_.plan.length(static_cast<std::int64_t>(s));
    current += length;
    current_first += std::min(length, options_.block);
  }
  const std::size_t blocks = all_.block_counts.size() / static_cast<std::size_t>(sizes_.heads);
  for (std::size_t h = 0; h < wanted_.sink_share.size(); ++h) {
    std::int64_t past = -current;
    for (std::size_t b = 0; b < blocks; ++b) {
      past += all_.block_counts[h * blocks + b];
    }
    const std::int64_t sink = blocks == 0 ? 0 : all_.block_counts[h * blocks] - current_first;
    wanted_.sink_share[h] = past == 0 ? 0 : static_cast<double>(sink) / static_cast<double>(past);
  }
}

Status ContextMobaCounts::share_norms(std::span<const float> q, std::span<const float> k) {
  const std::array<std::int64_t, 2> own{0, sizes_.rows};
  kernels::AttentionProblem problem = call_.problem;
  problem.cu_q = own;
  const auto heads = static_cast<std::size_t>(sizes_.heads);
  const auto kv_heads = static_cast<std::size_t>(sizes_.kv_row / call_.problem.head_dim);
  std::vector<double> squares(heads + kv_heads);
  const auto all = std::span<double>(squares);
  MUSTER_RETURN_IF_ERROR(kernels::moba_largest_norms(
      problem, {q.data()}, {k.data()}, all.first(heads), all.subspan(heads)));
  MUSTER_RETURN_IF_ERROR(call_.world.all_reduce(all, comm::ReduceOp::kMax, call_.deadline));
  for (std::size_t h = 0; h < heads; ++h) {
    wanted_.norm_bound[h] = kernels::moba_norm_bound(
        call_.problem, squares[h], squares[heads + h / (heads / kv_heads)]);
  }
  return {};
}

}  // namespace muster::parallel
