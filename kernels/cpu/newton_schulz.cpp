#include "cpu/blas.h"

#include <muster/common/check.h>
#include <muster/kernels/gemm.h>
#include <muster/kernels/optimizer_kernels.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace muster::kernels {

namespace {

// Scales x to Frobenius norm 1. The factor stays in double: 1 / 1e-42 is not a float. Returns false
// where nothing is left to do: a zero matrix stays zero, a non-finite one becomes all NaN.
bool normalise(std::span<float> x) {
  const NormAndNonfinite norm = norm_and_nonfinite(x);
  if (norm.nonfinite_count > 0) {
    std::fill(x.begin(), x.end(), std::numeric_limits<float>::quiet_NaN());
    return false;
  }
  if (norm.squared_sum == 0) {
    return false;
  }
  const double inverse = 1 / std::sqrt(norm.squared_sum);
  std::transform(x.begin(), x.end(), x.begin(), [inverse](float value) {
    return static_cast<float>(static_cast<double>(value) * inverse);
  });
  return true;
}

struct Workspace {
  float* gram;        // [m, m], m the short side
  float* polynomial;  // [m, m]
  float* next;        // like x
};

// next = P x, P = aI + bA + cA^2, A = x x^T, from the short side of x[rows, cols].
void newton_schulz_step(
    const float* x,
    std::int64_t rows,
    std::int64_t cols,
    const std::array<double, 3>& coefficients,
    const Workspace& work) {
  const bool tall = rows > cols;
  const std::int64_t m = std::min(rows, cols);
  const auto b = static_cast<float>(coefficients[1]);
  const auto c = static_cast<float>(coefficients[2]);
  blas_symmetric_product(tall, m, std::max(rows, cols), x, work.gram);
  blas_symmetric_product(true, m, m, work.gram, work.polynomial);  // A^T A = A^2
  std::transform(
      work.gram,
      work.gram + m * m,
      work.polynomial,
      work.polynomial,
      [b, c](float first, float second) { return b * first + c * second; });
  for (std::int64_t i = 0; i < m; ++i) {
    work.polynomial[i * m + i] += static_cast<float>(coefficients[0]);
  }
  const float* left = tall ? x : work.polynomial;
  const float* right = tall ? work.polynomial : x;
  gemm(
      Transpose::kNo,
      Transpose::kNo,
      rows,
      cols,
      m,
      1.0F,
      left,
      m,
      right,
      cols,
      0.0F,
      work.next,
      cols);
}

}  // namespace

void newton_schulz(
    std::span<float> x,
    std::int64_t rows,
    std::int64_t cols,
    std::span<const std::array<double, 3>> coefficients,
    std::vector<float>& workspace) {
  MUSTER_CHECK(
      rows >= 0 && cols >= 0 && std::ssize(x) == rows * cols,
      "newton_schulz: x does not have rows * cols elements");
  if (!normalise(x)) {
    return;
  }
  const std::int64_t m = std::min(rows, cols);
  const auto needed = static_cast<std::size_t>(2 * m * m + rows * cols);
  if (workspace.size() < needed) {
    workspace.resize(needed);
  }
  float* current = x.data();
  Workspace work{workspace.data(), workspace.data() + m * m, workspace.data() + 2 * m * m};
  for (const std::array<double, 3>& step : coefficients) {
    newton_schulz_step(current, rows, cols, step, work);
    std::swap(current, work.next);
  }
  if (current != x.data()) {
    std::copy_n(current, rows * cols, x.data());
  }
}

double newton_schulz_flops(std::int64_t rows, std::int64_t cols, int steps) {
  const auto m = static_cast<double>(std::min(rows, cols));
  const auto n = static_cast<double>(std::max(rows, cols));
  // x x^T and A^2 by half (symmetric), the last product in full.
  return steps * ((m + 1) * m * n + (m + 1) * m * m + 2 * m * m * n);
}

}  // namespace muster::kernels
