// SPDX-License-Identifier: Apache-2.0
// Matrix products of row groups, each with the matrix of its group, as experts compute them.
//
// x is [rows, in], grouped: group g is rows [begins[g], begins[g] + group_rows[g]). The matrix of
// group g is weights + g * out * in ([groups, out, in], row-major); groups without rows are not
// read. Own packed kernels; bf16 operands give fp32 sums. Rows outside the groups are not touched,
// except that padding rows (up to ends[g]) of an output are set to zero.
//
// Determinism: an output row depends only on its input row and its matrix, bit for bit, whatever
// the groups around it are; wgrad sums over rows in ascending order in fixed blocks. Thread-safety:
// functions of their arguments; a call runs on `threads` threads. The calling thread keeps working
// memory and threads for its next call, which then allocates nothing. Sizes of 0, groups that
// overlap and other types fail a check.
#pragma once

#include <muster/kernels/low_precision.h>

#include <cstdint>
#include <span>

namespace muster::kernels {

struct RowGroups {
  std::span<const std::int64_t> begins;      // [groups] ascending
  std::span<const std::int64_t> group_rows;  // [groups]
  std::span<const std::int64_t> ends;        // [groups] begins + rows + padding
};

struct GroupedProblem {
  RowGroups groups;
  std::int64_t in{0};
  std::int64_t out{0};
  DType type{DType::kFloat32};  // of x, y, weights, dy, dx: kFloat32 or kBFloat16
  int threads{1};
};

// y[rows, out] = x[rows, in] * W_g^T
void grouped_forward(const GroupedProblem& problem, const void* x, const void* weights, void* y);

// dx[rows, in] = dy[rows, out] * W_g, or added to (fp32 only) when `accumulate`.
void grouped_dgrad(
    const GroupedProblem& problem, const void* dy, const void* weights, void* dx, bool accumulate);

// dW_g[out, in] += dy^T * x, fp32, for groups with rows; gradients [groups, out, in].
void grouped_wgrad(const GroupedProblem& problem, const void* x, const void* dy, float* gradients);

}  // namespace muster::kernels
