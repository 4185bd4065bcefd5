// SPDX-License-Identifier: Apache-2.0
#include "parallel/src/context/exchange.h"

#include <algorithm>
#include <limits>
#include <string>

namespace muster::parallel {

namespace {

std::vector<std::size_t> element_counts(const ContextPlan& plan, std::int64_t row) {
  std::vector<std::size_t> counts;
  counts.reserve(static_cast<std::size_t>(plan.ranks()));
  for (int rank = 0; rank < plan.ranks(); ++rank) {
    counts.push_back(static_cast<std::size_t>(plan.row_count(rank) * row));
  }
  return counts;
}

// visit(offset in order of the pack, offset in order of ranks, count), all in elements.
template <typename Visit>
void each_run(const ContextPlan& plan, std::int64_t row, const Visit& visit) {
  std::int64_t first = 0;
  for (int rank = 0; rank < plan.ranks(); ++rank) {
    for (const ContextSegment& segment : plan.segments(rank)) {
      const std::int64_t at = plan.cu()[static_cast<std::size_t>(segment.sequence)] + segment.begin;
      visit(at * row, (first + segment.local) * row, segment.rows() * row);
    }
    first += plan.row_count(rank);
  }
}

std::size_t first_element(const ContextPlan& plan, int rank, std::int64_t row) {
  std::int64_t rows = 0;
  for (int r = 0; r < rank; ++r) {
    rows += plan.row_count(r);
  }
  return static_cast<std::size_t>(rows * row);
}

void count_others(std::int64_t* bytes, std::size_t all, std::size_t own) {
  if (bytes != nullptr) {
    *bytes += static_cast<std::int64_t>((all - own) * sizeof(float));
  }
}

Status check_size(const char* name, std::size_t size, std::int64_t rows, std::int64_t row) {
  if (static_cast<std::int64_t>(size) == rows * row) {
    return {};
  }
  return invalid_argument(
      name,
      " has ",
      size,
      " elements, must have ",
      rows,
      " * ",
      row,
      ", by the problem and the plan's rows of this rank");
}

Status check_statistic(const char* name, std::size_t size, std::int64_t heads) {
  return size == 0 ? Status{} : check_size(name, size, heads, 1);
}

Status check_tensors(const ContextCall& call, const ContextTensors& tensors) {
  const ContextSizes sizes(call);
  MUSTER_RETURN_IF_ERROR(check_size("q", tensors.q.size(), sizes.rows, sizes.q_row));
  MUSTER_RETURN_IF_ERROR(check_size("k", tensors.k.size(), sizes.rows, sizes.kv_row));
  return check_size("v", tensors.v.size(), sizes.rows, sizes.kv_row);
}

}  // namespace

ContextSizes::ContextSizes(const ContextCall& call)
    : rank(call.world.rank()),
      rows(call.plan.row_count(call.world.rank())),
      heads(call.problem.heads),
      q_row(heads * call.problem.head_dim),
      kv_row(
          std::int64_t{call.problem.kv_heads == 0 ? call.problem.heads : call.problem.kv_heads} *
          call.problem.head_dim),
      all_rows(call.plan.cu().back()) {}

Status check_context_call(const ContextCall& call, const kernels::MobaOptions* options) {
  if (call.plan.ranks() != call.world.size()) {
    return invalid_argument(
        "plan is for ", call.plan.ranks(), " ranks, the communicator has ", call.world.size());
  }
  if (call.problem.type != DType::kFloat32) {
    return invalid_argument(
        "problem.type must be kFloat32: partial results of a narrower type lose what they sum");
  }
  if (!call.problem.cu_q.empty() || !call.problem.cu_k.empty()) {
    return invalid_argument(
        "problem.cu_q and cu_k must be empty: the plan has the lengths of sequences");
  }
  if (call.problem.bias != nullptr) {
    return invalid_argument("problem.bias must be null: it is not spread over ranks");
  }
  // The operators' rules applied to zero tokens, so that a rank without rows finds the same error.
  const std::int64_t nothing[2] = {0, 0};
  kernels::AttentionProblem problem = call.problem;
  problem.cu_q = nothing;
  if (options == nullptr) {
    return kernels::attention_forward(problem, {}, {});
  }
  if (options->whole_length != 0) {
    return invalid_argument("whole_length must be 0: the plan knows how long sequences are");
  }
  kernels::MobaSelection selection;
  return kernels::moba_forward(problem, *options, {}, {}, {}, selection, {});
}

Status check_context_keys(const ContextCall& call, std::span<const float> k) {
  const ContextSizes sizes(call);
  return check_size("k", k.size(), sizes.rows, sizes.kv_row);
}

Status check_context_forward(
    const ContextCall& call,
    const ContextTensors& tensors,
    std::span<const float> out,
    std::span<const float> lse,
    const kernels::AttentionStatistics& statistics) {
  const ContextSizes sizes(call);
  MUSTER_RETURN_IF_ERROR(check_tensors(call, tensors));
  MUSTER_RETURN_IF_ERROR(check_size("out", out.size(), sizes.rows, sizes.q_row));
  MUSTER_RETURN_IF_ERROR(check_size("lse", lse.size(), sizes.heads, sizes.rows));
  MUSTER_RETURN_IF_ERROR(check_statistic("max_logit", statistics.max_logit.size(), sizes.heads));
  return check_statistic("nonfinite_rows", statistics.nonfinite_rows.size(), sizes.heads);
}

Status check_context_backward(
    const ContextCall& call,
    const ContextTensors& tensors,
    std::span<const float> out,
    std::span<const float> lse,
    std::span<const float> dout,
    const ContextGradients& gradients) {
  const ContextSizes sizes(call);
  MUSTER_RETURN_IF_ERROR(check_tensors(call, tensors));
  MUSTER_RETURN_IF_ERROR(check_size("out", out.size(), sizes.rows, sizes.q_row));
  MUSTER_RETURN_IF_ERROR(check_size("lse", lse.size(), sizes.heads, sizes.rows));
  MUSTER_RETURN_IF_ERROR(check_size("dout", dout.size(), sizes.rows, sizes.q_row));
  MUSTER_RETURN_IF_ERROR(check_size("dq", gradients.dq.size(), sizes.rows, sizes.q_row));
  MUSTER_RETURN_IF_ERROR(check_size("dk", gradients.dk.size(), sizes.rows, sizes.kv_row));
  return check_size("dv", gradients.dv.size(), sizes.rows, sizes.kv_row);
}

Status gather_rows(
    const ContextCall& call,
    std::span<const float> shard,
    std::int64_t row,
    std::vector<float>& all,
    std::int64_t* bytes) {
  const ContextPlan& plan = call.plan;
  const auto counts = element_counts(plan, row);
  std::vector<float> by_rank(static_cast<std::size_t>(plan.cu().back() * row));
  std::copy(
      shard.begin(), shard.end(), by_rank.data() + first_element(plan, call.world.rank(), row));
  MUSTER_RETURN_IF_ERROR(call.world.all_gather(std::span<float>(by_rank), counts, call.deadline));
  count_others(bytes, by_rank.size(), shard.size());
  all.resize(by_rank.size());
  each_run(plan, row, [&](std::int64_t pack, std::int64_t ranked, std::int64_t count) {
    std::copy_n(by_rank.data() + ranked, count, all.data() + pack);
  });
  return {};
}

Status gather_keys(const ContextCall& call, const ContextTensors& tensors, GatheredKeys& all) {
  const ContextSizes sizes(call);
  auto* bytes = call.traffic == nullptr ? nullptr : &call.traffic->key_value_bytes;
  MUSTER_RETURN_IF_ERROR(gather_rows(call, tensors.k, sizes.kv_row, all.k, bytes));
  return gather_rows(call, tensors.v, sizes.kv_row, all.v, bytes);
}

std::int64_t visible_keys(const ContextCall& call, const ContextSegment& segment) {
  return call.problem.causal ? segment.end : call.plan.length(segment.sequence);
}

std::int64_t first_key(const ContextCall& call, const ContextSegment& segment) {
  return call.plan.cu()[static_cast<std::size_t>(segment.sequence)];
}

Status reduce_rows(
    const ContextCall& call,
    const std::vector<float>& all,
    std::int64_t row,
    std::span<float> shard,
    std::int64_t* bytes) {
  const ContextPlan& plan = call.plan;
  const auto counts = element_counts(plan, row);
  std::vector<float> by_rank(all.size());
  each_run(plan, row, [&](std::int64_t pack, std::int64_t ranked, std::int64_t count) {
    std::copy_n(all.data() + pack, count, by_rank.data() + ranked);
  });
  MUSTER_RETURN_IF_ERROR(call.world.reduce_scatter(
      std::span<float>(by_rank), counts, comm::ReduceOp::kSum, call.deadline));
  count_others(bytes, by_rank.size(), shard.size());
  std::copy_n(
      by_rank.data() + first_element(plan, call.world.rank(), row), shard.size(), shard.data());
  return {};
}

std::vector<float> segment_lse(
    std::span<const float> lse, const ContextSegment& segment, const ContextSizes& sizes) {
  std::vector<float> part(static_cast<std::size_t>(sizes.heads * segment.rows()));
  for (std::int64_t head = 0; head < sizes.heads; ++head) {
    std::copy_n(
        lse.data() + head * sizes.rows + segment.local,
        segment.rows(),
        part.data() + head * segment.rows());
  }
  return part;
}

void put_segment_lse(
    const std::vector<float>& part,
    const ContextSegment& segment,
    const ContextSizes& sizes,
    std::span<float> lse) {
  for (std::int64_t head = 0; head < sizes.heads; ++head) {
    std::copy_n(
        part.data() + head * segment.rows(),
        segment.rows(),
        lse.data() + head * sizes.rows + segment.local);
  }
}

ContextCounts::ContextCounts(std::int64_t heads)
    : max_logit(static_cast<std::size_t>(heads), -std::numeric_limits<float>::infinity()),
      nonfinite_rows(static_cast<std::size_t>(heads), 0) {}

void ContextCounts::add(const ContextCounts& other) {
  for (std::size_t h = 0; h < max_logit.size(); ++h) {
    max_logit[h] = std::max(max_logit[h], other.max_logit[h]);
    nonfinite_rows[h] += other.nonfinite_rows[h];
  }
}

Status ContextCounts::share(const ContextCall& call, const kernels::AttentionStatistics& wanted) {
  if (!wanted.max_logit.empty()) {
    MUSTER_RETURN_IF_ERROR(
        call.world.all_reduce(std::span<float>(max_logit), comm::ReduceOp::kMax, call.deadline));
    std::copy(max_logit.begin(), max_logit.end(), wanted.max_logit.begin());
  }
  if (!wanted.nonfinite_rows.empty()) {
    MUSTER_RETURN_IF_ERROR(call.world.all_reduce(
        std::span<std::int64_t>(nonfinite_rows), comm::ReduceOp::kSum, call.deadline));
    std::copy(nonfinite_rows.begin(), nonfinite_rows.end(), wanted.nonfinite_rows.begin());
  }
  return {};
}

}  // namespace muster::parallel
