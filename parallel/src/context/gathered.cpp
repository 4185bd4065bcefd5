// SPDX-License-Identifier: Apache-2.0
#include "parallel/src/context/gathered.h"

namespace muster::parallel {

namespace {

// visit(segment number, segment, problem, inputs, first element of its keys), after the gathering.
template <typename Visit>
Status each_segment(
    const ContextCall& call,
    const ContextTensors& tensors,
    const GatheredKeys& all,
    const Visit& visit) {
  const ContextSizes sizes(call);
  const auto segments = call.plan.segments(call.world.rank());
  for (std::size_t s = 0; s < segments.size(); ++s) {
    const ContextSegment& segment = segments[s];
    const std::int64_t key = first_key(call, segment) * sizes.kv_row;
    const PairProblem problem(
        call.problem, segment.rows(), visible_keys(call, segment), call.problem.causal);
    const kernels::AttentionInputs inputs{
        {tensors.q.data() + segment.local * sizes.q_row},
        {all.k.data() + key},
        {all.v.data() + key}};
    MUSTER_RETURN_IF_ERROR(visit(s, segment, problem.get(), inputs, key));
  }
  return {};
}

}  // namespace

Status gathered_forward(
    const ContextCall& call,
    const ContextTensors& tensors,
    std::span<float> out,
    std::span<float> lse,
    const SegmentForward& attend) {
  const ContextSizes sizes(call);
  GatheredKeys all;
  MUSTER_RETURN_IF_ERROR(gather_keys(call, tensors, all));
  return each_segment(
      call,
      tensors,
      all,
      [&](std::size_t number,
          const ContextSegment& segment,
          const kernels::AttentionProblem& problem,
          const kernels::AttentionInputs& inputs,
          std::int64_t /*key*/) -> Status {
        std::vector<float> part_lse(static_cast<std::size_t>(segment.rows() * sizes.heads));
        MUSTER_RETURN_IF_ERROR(attend(
            number,
            problem,
            inputs,
            {{out.data() + segment.local * sizes.q_row}, part_lse.data()}));
        put_segment_lse(part_lse, segment, sizes, lse);
        return {};
      });
}

Status gathered_backward(
    const ContextCall& call,
    const ContextTensors& tensors,
    std::span<const float> out,
    std::span<const float> lse,
    std::span<const float> dout,
    const ContextGradients& gradients,
    const SegmentBackward& attend) {
  const ContextSizes sizes(call);
  GatheredKeys all;
  MUSTER_RETURN_IF_ERROR(gather_keys(call, tensors, all));
  std::vector<float> dk(all.k.size(), 0.0F);
  std::vector<float> dv(all.v.size(), 0.0F);
  const Status attended = each_segment(
      call,
      tensors,
      all,
      [&](std::size_t number,
          const ContextSegment& segment,
          const kernels::AttentionProblem& problem,
          const kernels::AttentionInputs& inputs,
          std::int64_t key) -> Status {
        const std::int64_t count = visible_keys(call, segment) * sizes.kv_row;
        const std::int64_t at = segment.local * sizes.q_row;
        std::vector<float> part_k(static_cast<std::size_t>(count));
        std::vector<float> part_v(part_k.size());
        const auto part_lse = segment_lse(lse, segment, sizes);
        MUSTER_RETURN_IF_ERROR(attend(
            number,
            problem,
            inputs,
            {{out.data() + at},
             part_lse.data(),
             {dout.data() + at},
             nullptr,
             {gradients.dq.data() + at},
             {part_k.data()},
             {part_v.data()}}));
        add_to(dk.data() + key, part_k.data(), count);
        add_to(dv.data() + key, part_v.data(), count);
        return {};
      });
  MUSTER_RETURN_IF_ERROR(attended);
  auto* bytes = call.traffic == nullptr ? nullptr : &call.traffic->gradient_bytes;
  MUSTER_RETURN_IF_ERROR(reduce_rows(call, dk, sizes.kv_row, gradients.dk, bytes));
  return reduce_rows(call, dv, sizes.kv_row, gradients.dv, bytes);
}

}  // namespace muster::parallel
