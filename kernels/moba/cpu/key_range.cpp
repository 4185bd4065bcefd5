// SPDX-License-Identifier: Apache-2.0
// Block attention in parts: the gate alone, then attention over a range of keys.
#include "kernels/attention/cpu/check.h"
#include "kernels/moba/cpu/backward.h"
#include "kernels/moba/cpu/check.h"
#include "kernels/moba/cpu/forward.h"
#include "kernels/moba/cpu/gate.h"
#include "kernels/moba/cpu/statistics.h"

#include <muster/kernels/moba.h>

#include <algorithm>

namespace muster::kernels {

namespace {

// Checks the rules of a call that has `range` of the keys of its only sequence.
Status check_range(const MobaCall& call, MobaKeyRange range) {
  if (call.type == DType::kBFloat16) {
    return invalid_argument(
        "type must be fp32 or fp64: merging parts in bf16 loses precision; widen them first");
  }
  if (call.cut_sequences.size() != 1 || call.cut_sequences.front().dense) {
    return invalid_argument(
        "cu_k must be of one sequence of more than top_k blocks; use attention_forward for parts "
        "of shorter ones");
  }
  if (range.begin < 0 || range.end < range.begin || range.end > call.total_k) {
    return invalid_argument(
        "range must be within the ",
        call.total_k,
        " keys of the sequence, got [",
        range.begin,
        ", ",
        range.end,
        ")");
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
  MUSTER_ASSIGN_OR_RETURN(const MobaCall call, moba_call(problem, options));
  MUSTER_ASSIGN_OR_RETURN(const AttentionTensor queries, query_tensor(call, "q", q));
  MUSTER_RETURN_IF_ERROR(check_means(call, means.size()));
  MUSTER_RETURN_IF_ERROR(check_moba_statistics(call, statistics));
  if (!statistics.selected_max_logit.empty() || !statistics.norm_bound.empty() ||
      !statistics.nonfinite_rows.empty()) {
    return invalid_argument(
        "statistics: selected_max_logit, norm_bound and nonfinite_rows must be empty, because the "
        "gate alone computes none of them");
  }
  MobaSelection::State& state = selection.state();
  state.begin(call);
  MobaGateReport gate;
  if (call.sparse) {
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
    const AttentionInputs& inputs,
    const MobaSelection& selection,
    const AttentionOutputs& outputs,
    const MobaPartStatistics& statistics) {
  MUSTER_ASSIGN_OR_RETURN(const MobaCall call, moba_call(problem, options));
  MUSTER_RETURN_IF_ERROR(check_range(call, range));
  MobaForwardTensors tensors;
  MUSTER_ASSIGN_OR_RETURN(tensors.in, input_tensors(call, inputs, range.end - range.begin));
  MUSTER_ASSIGN_OR_RETURN(tensors.out, output_tensors(call, outputs));
  MUSTER_RETURN_IF_ERROR(
      check_moba_span("selected_max_logit", statistics.selected_max_logit, call.heads));
  MUSTER_RETURN_IF_ERROR(
      check_moba_span("nonfinite_rows", statistics.nonfinite_rows, call.heads * call.total_q));
  MUSTER_RETURN_IF_ERROR(selection.state().check(call));
  tensors.part = {range.begin, range.end};
  tensors.count_nonfinite = !statistics.nonfinite_rows.empty();
  tensors.bad_rows = statistics.nonfinite_rows.data();
  MobaReport report(call);
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
    const AttentionInputs& inputs,
    const AttentionGradients& gradients,
    const MobaSelection& selection) {
  MUSTER_ASSIGN_OR_RETURN(const MobaCall call, moba_call(problem, options));
  MUSTER_RETURN_IF_ERROR(check_range(call, range));
  const std::int64_t keys = range.end - range.begin;
  MobaGradientTensors tensors;
  MUSTER_ASSIGN_OR_RETURN(tensors.in, input_tensors(call, inputs, keys));
  MUSTER_ASSIGN_OR_RETURN(tensors.gradients, moba_gradient_tensors(call, gradients, keys));
  MUSTER_RETURN_IF_ERROR(selection.state().check(call));
  tensors.part = {range.begin, range.end};
  moba_gradients(call, tensors, selection.state());
  return {};
}

}  // namespace muster::kernels
