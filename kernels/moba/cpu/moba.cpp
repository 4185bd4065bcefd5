// The public calls: checks, then gate, sparse sequences, dense sequences, statistics.
#include "kernels/moba/cpu/backward.h"
#include "kernels/moba/cpu/dense.h"
#include "kernels/moba/cpu/forward.h"
#include "kernels/moba/cpu/gate.h"
#include "kernels/moba/cpu/statistics.h"
#include "kernels/moba/cpu/statistics_check.h"

#include <muster/kernels/moba.h>

#include <string>

namespace muster::kernels {

Status moba_block_means(
    const AttentionProblem& problem,
    const MobaOptions& options,
    AttentionInput k,
    std::span<float> means,
    std::span<std::int64_t> nonfinite_keys) {
  MUSTER_ASSIGN_OR_RETURN(const MobaPlan plan, plan_moba(problem, options));
  MUSTER_ASSIGN_OR_RETURN(
      const MobaTensor keys, moba_input("k", k, plan, plan.total_k, plan.kv_heads));
  const std::int64_t size = plan.kv_heads * plan.total_blocks * plan.dim;
  if (static_cast<std::int64_t>(means.size()) != size) {
    return invalid_argument(
        "means has " + std::to_string(means.size()) +
        " elements, must have kv_heads * blocks * "
        "head_dim = " +
        std::to_string(size));
  }
  MUSTER_RETURN_IF_ERROR(check_moba_span("nonfinite_keys", nonfinite_keys, plan.kv_heads));
  make_block_means(plan, keys, means.data());
  if (!nonfinite_keys.empty()) {
    count_nonfinite_keys(plan, keys, nonfinite_keys);
  }
  return {};
}

Status moba_forward(
    const AttentionProblem& problem,
    const MobaOptions& options,
    AttentionInput q,
    AttentionInput k,
    AttentionInput v,
    std::span<const float> means,
    AttentionOutput out,
    void* lse,
    MobaSelection& selection,
    const MobaStatistics& statistics) {
  MUSTER_ASSIGN_OR_RETURN(const MobaPlan plan, plan_moba(problem, options));
  MobaForwardTensors tensors;
  MUSTER_ASSIGN_OR_RETURN(tensors.q, moba_input("q", q, plan, plan.total_q, plan.heads));
  MUSTER_ASSIGN_OR_RETURN(tensors.k, moba_input("k", k, plan, plan.total_k, plan.kv_heads));
  MUSTER_ASSIGN_OR_RETURN(tensors.v, moba_input("v", v, plan, plan.total_k, plan.kv_heads));
  MUSTER_ASSIGN_OR_RETURN(tensors.out, moba_output("out", out, plan, plan.total_q, plan.heads));
  tensors.lse = lse;
  tensors.count_nonfinite = !statistics.nonfinite_rows.empty();
  MUSTER_RETURN_IF_ERROR(check_moba_lse(plan, lse));
  const std::int64_t size = plan.kv_heads * plan.total_blocks * plan.dim;
  MUSTER_RETURN_IF_ERROR(check_moba_span("means", means, size));
  MUSTER_RETURN_IF_ERROR(check_moba_statistics(plan, statistics));

  MobaSelection::State& state = selection.state();
  state.begin(plan);
  MobaReport report(plan);
  if (plan.sparse) {
    std::vector<float> own_means;
    if (means.empty()) {
      own_means.resize(static_cast<std::size_t>(size));
      make_block_means(plan, tensors.k, own_means.data());
      means = own_means;
    }
    choose_blocks(tensors.q, means.data(), state, wants_gate(statistics) ? &report.gate : nullptr);
  }
  state.build_lists();
  moba_attend_all(tensors, state, report.max_logit, report.nonfinite_rows);
  const AttentionStatistics dense{report.max_logit, report.nonfinite_rows};
  for (const MobaDenseRun& run : dense_runs(plan)) {
    MUSTER_RETURN_IF_ERROR(dense_forward(
        plan, problem, run, tensors.q, tensors.k, tensors.v, tensors.out, lse, dense));
  }
  write_statistics(tensors.q, tensors.k, state, report, statistics);
  return {};
}

Status moba_backward(
    const AttentionProblem& problem,
    const MobaOptions& options,
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
  MobaGradientTensors tensors;
  MUSTER_ASSIGN_OR_RETURN(tensors.q, moba_input("q", q, plan, plan.total_q, plan.heads));
  MUSTER_ASSIGN_OR_RETURN(tensors.k, moba_input("k", k, plan, plan.total_k, plan.kv_heads));
  MUSTER_ASSIGN_OR_RETURN(tensors.v, moba_input("v", v, plan, plan.total_k, plan.kv_heads));
  MUSTER_ASSIGN_OR_RETURN(tensors.out, moba_input("out", out, plan, plan.total_q, plan.heads));
  MUSTER_ASSIGN_OR_RETURN(tensors.dout, moba_input("dout", dout, plan, plan.total_q, plan.heads));
  MUSTER_ASSIGN_OR_RETURN(tensors.dq, moba_output("dq", dq, plan, plan.total_q, plan.heads));
  MUSTER_ASSIGN_OR_RETURN(tensors.dk, moba_output("dk", dk, plan, plan.total_k, plan.kv_heads));
  MUSTER_ASSIGN_OR_RETURN(tensors.dv, moba_output("dv", dv, plan, plan.total_k, plan.kv_heads));
  tensors.lse = lse;
  MUSTER_RETURN_IF_ERROR(check_moba_lse(plan, lse));
  MUSTER_RETURN_IF_ERROR(selection.state().check(plan));
  for (const MobaDenseRun& run : dense_runs(plan)) {
    MUSTER_RETURN_IF_ERROR(dense_backward(plan, problem, run, tensors));
  }
  // The state's plan is of the same problem, but for the number of threads and scale.
  moba_gradients(plan, tensors, selection.state());
  return {};
}

}  // namespace muster::kernels
