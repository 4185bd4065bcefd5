#include "cpu/blas.h"

#include <muster/common/check.h>
#include <muster/kernels/gemm.h>
#include <muster/kernels/newton_schulz.h>
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

struct NewtonSchulzWorkspace::State {
  std::vector<float> memory;
};

NewtonSchulzWorkspace::NewtonSchulzWorkspace() : state_(std::make_unique<State>()) {}

NewtonSchulzWorkspace::~NewtonSchulzWorkspace() = default;
NewtonSchulzWorkspace::NewtonSchulzWorkspace(NewtonSchulzWorkspace&&) noexcept = default;
NewtonSchulzWorkspace& NewtonSchulzWorkspace::operator=(NewtonSchulzWorkspace&&) noexcept = default;

void newton_schulz_batch(
    std::span<float> x,
    std::int64_t count,
    std::int64_t rows,
    std::int64_t cols,
    const NewtonSchulzOptions& options,
    NewtonSchulzWorkspace& workspace,
    std::span<NewtonSchulzReport> reports) {
  MUSTER_CHECK(
      count >= 0 && rows >= 0 && cols >= 0 && std::ssize(x) == count * rows * cols,
      "newton_schulz_batch: x does not have count * rows * cols elements");
  MUSTER_CHECK(
      reports.empty() || std::ssize(reports) == count,
      "newton_schulz_batch: reports is neither empty nor one per matrix");
  const auto size = static_cast<std::size_t>(rows * cols);
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    const std::span<float> matrix = x.subspan(i * size, size);
    if (!reports.empty()) {
      const NormAndNonfinite norm = norm_and_nonfinite(matrix);
      reports[i] = {
          .input_norm = std::sqrt(norm.squared_sum), .nonfinite = norm.nonfinite_count > 0};
    }
    newton_schulz(matrix, rows, cols, options.coefficients, workspace.state().memory);
  }
}

}  // namespace muster::kernels
