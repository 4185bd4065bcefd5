#include "context/pair.h"
#include "context/ring.h"

namespace muster::kernels {

namespace {

Status gather_forward(
    const ContextCall& call,
    const ContextTensors& tensors,
    std::span<float> out,
    std::span<float> lse,
    ContextCounts* counts) {
  const ContextSizes sizes(call);
  GatheredKeys all;
  MUSTER_RETURN_IF_ERROR(gather_keys(call, tensors, all));
  for (const ContextSegment& segment : call.plan.segments(call.world.rank())) {
    const PairProblem problem(
        call.problem, segment.rows(), visible_keys(call, segment), call.problem.causal);
    const std::int64_t key = first_key(call, segment) * sizes.kv_row;
    const std::int64_t at = segment.local * sizes.q_row;
    std::vector<float> part_lse(static_cast<std::size_t>(segment.rows() * sizes.heads));
    ContextCounts found(sizes.heads);
    MUSTER_RETURN_IF_ERROR(flash_attention_forward(
        problem.get(),
        {tensors.q.data() + at},
        {all.k.data() + key},
        {all.v.data() + key},
        {out.data() + at},
        part_lse.data(),
        counts == nullptr ? AttentionStatistics{} : found.spans()));
    put_segment_lse(part_lse, segment, sizes, lse);
    if (counts != nullptr) {
      counts->add(found);
    }
  }
  return {};
}

Status gather_backward(
    const ContextCall& call,
    const ContextTensors& tensors,
    std::span<const float> out,
    std::span<const float> lse,
    std::span<const float> dout,
    const ContextGradients& gradients) {
  const ContextSizes sizes(call);
  GatheredKeys all;
  MUSTER_RETURN_IF_ERROR(gather_keys(call, tensors, all));
  std::vector<float> dk(all.k.size(), 0.0F);
  std::vector<float> dv(all.v.size(), 0.0F);
  for (const ContextSegment& segment : call.plan.segments(call.world.rank())) {
    const std::int64_t keys = visible_keys(call, segment);
    const PairProblem problem(call.problem, segment.rows(), keys, call.problem.causal);
    const std::int64_t key = first_key(call, segment) * sizes.kv_row;
    const std::int64_t at = segment.local * sizes.q_row;
    std::vector<float> part_k(static_cast<std::size_t>(keys * sizes.kv_row));
    std::vector<float> part_v(part_k.size());
    const auto part_lse = segment_lse(lse, segment, sizes);
    MUSTER_RETURN_IF_ERROR(flash_attention_backward(
        problem.get(),
        {tensors.q.data() + at},
        {all.k.data() + key},
        {all.v.data() + key},
        {out.data() + at},
        part_lse.data(),
        {dout.data() + at},
        nullptr,
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

}  // namespace

Status context_attention_forward(
    const ContextCall& call,
    ContextForm form,
    const ContextTensors& tensors,
    std::span<float> out,
    std::span<float> lse,
    const AttentionStatistics& statistics) {
  MUSTER_RETURN_IF_ERROR(check_context_call(call, nullptr));
  MUSTER_RETURN_IF_ERROR(check_context_forward(call, tensors, out, lse, statistics));
  ContextCounts counts(call.problem.heads);
  const bool count = !statistics.max_logit.empty() || !statistics.nonfinite_rows.empty();
  MUSTER_RETURN_IF_ERROR((form == ContextForm::kRing ? ring_forward : gather_forward)(
      call, tensors, out, lse, count ? &counts : nullptr));
  return counts.share(call, statistics);
}

Status context_attention_backward(
    const ContextCall& call,
    ContextForm form,
    const ContextTensors& tensors,
    std::span<const float> out,
    std::span<const float> lse,
    std::span<const float> dout,
    const ContextGradients& gradients) {
  MUSTER_RETURN_IF_ERROR(check_context_call(call, nullptr));
  MUSTER_RETURN_IF_ERROR(check_context_backward(call, tensors, out, lse, dout, gradients));
  return (form == ContextForm::kRing ? ring_backward : gather_backward)(
      call, tensors, out, lse, dout, gradients);
}

}  // namespace muster::kernels
