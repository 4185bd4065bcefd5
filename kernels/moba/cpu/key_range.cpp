// Block attention in parts: the gate alone, then attention over a range of keys.
#include "kernels/moba/cpu/backward.h"
#include "kernels/moba/cpu/dense.h"
#include "kernels/moba/cpu/forward.h"
#include "kernels/moba/cpu/gate.h"
#include "kernels/moba/cpu/statistics.h"
#include "kernels/moba/cpu/statistics_check.h"

#include <muster/kernels/moba.h>

#include <algorithm>
#include <string>

namespace muster::kernels {

namespace {

// The rules of a call that has `range` of the keys of its only sequence.
Status check_range(const MobaPlan& plan, MobaKeyRange range) {
  if (plan.type == AttentionType::kBFloat16) {
    return invalid_argument(
        "type must be fp32 or fp64: parts in bf16 lose what their merge sums up; widen them first");
  }
  if (plan.sequences.size() != 1 || plan.sequences.front().dense) {
    return invalid_argument(
        "cu_k must be of one sequence of more than top_k blocks; parts of shorter ones are those "
        "of flash_attention_forward");
  }
  const std::int64_t keys = plan.sequences.front().keys;
  if (range.begin < 0 || range.end < range.begin || range.end > keys) {
    return invalid_argument(
        "range is [" + std::to_string(range.begin) + ", " + std::to_string(range.end) +
        "), must lie in the " + std::to_string(keys) + " keys of the sequence");
  }
  return {};
}

}  // namespace

Status moba_choose(
    const AttentionProblem& problem,
    const MobaOptions& options,
    AttentionInput q,
    std::span<const float> means,
    MobaSelection& selection,
    const MobaStatistics& statistics) {
  MUSTER_ASSIGN_OR_RETURN(const MobaPlan plan, plan_moba(problem, options));
  MUSTER_ASSIGN_OR_RETURN(
      const MobaTensor queries, moba_input("q", q, plan, plan.total_q, plan.heads));
  const std::int64_t size = plan.kv_heads * plan.total_blocks * plan.dim;
  if (static_cast<std::int64_t>(means.size()) != size) {
    return invalid_argument(
        "means has " + std::to_string(means.size()) +
        " elements, must have kv_heads * blocks * head_dim = " + std::to_string(size));
  }
  MUSTER_RETURN_IF_ERROR(check_moba_statistics(plan, statistics));
  if (!statistics.selected_max_logit.empty() || !statistics.norm_bound.empty() ||
      !statistics.nonfinite_rows.empty()) {
    return invalid_argument(
        "statistics: selected_max_logit, norm_bound and nonfinite_rows must be empty, nothing is "
        "attended to yet");
  }
  MobaSelection::State& state = selection.state();
  state.begin(plan);
  MobaGateReport gate;
  if (plan.sparse) {
    choose_blocks(queries, means.data(), state, wants_gate(statistics) ? &gate : nullptr);
  }
  state.build_lists();
  write_choice_statistics(state, gate, statistics);
  return {};
}

Status moba_attend_range(
    const AttentionProblem& problem,
    const MobaOptions& options,
    MobaKeyRange range,
    AttentionInput q,
    AttentionInput k,
    AttentionInput v,
    const MobaSelection& selection,
    AttentionOutput out,
    void* lse,
    const MobaPartStatistics& statistics) {
  MUSTER_ASSIGN_OR_RETURN(const MobaPlan plan, plan_moba(problem, options));
  MUSTER_RETURN_IF_ERROR(check_range(plan, range));
  const std::int64_t keys = range.end - range.begin;
  MobaForwardTensors tensors;
  MUSTER_ASSIGN_OR_RETURN(tensors.q, moba_input("q", q, plan, plan.total_q, plan.heads));
  MUSTER_ASSIGN_OR_RETURN(tensors.k, moba_input("k", k, plan, keys, plan.kv_heads));
  MUSTER_ASSIGN_OR_RETURN(tensors.v, moba_input("v", v, plan, keys, plan.kv_heads));
  MUSTER_ASSIGN_OR_RETURN(tensors.out, moba_output("out", out, plan, plan.total_q, plan.heads));
  MUSTER_RETURN_IF_ERROR(check_moba_lse(plan, lse));
  MUSTER_RETURN_IF_ERROR(
      check_moba_span("selected_max_logit", statistics.selected_max_logit, plan.heads));
  MUSTER_RETURN_IF_ERROR(
      check_moba_span("nonfinite_rows", statistics.nonfinite_rows, plan.heads * plan.total_q));
  MUSTER_RETURN_IF_ERROR(selection.state().check(plan));
  tensors.lse = lse;
  tensors.part = {range.begin, range.end};
  tensors.count_nonfinite = !statistics.nonfinite_rows.empty();
  tensors.bad_rows = statistics.nonfinite_rows.data();
  MobaReport report(plan);
  moba_attend_all(tensors, selection.state(), report.max_logit, report.nonfinite_rows);
  for (std::size_t h = 0; h < statistics.selected_max_logit.size(); ++h) {
    statistics.selected_max_logit[h] =
        std::max(statistics.selected_max_logit[h], report.max_logit[h]);
  }
  return {};
}

Status moba_attend_range_backward(
    const AttentionProblem& problem,
    const MobaOptions& options,
    MobaKeyRange range,
    AttentionInput q,
    AttentionInput k,
    AttentionInput v,
    AttentionInput out,
    const void* lse,
    AttentionInput dout,
    const MobaSelection& selection,
    AttentionOutput dq,
    AttentionOutput dk,
    AttentionOutput dv) {
  MUSTER_ASSIGN_OR_RETURN(const MobaPlan plan, plan_moba(problem, options));
  MUSTER_RETURN_IF_ERROR(check_range(plan, range));
  const std::int64_t keys = range.end - range.begin;
  MobaGradientTensors tensors;
  MUSTER_ASSIGN_OR_RETURN(tensors.q, moba_input("q", q, plan, plan.total_q, plan.heads));
  MUSTER_ASSIGN_OR_RETURN(tensors.k, moba_input("k", k, plan, keys, plan.kv_heads));
  MUSTER_ASSIGN_OR_RETURN(tensors.v, moba_input("v", v, plan, keys, plan.kv_heads));
  MUSTER_ASSIGN_OR_RETURN(tensors.out, moba_input("out", out, plan, plan.total_q, plan.heads));
  MUSTER_ASSIGN_OR_RETURN(tensors.dout, moba_input("dout", dout, plan, plan.total_q, plan.heads));
  MUSTER_ASSIGN_OR_RETURN(tensors.dq, moba_output("dq", dq, plan, plan.total_q, plan.heads));
  MUSTER_ASSIGN_OR_RETURN(tensors.dk, moba_output("dk", dk, plan, keys, plan.kv_heads));
  MUSTER_ASSIGN_OR_RETURN(tensors.dv, moba_output("dv", dv, plan, keys, plan.kv_heads));
  MUSTER_RETURN_IF_ERROR(check_moba_lse(plan, lse));
  MUSTER_RETURN_IF_ERROR(selection.state().check(plan));
  tensors.lse = lse;
  tensors.part = {range.begin, range.end};
  moba_gradients(plan, tensors, selection.state());
  return {};
}

}  // namespace muster::kernels
