// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/cpu/call.h"
#include "kernels/attention/cpu/check.h"

#include <muster/kernels/attention.h>

#include <cmath>
#include <limits>

namespace muster::kernels {

Status attention_forward(
    const AttentionProblem& problem,
    const AttentionInputs& inputs,
    const AttentionOutputs& outputs,
    const AttentionStatistics& statistics) {
  MUSTER_ASSIGN_OR_RETURN(const AttentionCall call, attention_call(problem));
  MUSTER_ASSIGN_OR_RETURN(const InputTensors in, input_tensors(call, inputs, call.total_k));
  MUSTER_ASSIGN_OR_RETURN(const OutputTensors out, output_tensors(call, outputs));
  MUSTER_RETURN_IF_ERROR(
      check_optional_size("statistics.max_logit", statistics.max_logit.size(), call.heads));
  MUSTER_RETURN_IF_ERROR(check_optional_size(
      "statistics.nonfinite_rows", statistics.nonfinite_rows.size(), call.heads));
  const bool wanted = !statistics.max_logit.empty() || !statistics.nonfinite_rows.empty();
  FlashCounts counts(call.heads);
  flash_forward(call, in, out, wanted ? &counts : nullptr);
  if (!statistics.max_logit.empty()) {
    std::copy(counts.max_logit.begin(), counts.max_logit.end(), statistics.max_logit.begin());
  }
  if (!statistics.nonfinite_rows.empty()) {
    std::copy(
        counts.nonfinite_rows.begin(),
        counts.nonfinite_rows.end(),
        statistics.nonfinite_rows.begin());
  }
  return {};
}

Status attention_backward(
    const AttentionProblem& problem,
    const AttentionInputs& inputs,
    const AttentionGradients& gradients) {
  MUSTER_ASSIGN_OR_RETURN(const AttentionCall call, attention_call(problem));
  MUSTER_ASSIGN_OR_RETURN(const InputTensors in, input_tensors(call, inputs, call.total_k));
  MUSTER_ASSIGN_OR_RETURN(
      const GradientTensors tensors, gradient_tensors(call, gradients, call.total_k));
  flash_backward(call, in, tensors);
  return {};
}

void merge_partial_attention(
    std::int64_t rows,
    int heads,
    int head_dim,
    float* out,
    float* lse,
    const float* other_out,
    const float* other_lse) {
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t head = 0; head < heads; ++head) {
      float& own = lse[head * rows + row];
      const float other = other_lse[head * rows + row];
      if (other == kNothing) {
        continue;
      }
      float* to = out + (row * heads + head) * head_dim;
      const float* from = other_out + (row * heads + head) * head_dim;
      if (own == kNothing) {
        std::copy_n(from, head_dim, to);
        own = other;
        continue;
      }
      const double largest = std::max(static_cast<double>(own), static_cast<double>(other));
      const double own_weight = std::exp(static_cast<double>(own) - largest);
      const double other_weight = std::exp(static_cast<double>(other) - largest);
      const double total = own_weight + other_weight;
      for (int d = 0; d < head_dim; ++d) {
        to[d] = static_cast<float>(
            (own_weight * static_cast<double>(to[d]) +
             other_weight * static_cast<double>(from[d])) /
            total);
      }
      own = static_cast<float>(largest + std::log(total));
    }
  }
}

const char* attention_path(DType type) {
  return type == DType::kFloat64 ? flash_table<double>(type).path : flash_table<float>(type).path;
}

double attention_flops(const AttentionProblem& problem, bool backward) {
  const Expected<AttentionCall> call = attention_call(problem);
  if (!call.ok()) {
    return 0;
  }
  double pairs = 0;
  for (const AttentionSequence& s : call->sequences) {
    const auto q = static_cast<double>(s.queries);
    const auto k = static_cast<double>(s.keys);
    // Causal rows that see something see k - i keys, i = 0 for the last of them.
    const double rows = std::min(q, k);
    pairs += call->causal ? rows * k - rows * (rows - 1) / 2 : q * k;
  }
  return pairs * static_cast<double>(call->heads * call->head_dim) * (backward ? 10 : 4);
}

}  // namespace muster::kernels
