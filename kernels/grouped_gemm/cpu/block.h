// SPDX-License-Identifier: Apache-2.0
// One block of a grouped product: a thread's piece of work, with the memory it packs operands in.
#pragma once

#include "kernels/gemm/cpu/simd/table.h"

#include <muster/common/aligned_buffer.h>

#include <cstdint>

namespace muster::kernels {

// Elements are floats, or bf16 where `halves`. Row-major, or its transpose as stored.
struct BlockOperand {
  const void* data{nullptr};
  std::int64_t stride{0};
  bool transposed{false};
};

// c[m, n] = a[m, k] * b[k, n], or added to c. Sums are taken in blocks of the depth that depend on
// k alone and in them one term after the other: an element's bits do not depend on m, n or on the
// piece of a larger product that the block is. Sizes are above 0.
struct BlockProduct {
  std::int64_t m{0};
  std::int64_t n{0};
  std::int64_t k{0};
  BlockOperand a;
  BlockOperand b;
  bool halves{false};      // a and b are bf16
  bool narrow_out{false};  // c is bf16, rounded once from the fp32 sum; never with `accumulate`
  bool accumulate{false};
  void* c{nullptr};
  std::int64_t stride{0};
};

// Most rows of a block: packing the right operand costs a few percent of so many.
[[nodiscard]] std::int64_t block_rows(const GemmTable& table);

// Belongs to one thread at a time; keeps its memory.
class BlockScratch {
 public:
  void multiply(const GemmTable& table, const BlockProduct& product);

 private:
  AlignedBuffer left_;
  AlignedBuffer right_;
  AlignedBuffer sums_;  // of a result in bf16
};

}  // namespace muster::kernels
