#include "kernels/attention/cpu/call.h"
#include "kernels/attention/cpu/check.h"

#include <muster/kernels/flash_attention.h>

#include <cmath>
#include <limits>
#include <string>

namespace muster::kernels {

namespace {

Expected<FlashTensor> input(
    const FlashCall& call, FlashSide side, const char* name, const AttentionInput& tensor) {
  return flash_tensor(
      call,
      side,
      name,
      {tensor.data, tensor.token_stride, tensor.head_stride, tensor.tokens, false});
}

Expected<FlashTensor> output(
    const FlashCall& call, FlashSide side, const char* name, const AttentionOutput& tensor) {
  return flash_tensor(
      call,
      side,
      name,
      {tensor.data, tensor.token_stride, tensor.head_stride, tensor.tokens, true});
}

Expected<FlashInputs> inputs(
    const FlashCall& call,
    const AttentionInput& q,
    const AttentionInput& k,
    const AttentionInput& v) {
  FlashInputs in;
  MUSTER_ASSIGN_OR_RETURN(in.q, input(call, FlashSide::kQueries, "q", q));
  MUSTER_ASSIGN_OR_RETURN(in.k, input(call, FlashSide::kKeys, "k", k));
  MUSTER_ASSIGN_OR_RETURN(in.v, input(call, FlashSide::kKeys, "v", v));
  return in;
}

std::size_t lse_size(const FlashCall& call) {
  return call.type == AttentionType::kFloat64 ? sizeof(double) : sizeof(float);
}

Status check_lse(const FlashCall& call, const void* lse) {
  if (lse == nullptr && call.total_q > 0) {
    return invalid_argument("attention: lse is null, but there are queries");
  }
  return check_alignment("lse", lse, lse_size(call));
}

Status check_span(const FlashCall& call, const char* name, std::size_t size) {
  if (size != 0 && size != static_cast<std::size_t>(call.heads)) {
    return invalid_argument(
        std::string("attention: statistics.") + name + " has " + std::to_string(size) +
        " entries, it takes one for each of " + std::to_string(call.heads) + " heads, or none");
  }
  return {};
}

}  // namespace

Status flash_attention_forward(
    const AttentionProblem& problem,
    AttentionInput q,
    AttentionInput k,
    AttentionInput v,
    AttentionOutput out,
    void* lse,
    const AttentionStatistics& statistics) {
  MUSTER_ASSIGN_OR_RETURN(const FlashCall call, flash_call(problem));
  MUSTER_ASSIGN_OR_RETURN(const FlashInputs in, inputs(call, q, k, v));
  FlashOutputs to;
  MUSTER_ASSIGN_OR_RETURN(to.out, output(call, FlashSide::kQueries, "out", out));
  MUSTER_RETURN_IF_ERROR(check_lse(call, lse));
  MUSTER_RETURN_IF_ERROR(check_span(call, "max_logit", statistics.max_logit.size()));
  MUSTER_RETURN_IF_ERROR(check_span(call, "nonfinite_rows", statistics.nonfinite_rows.size()));
  to.lse = lse;
  const bool wanted = !statistics.max_logit.empty() || !statistics.nonfinite_rows.empty();
  FlashCounts counts(call.heads);
  if (call.type == AttentionType::kFloat64) {
    flash_forward_call<double>(call, in, to, wanted ? &counts : nullptr);
  } else {
    flash_forward_call<float>(call, in, to, wanted ? &counts : nullptr);
  }
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

Status flash_attention_backward(
    const AttentionProblem& problem,
    AttentionInput q,
    AttentionInput k,
    AttentionInput v,
    AttentionInput out,
    const void* lse,
    AttentionInput dout,
    const void* dlse,
    AttentionOutput dq,
    AttentionOutput dk,
    AttentionOutput dv) {
  MUSTER_ASSIGN_OR_RETURN(const FlashCall call, flash_call(problem));
  MUSTER_ASSIGN_OR_RETURN(const FlashInputs in, inputs(call, q, k, v));
  FlashGradients gradients{
      .out = {}, .lse = lse, .dout = {}, .dlse = dlse, .dq = {}, .dk = {}, .dv = {}};
  MUSTER_ASSIGN_OR_RETURN(gradients.out, input(call, FlashSide::kQueries, "out", out));
  MUSTER_ASSIGN_OR_RETURN(gradients.dout, input(call, FlashSide::kQueries, "dout", dout));
  MUSTER_ASSIGN_OR_RETURN(gradients.dq, output(call, FlashSide::kQueries, "dq", dq));
  MUSTER_ASSIGN_OR_RETURN(gradients.dk, output(call, FlashSide::kKeys, "dk", dk));
  MUSTER_ASSIGN_OR_RETURN(gradients.dv, output(call, FlashSide::kKeys, "dv", dv));
  MUSTER_RETURN_IF_ERROR(check_lse(call, lse));
  MUSTER_RETURN_IF_ERROR(check_alignment("dlse", dlse, lse_size(call)));
  if (call.type == AttentionType::kFloat64) {
    flash_backward_call<double>(call, in, gradients);
  } else {
    flash_backward_call<float>(call, in, gradients);
  }
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

const char* attention_path(AttentionType type) {
  return type == AttentionType::kFloat64 ? flash_table<double>(type).path
                                         : flash_table<float>(type).path;
}

double attention_flops(const AttentionProblem& problem, bool backward) {
  const Expected<FlashCall> call = flash_call(problem);
  if (!call.ok()) {
    return 0;
  }
  double pairs = 0;
  for (const FlashSequence& s : call->sequences) {
    const auto q = static_cast<double>(s.q_count);
    const auto k = static_cast<double>(s.k_count);
    // Causal rows that see something see k - i keys, i = 0 for the last of them.
    const double rows = std::min(q, k);
    pairs += call->causal ? rows * k - rows * (rows - 1) / 2 : q * k;
  }
  return pairs * static_cast<double>(call->heads * call->head_dim) * (backward ? 10 : 4);
}

}  // namespace muster::kernels
