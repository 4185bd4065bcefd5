#include "kernels/attention/cpu/check.h"

#include <cmath>
#include <string>

namespace muster::kernels {

namespace {

std::string number(std::int64_t value) {
  return std::to_string(value);
}

Status check_lengths(const char* name, std::span<const std::int64_t> cumulative) {
  const std::string prefix = std::string("attention: ") + name;
  if (cumulative.empty()) {
    return invalid_argument(
        prefix + " is empty: it holds the begin of each sequence and the end, at least a 0");
  }
  if (cumulative.front() != 0) {
    return invalid_argument(prefix + " begins with " + number(cumulative.front()) + ", not with 0");
  }
  for (std::size_t i = 1; i < cumulative.size(); ++i) {
    if (cumulative[i] < cumulative[i - 1]) {
      return invalid_argument(
          prefix + " decreases from " + number(cumulative[i - 1]) + " to " + number(cumulative[i]) +
          " at " + std::to_string(i) + ": a sequence cannot end before it begins");
    }
  }
  return {};
}

Status check_heads(const AttentionProblem& problem) {
  if (problem.heads < 1) {
    return invalid_argument(
        "attention: heads is " + number(problem.heads) + ", there must be at least one");
  }
  const int kv_heads = problem.kv_heads == 0 ? problem.heads : problem.kv_heads;
  if (kv_heads < 1 || problem.heads % kv_heads != 0) {
    return invalid_argument(
        "attention: kv_heads " + number(kv_heads) + " must divide heads " + number(problem.heads));
  }
  if (problem.head_dim < 8 || problem.head_dim > 256) {
    return invalid_argument(
        "attention: head_dim is " + number(problem.head_dim) + ", it must lie in 8 to 256");
  }
  return {};
}

// More than a host has; beyond it the system may not give them, and there is no answer to that.
constexpr int kMostThreads = 1024;

Status check_numbers(const AttentionProblem& problem) {
  if (!std::isfinite(problem.scale)) {
    return invalid_argument("attention: scale must be finite");
  }
  if (!std::isfinite(problem.softcap) || problem.softcap < 0) {
    return invalid_argument("attention: softcap must be finite and not negative (0 for none)");
  }
  if (problem.bias_head_stride < 0 || problem.bias_row_stride < 0) {
    return invalid_argument("attention: bias_head_stride and bias_row_stride must not be negative");
  }
  if (problem.type != AttentionType::kFloat32 && problem.type != AttentionType::kBFloat16 &&
      problem.type != AttentionType::kFloat64) {
    return invalid_argument("attention: type is none of fp32, bf16 and fp64");
  }
  if (problem.threads < 1 || problem.threads > kMostThreads) {
    return invalid_argument(
        "attention: threads is " + number(problem.threads) +
        ", it must be at least 1 and at most " + number(kMostThreads));
  }
  return {};
}

// Whether no two elements of [tokens, heads, head_dim] share a place.
bool is_disjoint(
    const FlashTensor& tensor, std::int64_t tokens, std::int64_t heads, std::int64_t head_dim) {
  const std::int64_t of_heads = (heads - 1) * tensor.head_stride + head_dim;
  const std::int64_t of_tokens = (tokens - 1) * tensor.token_stride + head_dim;
  return (tensor.token_stride >= of_heads && (heads == 1 || tensor.head_stride >= head_dim)) ||
         (tensor.head_stride >= of_tokens && (tokens == 1 || tensor.token_stride >= head_dim)) ||
         (tokens == 1 && heads == 1) || (tokens == 1 && tensor.head_stride >= head_dim) ||
         (heads == 1 && tensor.token_stride >= head_dim);
}

bool overflows(std::int64_t count, std::int64_t stride, std::int64_t more) {
  std::int64_t product = 0;
  // Bytes, of up to 8 for each element, have to fit too.
  return __builtin_mul_overflow(count, stride, &product) ||
         __builtin_add_overflow(product, more, &product) || product > (INT64_MAX >> 4);
}

}  // namespace

Expected<FlashCall> flash_call(const AttentionProblem& problem) {
  MUSTER_RETURN_IF_ERROR(check_heads(problem));
  MUSTER_RETURN_IF_ERROR(check_numbers(problem));
  MUSTER_RETURN_IF_ERROR(check_alignment("bias", problem.bias, sizeof(float)));
  MUSTER_RETURN_IF_ERROR(check_lengths("cu_q", problem.cu_q));
  const auto cu_k = problem.cu_k.empty() ? problem.cu_q : problem.cu_k;
  MUSTER_RETURN_IF_ERROR(check_lengths("cu_k", cu_k));
  if (cu_k.size() != problem.cu_q.size()) {
    return invalid_argument(
        "attention: cu_k has " + std::to_string(cu_k.size()) + " entries and cu_q " +
        std::to_string(problem.cu_q.size()) + ": both describe the same sequences");
  }
  FlashCall call{
      .type = problem.type,
      .heads = problem.heads,
      .kv_heads = problem.kv_heads == 0 ? problem.heads : problem.kv_heads,
      .head_dim = problem.head_dim,
      .total_q = problem.cu_q.back(),
      .sequences = {},
      .causal = problem.causal,
      .scale =
          problem.scale == 0 ? 1 / std::sqrt(static_cast<double>(problem.head_dim)) : problem.scale,
      .softcap = problem.softcap,
      .bias = problem.bias,
      .bias_head_stride = problem.bias_head_stride,
      .bias_row_stride = problem.bias_row_stride,
      .threads = problem.threads};
  for (std::size_t i = 0; i + 1 < cu_k.size(); ++i) {
    call.sequences.push_back(
        {problem.cu_q[i], problem.cu_q[i + 1] - problem.cu_q[i], cu_k[i], cu_k[i + 1] - cu_k[i]});
  }
  return call;
}

Status check_alignment(const char* name, const void* data, std::size_t size) {
  if (reinterpret_cast<std::uintptr_t>(data) % size != 0) {
    return invalid_argument(
        std::string("attention: ") + name + " is not aligned to its elements of " +
        std::to_string(size) + " bytes");
  }
  return {};
}

Expected<FlashTensor> flash_tensor(
    const FlashCall& call, FlashSide side, const char* name, const FlashView& view) {
  const std::string prefix = std::string("attention: ") + name;
  const bool keys = side == FlashSide::kKeys;
  const std::int64_t heads = keys ? call.kv_heads : call.heads;
  const std::int64_t tokens = call.sequences.empty() ? 0
                              : keys ? call.sequences.back().k_begin + call.sequences.back().k_count
                                     : call.total_q;
  FlashTensor tensor;
  tensor.data = const_cast<void*>(view.data);
  tensor.head_stride = view.head_stride == 0 ? call.head_dim : view.head_stride;
  tensor.token_stride = view.token_stride == 0 ? heads * call.head_dim : view.token_stride;
  if (view.tokens != 0 && view.tokens < tokens) {
    return invalid_argument(
        prefix + " has " + number(view.tokens) + " tokens, but " + (keys ? "cu_k" : "cu_q") +
        " ends at " + number(tokens));
  }
  if (tokens == 0) {
    return tensor;
  }
  if (view.data == nullptr) {
    return invalid_argument(prefix + " is null, but there are tokens");
  }
  const std::size_t size = call.type == AttentionType::kBFloat16  ? 2
                           : call.type == AttentionType::kFloat64 ? 8
                                                                  : 4;
  MUSTER_RETURN_IF_ERROR(check_alignment(name, view.data, size));
  if (tensor.token_stride < 0 || tensor.head_stride < 0) {
    return invalid_argument(prefix + " has a negative stride");
  }
  if (overflows(tokens, tensor.token_stride, heads * tensor.head_stride)) {
    return invalid_argument(prefix + " has strides that overflow 64 bits of address");
  }
  if (!is_disjoint(tensor, tokens, heads, call.head_dim) &&
      (view.written || (tokens > 1 && tensor.token_stride < call.head_dim) ||
       (heads > 1 && tensor.head_stride < call.head_dim))) {
    return invalid_argument(
        prefix + " has strides " + number(tensor.token_stride) + " (token) and " +
        number(tensor.head_stride) + " (head) with which rows of " + number(call.head_dim) +
        " elements overlap");
  }
  return tensor;
}

}  // namespace muster::kernels
