// SPDX-License-Identifier: Apache-2.0
// Forward and backward computation on the row groups that a rank received, shared by both
// movements.
#pragma once

#include <muster/common/aligned_buffer.h>
#include <muster/kernels/grouped_gemm.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace muster::parallel {

// [groups, ffn, hidden], [groups, ffn, hidden], [groups, hidden, ffn] of the type, fp32 gradients.
struct ExpertTensors {
  const void* gate{nullptr};
  const void* up{nullptr};
  const void* down{nullptr};
  float* gate_gradient{nullptr};
  float* up_gradient{nullptr};
  float* down_gradient{nullptr};
};

class ExpertCompute {
 public:
  ExpertCompute(DType type, std::int64_t hidden, std::int64_t ffn, int threads);

  // Ensures capacity for `rows`; keeps the buffers if they suffice.
  void reserve(std::int64_t rows);

  // Buffer for the inputs of the rows, [rows, hidden], kept until backward.
  [[nodiscard]] std::byte* inputs() { return tensor(inputs_, hidden_); }

  // out [rows, hidden] = the rows' expert outputs times their weights [rows].
  void forward(
      const kernels::RowGroups& groups,
      const ExpertTensors& tensors,
      const float* weights,
      void* out);

  // Overwrites dinputs [rows, hidden] and dweights [rows], adds to the gradients. dinputs may be
  // dout.
  void backward(
      const kernels::RowGroups& groups,
      const ExpertTensors& tensors,
      const float* weights,
      const void* dout,
      void* dinputs,
      float* dweights);

 private:
  [[nodiscard]] kernels::GroupedProblem problem(
      const kernels::RowGroups& groups, std::int64_t in, std::int64_t out) const;
  [[nodiscard]] std::int64_t room(std::int64_t columns) const;
  [[nodiscard]] std::byte* tensor(AlignedBuffer& buffer, std::int64_t columns) const;

  DType type_;
  std::int64_t hidden_;
  std::int64_t ffn_;
  int threads_;
  std::int64_t rows_{0};
  // Kept from forward to backward: inputs, the two projections, the weighted activations.
  AlignedBuffer inputs_, gate_, up_, activations_;
  AlignedBuffer dup_, second_;  // scratch of backward
};

}  // namespace muster::parallel
