#include "kernels/moba/cpu/statistics_check.h"

namespace muster::kernels {

Status check_moba_statistics(const MobaPlan& plan, const MobaStatistics& s) {
  const std::int64_t heads = plan.heads;
  MUSTER_RETURN_IF_ERROR(check_moba_span("selected_max_logit", s.selected_max_logit, heads));
  MUSTER_RETURN_IF_ERROR(check_moba_span("gate_bound", s.gate_bound, heads));
  MUSTER_RETURN_IF_ERROR(check_moba_span("norm_bound", s.norm_bound, heads));
  MUSTER_RETURN_IF_ERROR(check_moba_span("nonfinite_rows", s.nonfinite_rows, heads));
  MUSTER_RETURN_IF_ERROR(check_moba_span("nonfinite_scores", s.nonfinite_scores, heads));
  MUSTER_RETURN_IF_ERROR(check_moba_span("block_counts", s.block_counts, heads * plan.max_blocks));
  MUSTER_RETURN_IF_ERROR(check_moba_span("sink_share", s.sink_share, heads));
  MUSTER_RETURN_IF_ERROR(check_moba_span("gate_margin", s.gate_margin, heads));
  return check_moba_span("gate_margin_rows", s.gate_margin_rows, heads);
}

Status check_moba_lse(const MobaPlan& plan, const void* lse) {
  if (plan.total_q > 0 && lse == nullptr) {
    return invalid_argument("lse has no data: the backward pass needs it");
  }
  const std::size_t size = plan.type == AttentionType::kFloat64 ? 8 : 4;
  if (reinterpret_cast<std::uintptr_t>(lse) % size != 0) {
    return invalid_argument(
        "lse is not aligned to its elements of " + std::to_string(size) + " bytes");
  }
  return {};
}

}  // namespace muster::kernels
