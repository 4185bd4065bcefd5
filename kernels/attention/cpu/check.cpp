// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/cpu/check.h"

#include <cmath>
#include <limits>

namespace muster::kernels {

namespace {

Status check_offsets(std::string_view name, std::span<const std::int64_t> offsets) {
  if (offsets.empty()) {
    return invalid_argument(
        name,
        " must not be empty: it holds the first row of each sequence and the end, at least a 0");
  }
  if (offsets.front() != 0) {
    return invalid_argument(name, " must begin with 0, got ", offsets.front());
  }
  for (std::size_t i = 1; i < offsets.size(); ++i) {
    std::int64_t length = 0;
    if (__builtin_sub_overflow(offsets[i], offsets[i - 1], &length) || length < 0) {
      return invalid_argument(
          name,
          "[",
          i,
          "] must not be less than ",
          name,
          "[",
          i - 1,
          "] = ",
          offsets[i - 1],
          ", got ",
          offsets[i]);
    }
    if (length > std::numeric_limits<std::int32_t>::max()) {
      return invalid_argument(
          name, ": sequence ", i - 1, " must have at most 2^31 - 1 tokens, got ", length);
    }
  }
  return {};
}

Status check_heads(const AttentionProblem& problem) {
  if (problem.heads < 1) {
    return invalid_argument("heads must be at least 1, got ", problem.heads);
  }
  const int kv_heads = problem.kv_heads == 0 ? problem.heads : problem.kv_heads;
  if (kv_heads < 1 || problem.heads % kv_heads != 0) {
    return invalid_argument("kv_heads must divide heads ", problem.heads, ", got ", kv_heads);
  }
  if (problem.head_dim < 8 || problem.head_dim > 256) {
    return invalid_argument("head_dim must be between 8 and 256, got ", problem.head_dim);
  }
  return {};
}

// More than a host has; the system may refuse to start more, and that cannot be handled.
constexpr int kMostThreads = 1024;

Status check_numbers(const AttentionProblem& problem) {
  if (!std::isfinite(problem.scale)) {
    return invalid_argument("scale must be finite, got ", problem.scale);
  }
  if (!std::isfinite(problem.softcap) || problem.softcap < 0) {
    return invalid_argument("softcap must be finite and not negative, got ", problem.softcap);
  }
  if (problem.bias_head_stride < 0 || problem.bias_row_stride < 0) {
    return invalid_argument(
        "bias_head_stride and bias_row_stride must not be negative, got ",
        problem.bias_head_stride,
        " and ",
        problem.bias_row_stride);
  }
  if (problem.type != DType::kFloat32 && problem.type != DType::kBFloat16 &&
      problem.type != DType::kFloat64) {
    return invalid_argument("type must be fp32, bf16 or fp64, got ", short_name(problem.type));
  }
  if (problem.threads < 1 || problem.threads > kMostThreads) {
    return invalid_argument(
        "threads must be between 1 and ", kMostThreads, ", got ", problem.threads);
  }
  return {};
}

// Checks that `data` is aligned to elements of `size` bytes; null is.
Status check_alignment(std::string_view name, const void* data, std::int64_t size) {
  if (reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(size) != 0) {
    return invalid_argument(name, " must be aligned to its elements of ", size, " bytes");
  }
  return {};
}

struct Shape {
  std::string_view name;
  std::int64_t tokens;
  std::int64_t heads;
  std::int64_t head_dim;
};

// Returns whether all elements have different addresses.
bool is_disjoint(const AttentionTensor& tensor, const Shape& shape) {
  const auto& [name, tokens, heads, head_dim] = shape;
  const std::int64_t of_heads = (heads - 1) * tensor.head_stride + head_dim;
  const std::int64_t of_tokens = (tokens - 1) * tensor.token_stride + head_dim;
  return (tensor.token_stride >= of_heads && (heads == 1 || tensor.head_stride >= head_dim)) ||
         (tensor.head_stride >= of_tokens && (tokens == 1 || tensor.token_stride >= head_dim)) ||
         (tokens == 1 && heads == 1) || (tokens == 1 && tensor.head_stride >= head_dim) ||
         (heads == 1 && tensor.token_stride >= head_dim);
}

// Returns whether an offset into the tensor, in bytes of up to 8 for each element, exceeds 64 bits.
bool overflows(const AttentionTensor& tensor, const Shape& shape) {
  std::int64_t tokens = 0;
  std::int64_t heads = 0;
  std::int64_t sum = 0;
  return __builtin_mul_overflow(shape.tokens, tensor.token_stride, &tokens) ||
         __builtin_mul_overflow(shape.heads, tensor.head_stride, &heads) ||
         __builtin_add_overflow(tokens, heads, &sum) || sum > (INT64_MAX >> 5);
}

Status check_strides(const AttentionTensor& tensor, const Shape& shape, bool written) {
  const auto refuse = [&](std::string_view rule) {
    return invalid_argument(
        shape.name,
        rule,
        ", got token_stride ",
        tensor.token_stride,
        " and head_stride ",
        tensor.head_stride);
  };
  if (tensor.token_stride < 0 || tensor.head_stride < 0) {
    return refuse(" must not have a negative stride");
  }
  if (overflows(tensor, shape)) {
    return refuse(" must have strides that do not overflow 64 bits of address");
  }
  // Rows of an input may share memory, as long as rows of one head and heads of one token do not.
  const bool rows_overlap = (shape.tokens > 1 && tensor.token_stride < shape.head_dim) ||
                            (shape.heads > 1 && tensor.head_stride < shape.head_dim);
  if (!is_disjoint(tensor, shape) && (written || rows_overlap)) {
    return refuse(" must have rows that do not overlap");
  }
  return {};
}

// `View`: AttentionInput or AttentionOutput.
template <typename View>
Expected<AttentionTensor> checked(
    const AttentionCall& call, const Shape& shape, const View& view, bool written) {
  const AttentionTensor tensor{
      .data = const_cast<void*>(static_cast<const void*>(view.data)),
      .type = call.type,
      .token_stride = view.token_stride == 0 ? shape.heads * call.head_dim : view.token_stride,
      .head_stride = view.head_stride == 0 ? call.head_dim : view.head_stride};
  if (view.tokens != 0 && view.tokens < shape.tokens) {
    return invalid_argument(
        shape.name, " must have room for ", shape.tokens, " tokens, got ", view.tokens);
  }
  if (shape.tokens == 0) {
    return tensor;
  }
  if (view.data == nullptr) {
    return invalid_argument(
        shape.name, " must not be null: the call has ", shape.tokens, " tokens");
  }
  MUSTER_RETURN_IF_ERROR(
      check_alignment(shape.name, view.data, static_cast<std::int64_t>(size_bytes(call.type))));
  MUSTER_RETURN_IF_ERROR(check_strides(tensor, shape, written));
  return tensor;
}

Shape query_shape(const AttentionCall& call, std::string_view name) {
  return {name, call.total_q, call.heads, call.head_dim};
}

Shape key_shape(const AttentionCall& call, std::string_view name, std::int64_t keys) {
  return {name, keys, call.kv_heads, call.head_dim};
}

Status check_lse(const AttentionCall& call, std::string_view name, const void* lse) {
  return check_alignment(name, lse, call.type == DType::kFloat64 ? sizeof(double) : sizeof(float));
}

Status check_required_lse(const AttentionCall& call, const void* lse) {
  if (lse == nullptr && call.total_q > 0) {
    return invalid_argument("lse must not be null: the call has ", call.total_q, " queries");
  }
  return check_lse(call, "lse", lse);
}

}  // namespace

Expected<AttentionCall> attention_call(const AttentionProblem& problem) {
  MUSTER_RETURN_IF_ERROR(check_heads(problem));
  MUSTER_RETURN_IF_ERROR(check_numbers(problem));
  MUSTER_RETURN_IF_ERROR(check_alignment("bias", problem.bias, sizeof(float)));
  MUSTER_RETURN_IF_ERROR(check_offsets("cu_q", problem.cu_q));
  const auto cu_k = problem.cu_k.empty() ? problem.cu_q : problem.cu_k;
  MUSTER_RETURN_IF_ERROR(check_offsets("cu_k", cu_k));
  if (cu_k.size() != problem.cu_q.size()) {
    return invalid_argument(
        "cu_k must describe the ",
        problem.cu_q.size() - 1,
        " sequences of cu_q, got ",
        cu_k.size() - 1);
  }
  AttentionCall call{
      .type = problem.type,
      .heads = problem.heads,
      .kv_heads = problem.kv_heads == 0 ? problem.heads : problem.kv_heads,
      .head_dim = problem.head_dim,
      .total_q = problem.cu_q.back(),
      .total_k = cu_k.back(),
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

Expected<AttentionTensor> query_tensor(
    const AttentionCall& call, std::string_view name, const AttentionInput& tensor) {
  return checked(call, query_shape(call, name), tensor, false);
}

Expected<AttentionTensor> key_tensor(
    const AttentionCall& call,
    std::string_view name,
    const AttentionInput& tensor,
    std::int64_t keys) {
  return checked(call, key_shape(call, name, keys), tensor, false);
}

Expected<InputTensors> input_tensors(
    const AttentionCall& call, const AttentionInputs& inputs, std::int64_t keys) {
  InputTensors result;
  MUSTER_ASSIGN_OR_RETURN(result.q, query_tensor(call, "q", inputs.q));
  MUSTER_ASSIGN_OR_RETURN(result.k, key_tensor(call, "k", inputs.k, keys));
  MUSTER_ASSIGN_OR_RETURN(result.v, key_tensor(call, "v", inputs.v, keys));
  return result;
}

Expected<OutputTensors> output_tensors(const AttentionCall& call, const AttentionOutputs& outputs) {
  OutputTensors result{.out = {}, .lse = outputs.lse};
  MUSTER_ASSIGN_OR_RETURN(result.out, checked(call, query_shape(call, "out"), outputs.out, true));
  MUSTER_RETURN_IF_ERROR(check_required_lse(call, outputs.lse));
  return result;
}

Expected<GradientTensors> gradient_tensors(
    const AttentionCall& call, const AttentionGradients& gradients, std::int64_t keys) {
  GradientTensors result;
  result.lse = gradients.lse;
  result.dlse = gradients.dlse;
  MUSTER_ASSIGN_OR_RETURN(result.out, query_tensor(call, "out", gradients.out));
  MUSTER_ASSIGN_OR_RETURN(result.dout, query_tensor(call, "dout", gradients.dout));
  MUSTER_ASSIGN_OR_RETURN(result.dq, checked(call, query_shape(call, "dq"), gradients.dq, true));
  MUSTER_ASSIGN_OR_RETURN(
      result.dk, checked(call, key_shape(call, "dk", keys), gradients.dk, true));
  MUSTER_ASSIGN_OR_RETURN(
      result.dv, checked(call, key_shape(call, "dv", keys), gradients.dv, true));
  MUSTER_RETURN_IF_ERROR(check_required_lse(call, gradients.lse));
  MUSTER_RETURN_IF_ERROR(check_lse(call, "dlse", gradients.dlse));
  return result;
}

Status check_optional_size(std::string_view name, std::size_t got, std::int64_t size) {
  if (got != 0 && got != static_cast<std::size_t>(size)) {
    return invalid_argument(name, " must have ", size, " elements or none, got ", got);
  }
  return {};
}

}  // namespace muster::kernels
