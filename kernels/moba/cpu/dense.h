// Sequences of which every visible block is chosen go through the dense kernel.
#pragma once

#include "kernels/moba/cpu/call.h"

#include <functional>
#include <vector>

namespace muster::kernels {

// Consecutive dense sequences as a problem of their own.
struct MobaDenseRun {
  std::vector<std::int64_t> cu_q;
  std::vector<std::int64_t> cu_k;
  std::int64_t q_begin{0};
  std::int64_t k_begin{0};
};

[[nodiscard]] std::vector<MobaDenseRun> dense_runs(const MobaPlan& plan);

// `problem` of the whole call; `statistics` spans are raised to what the run saw.
[[nodiscard]] Status dense_forward(
    const MobaPlan& plan,
    const AttentionProblem& problem,
    const MobaDenseRun& run,
    const MobaTensor& q,
    const MobaTensor& k,
    const MobaTensor& v,
    const MobaOutput& out,
    void* lse,
    const AttentionStatistics& statistics);

struct MobaGradientTensors {
  MobaTensor q;
  MobaTensor k;
  MobaTensor v;
  MobaTensor out;
  MobaTensor dout;
  const void* lse{nullptr};
  MobaOutput dq;
  MobaOutput dk;
  MobaOutput dv;
  MobaPart part;
};

[[nodiscard]] Status dense_backward(
    const MobaPlan& plan,
    const AttentionProblem& problem,
    const MobaDenseRun& run,
    const MobaGradientTensors& tensors);

}  // namespace muster::kernels
