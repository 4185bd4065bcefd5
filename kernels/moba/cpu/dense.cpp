#include "kernels/moba/cpu/dense.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace muster::kernels {

namespace {

AttentionInput part(const MobaTensor& tensor, std::int64_t token) {
  return {tensor.rows(token, 0).data, tensor.token_stride, tensor.head_stride};
}

AttentionOutput part(const MobaOutput& tensor, std::int64_t token) {
  return {tensor.rows(token, 0).data, tensor.token_stride, tensor.head_stride};
}

AttentionProblem part_problem(
    const MobaPlan& plan, const AttentionProblem& problem, const MobaDenseRun& run) {
  AttentionProblem result = problem;
  result.kv_heads = static_cast<int>(plan.kv_heads);
  result.cu_q = run.cu_q;
  result.cu_k = run.cu_k;
  return result;
}

std::size_t lse_size(const MobaPlan& plan) {
  return plan.type == AttentionType::kFloat64 ? sizeof(double) : sizeof(float);
}

// f(offset in [heads, total_q], offset in [heads, queries of the run], bytes) for each head's log
// sums.
template <typename F>
void each_lse_row(const MobaPlan& plan, const MobaDenseRun& run, F f) {
  const std::size_t size = lse_size(plan);
  const std::size_t row = static_cast<std::size_t>(run.cu_q.back()) * size;
  for (std::int64_t h = 0; h < plan.heads && row > 0; ++h) {
    f(static_cast<std::size_t>(h * plan.total_q + run.q_begin) * size,
      static_cast<std::size_t>(h) * row,
      row);
  }
}

}  // namespace

std::vector<MobaDenseRun> dense_runs(const MobaPlan& plan) {
  std::vector<MobaDenseRun> runs;
  bool open = false;
  for (const MobaSequence& sequence : plan.sequences) {
    if (!sequence.dense) {
      open = false;
      continue;
    }
    if (!open) {
      runs.push_back({{0}, {0}, sequence.q_begin, sequence.k_begin});
      open = true;
    }
    runs.back().cu_q.push_back(runs.back().cu_q.back() + sequence.queries);
    runs.back().cu_k.push_back(runs.back().cu_k.back() + sequence.keys);
  }
  return runs;
}

Status dense_forward(
    const MobaPlan& plan,
    const AttentionProblem& problem,
    const MobaDenseRun& run,
    const MobaTensor& q,
    const MobaTensor& k,
    const MobaTensor& v,
    const MobaOutput& out,
    void* lse,
    const AttentionStatistics& statistics) {
  std::vector<std::byte> own(
      static_cast<std::size_t>(plan.heads * run.cu_q.back()) * lse_size(plan) + 1);
  std::vector<float> max_logit(statistics.max_logit.size());
  std::vector<std::int64_t> nonfinite(statistics.nonfinite_rows.size());
  MUSTER_RETURN_IF_ERROR(flash_attention_forward(
      part_problem(plan, problem, run),
      part(q, run.q_begin),
      part(k, run.k_begin),
      part(v, run.k_begin),
      part(out, run.q_begin),
      own.data(),
      {max_logit, nonfinite}));
  auto* whole = static_cast<std::byte*>(lse);
  each_lse_row(plan, run, [&](std::size_t there, std::size_t here, std::size_t bytes) {
    std::memcpy(whole + there, own.data() + here, bytes);
  });
  for (std::size_t h = 0; h < max_logit.size(); ++h) {
    statistics.max_logit[h] = std::max(statistics.max_logit[h], max_logit[h]);
  }
  for (std::size_t h = 0; h < nonfinite.size(); ++h) {
    statistics.nonfinite_rows[h] += nonfinite[h];
  }
  return {};
}

Status dense_backward(
    const MobaPlan& plan,
    const AttentionProblem& problem,
    const MobaDenseRun& run,
    const MobaGradientTensors& tensors) {
  std::vector<std::byte> own(
      static_cast<std::size_t>(plan.heads * run.cu_q.back()) * lse_size(plan) + 1);
  const auto* whole = static_cast<const std::byte*>(tensors.lse);
  each_lse_row(plan, run, [&](std::size_t there, std::size_t here, std::size_t bytes) {
    std::memcpy(own.data() + here, whole + there, bytes);
  });
  return flash_attention_backward(
      part_problem(plan, problem, run),
      part(tensors.q, run.q_begin),
      part(tensors.k, run.k_begin),
      part(tensors.v, run.k_begin),
      part(tensors.out, run.q_begin),
      own.data(),
      part(tensors.dout, run.q_begin),
      nullptr,
      part(tensors.dq, run.q_begin),
      part(tensors.dk, run.k_begin),
      part(tensors.dv, run.k_begin));
}

}  // namespace muster::kernels
