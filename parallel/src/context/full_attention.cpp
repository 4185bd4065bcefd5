// SPDX-License-Identifier: Apache-2.0
#include "parallel/src/context/full_pairs.h"
#include "parallel/src/context/gathered.h"

namespace muster::parallel {

Status context_attention_forward(
    const ContextCall& call,
    ContextForm form,
    const ContextTensors& tensors,
    std::span<float> out,
    std::span<float> lse,
    const kernels::AttentionStatistics& statistics) {
  MUSTER_RETURN_IF_ERROR(check_context_call(call, nullptr));
  MUSTER_RETURN_IF_ERROR(check_context_forward(call, tensors, out, lse, statistics));
  const ContextSizes sizes(call);
  ContextCounts counts(sizes.heads);
  const bool count = !statistics.max_logit.empty() || !statistics.nonfinite_rows.empty();
  if (form == ContextForm::kRing) {
    RowCounts rows(sizes);
    MUSTER_RETURN_IF_ERROR(ring_forward(
        call, tensors, out, lse, [&](const RingPair& pair, const kernels::AttentionOutputs& part) {
          return attend_full_pair(call, pair, part, count ? &rows : nullptr);
        }));
    counts.max_logit = rows.max_logit;
    counts.nonfinite_rows = rows.totals(sizes);
    return counts.share(call, statistics);
  }
  const Status attended = gathered_forward(
      call,
      tensors,
      out,
      lse,
      [&](std::size_t /*segment*/,
          const kernels::AttentionProblem& problem,
          const kernels::AttentionInputs& in,
          const kernels::AttentionOutputs& to) -> Status {
        ContextCounts found(sizes.heads);
        MUSTER_RETURN_IF_ERROR(kernels::attention_forward(
            problem, in, to, count ? found.spans() : kernels::AttentionStatistics{}));
        counts.add(found);
        return {};
      });
  MUSTER_RETURN_IF_ERROR(attended);
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
  if (form == ContextForm::kRing) {
    return ring_backward(
        call,
        tensors,
        out,
        lse,
        dout,
        gradients,
        [&](const RingPair& pair, const kernels::AttentionGradients& part) {
          return attend_full_pair_backward(call, pair, part);
        });
  }
  return gathered_backward(
      call,
      tensors,
      out,
      lse,
      dout,
      gradients,
      [](std::size_t /*segment*/,
         const kernels::AttentionProblem& problem,
         const kernels::AttentionInputs& in,
         const kernels::AttentionGradients& g) {
        return kernels::attention_backward(problem, in, g);
      });
}

}  // namespace muster::parallel
