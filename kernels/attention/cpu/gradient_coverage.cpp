// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/cpu/gradient_coverage.h"

#include <algorithm>

namespace muster::kernels {

namespace {

template <typename T>
bool any_nonzero(const void* row, std::int64_t count) {
  const T* values = static_cast<const T*>(row);
  return std::any_of(values, values + count, [](T value) { return value != T{0}; });
}

// A bf16 is zero whatever its sign.
bool any_nonzero_bf16(const void* row, std::int64_t count) {
  const auto* values = static_cast<const std::uint16_t*>(row);
  return std::any_of(
      values, values + count, [](std::uint16_t bits) { return (bits & 0x7FFFU) != 0; });
}

bool any_nonzero(const AttentionCall& call, const void* row) {
  switch (call.type) {
    case DType::kFloat64:
      return any_nonzero<double>(row, call.head_dim);
    case DType::kBFloat16:
      return any_nonzero_bf16(row, call.head_dim);
    default:
      return any_nonzero<float>(row, call.head_dim);
  }
}

}  // namespace

std::vector<bool> tokens_with_gradient(const AttentionCall& call, const AttentionTensor& dout) {
  std::vector<bool> result(static_cast<std::size_t>(call.total_q));
  for (std::int64_t token = 0; token < call.total_q; ++token) {
    bool any = false;
    for (std::int64_t head = 0; head < call.heads && !any; ++head) {
      any = any_nonzero(call, dout.at(token, head));
    }
    result[static_cast<std::size_t>(token)] = any;
  }
  return result;
}

template <typename T>
GradientCoverage attention_gradient_coverage(const AttentionShape& shape, const T* dout) {
  const std::int64_t row = shape.heads * shape.head_dim;
  GradientCoverage result;
  result.queries = result.blocks = shape.batch * shape.sequence;
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    std::int64_t seen = 0;
    for (std::int64_t t = 0; t < shape.sequence; ++t) {
      if (any_nonzero<T>(dout + (b * shape.sequence + t) * row, row)) {
        ++result.queries_reached;
        seen = t + 1;
      }
    }
    result.blocks_reached += seen;
  }
  return result;
}

template GradientCoverage attention_gradient_coverage(const AttentionShape&, const float*);
template GradientCoverage attention_gradient_coverage(const AttentionShape&, const double*);

}  // namespace muster::kernels
