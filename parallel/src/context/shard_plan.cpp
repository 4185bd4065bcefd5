// SPDX-License-Identifier: Apache-2.0
#include <muster/parallel/context.h>

#include <string>

namespace muster::parallel {

Expected<ContextPlan> ContextPlan::create(
    std::span<const std::int64_t> cu, int ranks, ShardOrder order) {
  if (ranks < 1) {
    return invalid_argument("ranks must be at least 1, got ", ranks);
  }
  if (cu.empty() || cu.front() != 0) {
    return invalid_argument("cu must begin with 0: the first row of the first sequence");
  }
  for (std::size_t i = 1; i < cu.size(); ++i) {
    if (cu[i] < cu[i - 1]) {
      return invalid_argument(
          "cu[",
          i,
          "] is ",
          cu[i],
          ", less than cu[",
          i - 1,
          "] = ",
          cu[i - 1],
          "; offsets must not descend");
    }
  }
  ContextPlan plan;
  plan.cu_.assign(cu.begin(), cu.end());
  plan.segments_.resize(static_cast<std::size_t>(ranks));
  plan.rows_.assign(static_cast<std::size_t>(ranks), 0);
  const bool zigzag = order == ShardOrder::kZigzag;
  const std::int64_t chunks = zigzag ? 2 * std::int64_t{ranks} : ranks;
  const auto sequences = static_cast<std::int64_t>(cu.size()) - 1;
  for (std::int64_t sequence = 0; sequence < sequences; ++sequence) {
    const std::int64_t length = plan.length(sequence);
    // length * c / chunks without a product that could overflow.
    const auto start = [length, chunks](std::int64_t c) {
      return length / chunks * c + length % chunks * c / chunks;
    };
    for (std::int64_t c = 0; c < chunks; ++c) {
      const auto rank = static_cast<std::size_t>(c < ranks ? c : chunks - 1 - c);
      const ContextSegment segment{sequence, start(c), start(c + 1), plan.rows_[rank]};
      if (segment.rows() > 0) {
        plan.segments_[rank].push_back(segment);
        plan.rows_[rank] += segment.rows();
      }
    }
  }
  return plan;
}

std::int64_t ContextPlan::length(std::int64_t sequence) const {
  const auto index = static_cast<std::size_t>(sequence);
  return cu_[index + 1] - cu_[index];
}

std::span<const ContextSegment> ContextPlan::segments(int rank) const {
  return segments_[static_cast<std::size_t>(rank)];
}

std::int64_t ContextPlan::row_count(int rank) const {
  return rows_[static_cast<std::size_t>(rank)];
}

std::vector<std::int64_t> ContextPlan::pack_rows(int rank) const {
  std::vector<std::int64_t> result;
  result.reserve(static_cast<std::size_t>(row_count(rank)));
  for (const ContextSegment& segment : segments(rank)) {
    for (std::int64_t row = segment.begin; row < segment.end; ++row) {
      result.push_back(cu_[static_cast<std::size_t>(segment.sequence)] + row);
    }
  }
  return result;
}

ContextRelation context_relation(
    const ContextSegment& queries, const ContextSegment& keys, bool causal) {
  if (queries.sequence != keys.sequence || queries.rows() == 0 || keys.rows() == 0) {
    return ContextRelation::kNothing;
  }
  if (!causal || keys.end <= queries.begin) {
    return ContextRelation::kAll;
  }
  return keys.begin < queries.end ? ContextRelation::kDiagonal : ContextRelation::kNothing;
}

}  // namespace muster::parallel
