// SPDX-License-Identifier: Apache-2.0
// The public calls: checks, then gate, sparse sequences, dense sequences, statistics.
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

// Adds exact attention of the dense sequences to `report`.
void attend_dense(const MobaCall& call, const MobaForwardTensors& tensors, MobaReport& report) {
  const AttentionCall dense = dense_sequences(call);
  if (dense.sequences.empty()) {
    return;
  }
  FlashCounts counts(call.heads);
  flash_forward(dense, tensors.in, tensors.out, &counts);
  for (std::size_t h = 0; h < counts.max_logit.size(); ++h) {
    report.max_logit[h] = std::max(report.max_logit[h], counts.max_logit[h]);
    report.nonfinite_rows[h] += counts.nonfinite_rows[h];
  }
}

}  // namespace

Status moba_block_means(
    const AttentionProblem& problem,
    const MobaOptions& options,
    AttentionInput k,
    std::span<float> means,
    std::span<std::int64_t> nonfinite_keys) {
  MUSTER_ASSIGN_OR_RETURN(const MobaCall call, moba_call(problem, options));
  MUSTER_ASSIGN_OR_RETURN(const AttentionTensor keys, key_tensor(call, "k", k, call.total_k));
  MUSTER_RETURN_IF_ERROR(check_means(call, means.size()));
  MUSTER_RETURN_IF_ERROR(check_moba_span("nonfinite_keys", nonfinite_keys, call.kv_heads));
  make_block_means(call, keys, means.data());
  if (!nonfinite_keys.empty()) {
    count_nonfinite_keys(call, keys, nonfinite_keys);
  }
  return {};
}

Status moba_forward(
    const AttentionProblem& problem,
    const MobaOptions& options,
    const AttentionInputs& inputs,
    std::span<const float> means,
    const AttentionOutputs& outputs,
    MobaSelection& selection,
    const MobaStatistics& statistics) {
  MUSTER_ASSIGN_OR_RETURN(const MobaCall call, moba_call(problem, options));
  MobaForwardTensors tensors;
  MUSTER_ASSIGN_OR_RETURN(tensors.in, input_tensors(call, inputs, call.total_k));
  MUSTER_ASSIGN_OR_RETURN(tensors.out, output_tensors(call, outputs));
  tensors.count_nonfinite = !statistics.nonfinite_rows.empty();
  if (!means.empty()) {
    MUSTER_RETURN_IF_ERROR(check_means(call, means.size()));
  }
  MUSTER_RETURN_IF_ERROR(check_moba_statistics(call, statistics));

  MobaSelection::State& state = selection.state();
  state.begin(call);
  MobaReport report(call);
  if (call.sparse) {
    std::vector<float> own_means;
    if (means.empty()) {
      own_means.resize(means_size(call));
      make_block_means(call, tensors.in.k, own_means.data());
      means = own_means;
    }
    choose_blocks(
        tensors.in.q, means.data(), state, wants_gate(statistics) ? &report.gate : nullptr);
  }
  state.build_lists();
  moba_attend_all(tensors, state, report.max_logit, report.nonfinite_rows);
  attend_dense(call, tensors, report);
  write_statistics(tensors.in.q, tensors.in.k, state, report, statistics);
  return {};
}

Status moba_backward(
    const AttentionProblem& problem,
    const MobaOptions& options,
    const AttentionInputs& inputs,
    const AttentionGradients& gradients,
    const MobaSelection& selection) {
  MUSTER_ASSIGN_OR_RETURN(const MobaCall call, moba_call(problem, options));
  MobaGradientTensors tensors;
  MUSTER_ASSIGN_OR_RETURN(tensors.in, input_tensors(call, inputs, call.total_k));
  MUSTER_ASSIGN_OR_RETURN(tensors.gradients, moba_gradient_tensors(call, gradients, call.total_k));
  MUSTER_RETURN_IF_ERROR(selection.state().check(call));
  const AttentionCall dense = dense_sequences(call);
  if (!dense.sequences.empty()) {
    flash_backward(dense, tensors.in, tensors.gradients);
  }
  // The selection was made for the same problem, up to the number of threads and the scale.
  moba_gradients(call, tensors, selection.state());
  return {};
}

}  // namespace muster::kernels
