// Block attention: every rank has all pooled keys and all keys, and the operator does the rest.
#include "context/exchange.h"
#include "context/pair.h"

#include <algorithm>
#include <string>

namespace muster::kernels {

namespace {

// Means of the blocks that a segment's call has, [kv_heads, blocks, head_dim]. The last of them may
// be cut short by the segment's end; it is no candidate of the segment's queries then.
std::vector<float> segment_means(
    const ContextCall& call,
    const ContextSegment& segment,
    std::int64_t block,
    std::int64_t keys,
    const std::vector<float>& means) {
  const std::int64_t dim = call.problem.head_dim;
  const std::int64_t heads = ContextSizes(call).kv_row / dim;
  const std::int64_t all = static_cast<std::int64_t>(means.size()) / (heads * dim);
  const auto before = call.plan.cu().first(static_cast<std::size_t>(segment.sequence) + 1);
  const std::int64_t first = moba_block_count(before, block);
  const std::int64_t count = (keys + block - 1) / block;
  std::vector<float> part(static_cast<std::size_t>(heads * count * dim));
  for (std::int64_t head = 0; head < heads; ++head) {
    std::copy_n(
        means.data() + (head * all + first) * dim, count * dim, part.data() + head * count * dim);
  }
  return part;
}

Status forward_segment(
    const ContextCall& call,
    const MobaOptions& options,
    const ContextTensors& tensors,
    const GatheredKeys& all,
    const std::vector<float>& means,
    const ContextSegment& segment,
    std::span<float> out,
    std::span<float> lse,
    MobaSelection& selection,
    ContextCounts* counts) {
  const ContextSizes sizes(call);
  const std::int64_t keys = visible_keys(call, segment);
  const PairProblem problem(call.problem, segment.rows(), keys, call.problem.causal);
  const std::int64_t key = first_key(call, segment) * sizes.kv_row;
  const std::int64_t at = segment.local * sizes.q_row;
  std::vector<float> part_lse(static_cast<std::size_t>(segment.rows() * sizes.heads));
  ContextCounts found(sizes.heads);
  MobaStatistics statistics;
  if (counts != nullptr) {
    statistics.selected_max_logit = found.max_logit;
    statistics.nonfinite_rows = found.nonfinite_rows;
  }
  MUSTER_RETURN_IF_ERROR(moba_forward(
      problem.get(),
      options,
      {tensors.q.data() + at},
      {all.k.data() + key},
      {all.v.data() + key},
      segment_means(call, segment, options.block, keys, means),
      {out.data() + at},
      part_lse.data(),
      selection,
      statistics));
  put_segment_lse(part_lse, segment, sizes, lse);
  if (counts != nullptr) {
    counts->add(found);
  }
  return {};
}

}  // namespace

Status context_moba_forward(
    const ContextCall& call,
    const MobaOptions& options,
    const ContextTensors& tensors,
    std::span<float> out,
    std::span<float> lse,
    ContextSelection& selection,
    const AttentionStatistics& statistics) {
  MUSTER_RETURN_IF_ERROR(check_context_call(call, &options));
  MUSTER_RETURN_IF_ERROR(check_context_forward(call, tensors, out, lse, statistics));
  std::vector<float> means;
  MUSTER_RETURN_IF_ERROR(context_block_means(call, options, tensors.k, means));
  GatheredKeys all;
  MUSTER_RETURN_IF_ERROR(gather_keys(call, tensors, all));
  const auto segments = call.plan.segments(call.world.rank());
  selection.choices.resize(segments.size());
  ContextCounts counts(call.problem.heads);
  const bool count = !statistics.max_logit.empty() || !statistics.nonfinite_rows.empty();
  for (std::size_t s = 0; s < segments.size(); ++s) {
    MUSTER_RETURN_IF_ERROR(forward_segment(
        call,
        options,
        tensors,
        all,
        means,
        segments[s],
        out,
        lse,
        selection.choices[s],
        count ? &counts : nullptr));
  }
  return counts.share(call, statistics);
}

Status context_moba_backward(
    const ContextCall& call,
    const MobaOptions& options,
    const ContextTensors& tensors,
    std::span<const float> out,
    std::span<const float> lse,
    std::span<const float> dout,
    const ContextSelection& selection,
    const ContextGradients& gradients) {
  MUSTER_RETURN_IF_ERROR(check_context_call(call, &options));
  MUSTER_RETURN_IF_ERROR(check_context_backward(call, tensors, out, lse, dout, gradients));
  const ContextSizes sizes(call);
  const auto segments = call.plan.segments(call.world.rank());
  if (selection.choices.size() != segments.size()) {
    return invalid_argument(
        "selection is of " + std::to_string(selection.choices.size()) + " segments, the plan has " +
        std::to_string(segments.size()) + " on this rank; give that of the forward call");
  }
  GatheredKeys all;
  MUSTER_RETURN_IF_ERROR(gather_keys(call, tensors, all));
  std::vector<float> dk(all.k.size(), 0.0F);
  std::vector<float> dv(all.v.size(), 0.0F);
  for (std::size_t s = 0; s < segments.size(); ++s) {
    const ContextSegment& segment = segments[s];
    const std::int64_t keys = visible_keys(call, segment);
    const PairProblem problem(call.problem, segment.rows(), keys, call.problem.causal);
    const std::int64_t key = first_key(call, segment) * sizes.kv_row;
    const std::int64_t at = segment.local * sizes.q_row;
    std::vector<float> part_k(static_cast<std::size_t>(keys * sizes.kv_row));
    std::vector<float> part_v(part_k.size());
    const auto part_lse = segment_lse(lse, segment, sizes);
    MUSTER_RETURN_IF_ERROR(moba_backward(
        problem.get(),
        options,
        {tensors.q.data() + at},
        {all.k.data() + key},
        {all.v.data() + key},
        {out.data() + at},
        part_lse.data(),
        {dout.data() + at},
        selection.choices[s],
        {gradients.dq.data() + at},
        {part_k.data()},
        {part_v.data()}));
    add_to(dk.data() + key, part_k.data(), keys * sizes.kv_row);
    add_to(dv.data() + key, part_v.data(), keys * sizes.kv_row);
  }
  auto* bytes = call.traffic == nullptr ? nullptr : &call.traffic->gradient_bytes;
  MUSTER_RETURN_IF_ERROR(reduce_rows(call, dk, sizes.kv_row, gradients.dk, bytes));
  return reduce_rows(call, dv, sizes.kv_row, gradients.dv, bytes);
}

}  // namespace muster::kernels
