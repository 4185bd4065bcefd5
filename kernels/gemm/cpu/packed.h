// SPDX-License-Identifier: Apache-2.0
// Packed matrix products without BLAS: general ones, and those whose result is known to be
// symmetric, of which only the lower half is computed. OpenBLAS has the latter for XX^T alone and
// neither in bf16.
//
// Every sum runs over the depth in the same order and the same blocks: an element has the same bits
// for all other sizes, triangles and numbers of threads.
#pragma once

#include "kernels/cpu/thread_team.h"
#include "kernels/gemm/cpu/simd/table.h"

#include <muster/common/aligned_buffer.h>

#include <cstdint>
#include <vector>

namespace muster::kernels {

// Row-major [rows, cols], or its transpose as stored.
struct Operand {
  const float* data{nullptr};
  std::int64_t stride{0};
  bool transposed{false};
};

// c[m, n] = alpha * a[m, k] * b[k, n] + first + second. The addends may be c, the operands may not.
// No size may be 0.
struct Product {
  std::int64_t m{0};
  std::int64_t n{0};
  std::int64_t k{0};
  Operand a;
  Operand b;
  DType type{DType::kFloat32};
  // m == n and the result, addends included, is symmetric: computed below the diagonal and copied
  // to above it.
  bool symmetric{false};
  float alpha{1};
  ProductAddend first;
  ProductAddend second;
  float* c{nullptr};
  std::int64_t stride{0};
};

// Belongs to one call at a time.
class ProductScratch {
 public:
  explicit ProductScratch(const GemmTable& table = gemm_table()) : table_(&table) {}

  void multiply(const Product& product, ThreadTeam& team);

  [[nodiscard]] const GemmTable& table() const { return *table_; }

 private:
  const GemmTable* table_;
  AlignedBuffer left_;
  std::vector<AlignedBuffer> right_;  // of each member of the team
};

}  // namespace muster::kernels
