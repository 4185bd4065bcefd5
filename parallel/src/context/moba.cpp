// SPDX-License-Identifier: Apache-2.0
// Block attention: every rank has all pooled keys, so that all choices are made before keys move.
#include "parallel/src/context/full_pairs.h"
#include "parallel/src/context/moba_counts.h"

#include <algorithm>
#include <string>

namespace muster::parallel {

namespace {

// Means of the blocks in a segment's call, [kv_heads, blocks, head_dim]. If the segment's end cuts
// the last of them short, it is not a candidate of the segment's queries.
std::vector<float> segment_means(
    const ContextCall& call,
    const ContextSegment& segment,
    std::int64_t block,
    const std::vector<float>& means) {
  const std::int64_t dim = call.problem.head_dim;
  const std::int64_t heads = ContextSizes(call).kv_row / dim;
  const std::int64_t all = static_cast<std::int64_t>(means.size()) / (heads * dim);
  const auto before = call.plan.cu().first(static_cast<std::size_t>(segment.sequence) + 1);
  const std::int64_t first = kernels::moba_block_count(before, block);
  const std::int64_t keys[2] = {0, visible_keys(call, segment)};
  const std::int64_t count = kernels::moba_block_count(keys, block);
  std::vector<float> part(static_cast<std::size_t>(heads * count * dim));
  for (std::int64_t head = 0; head < heads; ++head) {
    std::copy_n(
        means.data() + (head * all + first) * dim, count * dim, part.data() + head * count * dim);
  }
  return part;
}

// A segment has a prefix of its sequence and chooses as the whole sequence does.
kernels::MobaOptions segment_options(
    const ContextCall& call, const kernels::MobaOptions& options, const ContextSegment& segment) {
  kernels::MobaOptions result = options;
  result.whole_length = call.problem.causal ? call.plan.length(segment.sequence) : 0;
  return result;
}

std::int64_t segment_blocks(
    const ContextCall& call, const kernels::MobaOptions& options, const ContextSegment& segment) {
  const std::int64_t keys[2] = {0, visible_keys(call, segment)};
  return kernels::moba_block_count(keys, options.block);
}

// True if its sequence uses full attention.
bool is_dense(
    const ContextCall& call, const kernels::MobaOptions& options, const ContextSegment& segment) {
  const std::int64_t keys[2] = {0, call.plan.length(segment.sequence)};
  return kernels::moba_block_count(keys, options.block) <= options.top_k;
}

Status check_selection(const ContextCall& call, const ContextSelection& selection) {
  const auto segments = call.plan.segments(call.world.rank());
  if (selection.choices.size() != segments.size()) {
    return invalid_argument(
        "selection is of ",
        selection.choices.size(),
        " segments, the plan has ",
        segments.size(),
        " on this rank; give that of the forward call");
  }
  return {};
}

Status forward_with_all_keys(
    const ContextCall& call,
    const kernels::MobaOptions& options,
    const ContextTensors& tensors,
    const std::vector<float>& means,
    std::span<float> out,
    std::span<float> lse,
    ContextSelection& selection,
    ContextMobaCounts& counts) {
  const auto segments = call.plan.segments(call.world.rank());
  return gathered_forward(
      call,
      tensors,
      out,
      lse,
      [&](std::size_t s,
          const kernels::AttentionProblem& problem,
          const kernels::AttentionInputs& in,
          const kernels::AttentionOutputs& to) -> Status {
        MUSTER_RETURN_IF_ERROR(kernels::moba_forward(
            problem,
            segment_options(call, options, segments[s]),
            in,
            segment_means(call, segments[s], options.block, means),
            to,
            selection.choices[s],
            counts.segment_spans(segment_blocks(call, options, segments[s]), true)));
        counts.add_segment();
        return {};
      });
}

// Makes all choices of this rank's queries.
Status choose(
    const ContextCall& call,
    const kernels::MobaOptions& options,
    const ContextTensors& tensors,
    const std::vector<float>& means,
    ContextSelection& selection,
    ContextMobaCounts& counts) {
  const ContextSizes sizes(call);
  const auto segments = call.plan.segments(call.world.rank());
  for (std::size_t s = 0; s < segments.size(); ++s) {
    const PairProblem problem(
        call.problem, segments[s].rows(), visible_keys(call, segments[s]), call.problem.causal);
    MUSTER_RETURN_IF_ERROR(kernels::moba_choose(
        problem.get(),
        segment_options(call, options, segments[s]),
        {tensors.q.data() + segments[s].local * sizes.q_row},
        segment_means(call, segments[s], options.block, means),
        selection.choices[s],
        counts.segment_spans(segment_blocks(call, options, segments[s]), false)));
    counts.add_segment();
  }
  return {};
}

Status attend_pair(
    const ContextCall& call,
    const kernels::MobaOptions& options,
    const RingPair& pair,
    const kernels::AttentionOutputs& part,
    const kernels::MobaSelection& selection,
    RowCounts* counts) {
  if (is_dense(call, options, pair.queries)) {
    return attend_full_pair(call, pair, part, counts);
  }
  const ContextSizes sizes(call);
  const auto rows = static_cast<std::size_t>(pair.queries.rows());
  const PairProblem problem(
      call.problem, pair.queries.rows(), visible_keys(call, pair.queries), call.problem.causal);
  std::vector<std::uint8_t> bad;
  kernels::MobaPartStatistics statistics;
  if (counts != nullptr) {
    bad.assign(static_cast<std::size_t>(sizes.heads) * rows, 0);
    statistics = {counts->max_logit, bad};
  }
  MUSTER_RETURN_IF_ERROR(kernels::moba_attend_range(
      problem.get(),
      segment_options(call, options, pair.queries),
      {pair.keys.begin, pair.keys.end},
      pair.inputs,
      selection,
      part,
      statistics));
  for (std::size_t i = 0; i < bad.size(); ++i) {
    const std::size_t place = i / rows * static_cast<std::size_t>(sizes.rows) +
                              static_cast<std::size_t>(pair.queries.local) + i % rows;
    counts->rows[place] = bad[i] != 0 ? 1 : counts->rows[place];
  }
  return {};
}

Status attend_pair_backward(
    const ContextCall& call,
    const kernels::MobaOptions& options,
    const RingPair& pair,
    const kernels::AttentionGradients& part,
    const kernels::MobaSelection& selection) {
  if (is_dense(call, options, pair.queries)) {
    return attend_full_pair_backward(call, pair, part);
  }
  const PairProblem problem(
      call.problem, pair.queries.rows(), visible_keys(call, pair.queries), call.problem.causal);
  return kernels::moba_attend_range_backward(
      problem.get(),
      segment_options(call, options, pair.queries),
      {pair.keys.begin, pair.keys.end},
      pair.inputs,
      part,
      selection);
}

}  // namespace

Status context_moba_forward(
    const ContextCall& call,
    ContextForm form,
    const kernels::MobaOptions& options,
    const ContextTensors& tensors,
    std::span<float> out,
    std::span<float> lse,
    ContextSelection& selection,
    const kernels::MobaStatistics& statistics) {
  MUSTER_RETURN_IF_ERROR(check_context_call(call, &options));
  MUSTER_RETURN_IF_ERROR(check_context_forward(call, tensors, out, lse, {}));
  MUSTER_RETURN_IF_ERROR(check_context_moba(call, options, statistics));
  std::vector<float> means;
  MUSTER_RETURN_IF_ERROR(context_block_means(call, options, tensors.k, means));
  selection.choices.resize(call.plan.segments(call.world.rank()).size());
  ContextMobaCounts counts(call, options, statistics);
  if (form == ContextForm::kAllGather) {
    MUSTER_RETURN_IF_ERROR(
        forward_with_all_keys(call, options, tensors, means, out, lse, selection, counts));
    return counts.share(tensors.q, tensors.k);
  }
  MUSTER_RETURN_IF_ERROR(choose(call, options, tensors, means, selection, counts));
  RowCounts rows{ContextSizes(call)};
  MUSTER_RETURN_IF_ERROR(ring_forward(
      call, tensors, out, lse, [&](const RingPair& pair, const kernels::AttentionOutputs& part) {
        return attend_pair(
            call,
            options,
            pair,
            part,
            selection.choices[pair.segment],
            counts.wants_rows() ? &rows : nullptr);
      }));
  counts.add_rows(rows);
  return counts.share(tensors.q, tensors.k);
}

Status context_moba_backward(
    const ContextCall& call,
    ContextForm form,
    const kernels::MobaOptions& options,
    const ContextTensors& tensors,
    std::span<const float> out,
    std::span<const float> lse,
    std::span<const float> dout,
    const ContextSelection& selection,
    const ContextGradients& gradients) {
  MUSTER_RETURN_IF_ERROR(check_context_call(call, &options));
  MUSTER_RETURN_IF_ERROR(check_context_backward(call, tensors, out, lse, dout, gradients));
  MUSTER_RETURN_IF_ERROR(check_selection(call, selection));
  if (form == ContextForm::kRing) {
    return ring_backward(
        call,
        tensors,
        out,
        lse,
        dout,
        gradients,
        [&](const RingPair& pair, const kernels::AttentionGradients& part) {
          return attend_pair_backward(call, options, pair, part, selection.choices[pair.segment]);
        });
  }
  const auto segments = call.plan.segments(call.world.rank());
  return gathered_backward(
      call,
      tensors,
      out,
      lse,
      dout,
      gradients,
      [&](std::size_t s,
          const kernels::AttentionProblem& problem,
          const kernels::AttentionInputs& in,
          const kernels::AttentionGradients& g) {
        return kernels::moba_backward(
            problem, segment_options(call, options, segments[s]), in, g, selection.choices[s]);
      });
}

}  // namespace muster::parallel
