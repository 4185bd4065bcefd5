// SPDX-License-Identifier: Apache-2.0
#include "kernels/moba/cpu/check.h"

namespace muster::kernels {

Status check_moba_statistics(const MobaCall& call, const MobaStatistics& s) {
  const std::int64_t heads = call.heads;
  MUSTER_RETURN_IF_ERROR(check_moba_span("selected_max_logit", s.selected_max_logit, heads));
  MUSTER_RETURN_IF_ERROR(check_moba_span("gate_bound", s.gate_bound, heads));
  MUSTER_RETURN_IF_ERROR(check_moba_span("norm_bound", s.norm_bound, heads));
  MUSTER_RETURN_IF_ERROR(check_moba_span("nonfinite_rows", s.nonfinite_rows, heads));
  MUSTER_RETURN_IF_ERROR(check_moba_span("nonfinite_scores", s.nonfinite_scores, heads));
  MUSTER_RETURN_IF_ERROR(check_moba_span("block_counts", s.block_counts, heads * call.max_blocks));
  MUSTER_RETURN_IF_ERROR(check_moba_span("sink_share", s.sink_share, heads));
  MUSTER_RETURN_IF_ERROR(check_moba_span("gate_margin", s.gate_margin, heads));
  return check_moba_span("gate_margin_rows", s.gate_margin_rows, heads);
}

std::size_t means_size(const MobaCall& call) {
  return static_cast<std::size_t>(call.kv_heads * call.total_blocks * call.head_dim);
}

Status check_means(const MobaCall& call, std::size_t got) {
  if (got != means_size(call)) {
    return invalid_argument(
        "means must have kv_heads * blocks * head_dim = ",
        means_size(call),
        " elements, got ",
        got);
  }
  return {};
}

Expected<GradientTensors> moba_gradient_tensors(
    const MobaCall& call, const AttentionGradients& gradients, std::int64_t keys) {
  if (gradients.dlse != nullptr) {
    return invalid_argument("dlse must be null: block attention does not differentiate lse");
  }
  return gradient_tensors(call, gradients, keys);
}

}  // namespace muster::kernels
