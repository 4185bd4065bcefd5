// SPDX-License-Identifier: Apache-2.0
// Orthogonalisation by Newton-Schulz: X <- aX + bAX + cA^2X with A = XX^T, from X = U / |U|_F.
//
// Three forms of the same polynomial (docs/concepts/kernels.md has the flop counts):
//   standard   general products
//   symmetric  XX^T and A^2 by their lower triangles
//   gram       iterates on the small side only: R = XX^T, Q = I; per step Z = bR + cR^2,
//              Q <- QZ + aQ, R <- (aI + Z) R (aI + Z); X <- QX at the end and at every restart
//              (Zhang, Amsel, Chen, Dao 2026). All factors are polynomials of one symmetric
//              matrix, so every product is symmetric and half of it is enough.
//
// Thread-safety: functions of their arguments; a workspace belongs to one call at a time.
#pragma once

#include <muster/common/dtype.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace muster::kernels {

// {a, b, c} of one iteration.
using NewtonSchulzStep = std::array<double, 3>;

enum class NewtonSchulzForm : std::uint8_t { kAuto, kStandard, kSymmetric, kGram };

[[nodiscard]] const char* to_string(NewtonSchulzForm form);

using MatrixPrecision [[deprecated("use muster::DType")]] = DType;

struct NewtonSchulzOptions {
  std::span<const NewtonSchulzStep> coefficients;
  // kFloat32 or kBFloat16. With kBFloat16, operands of the products are rounded to bf16, sums and
  // intermediate matrices stay fp32. Operands also stay fp32 where bf16 would give a wrong
  // direction: the first steps of long schedules and early steps of the Gram form's small matrices
  // (docs/concepts/kernels.md).
  DType precision{DType::kFloat32};
  NewtonSchulzForm form{NewtonSchulzForm::kAuto};
  bool diagnostics{true};  // fill effective_rank and orthogonality_error of the reports
  int threads{1};          // of this call; the result does not depend on it
};

// The choice for one matrix: the form, and for the Gram form after which steps (1-based) X is
// formed again.
struct NewtonSchulzChoice {
  NewtonSchulzForm form{NewtonSchulzForm::kStandard};
  std::vector<int> restarts;  // none where the precision allows it
  double flops{0};    // multiply-adds * 2 of the chosen form, halves of symmetric products only
  double seconds{0};  // the cost model's estimate for one thread
};

// The cost model: a pure function of shape, schedule and precision, the same on every rank and
// machine (its rates are constants, not measurements at start).
[[nodiscard]] NewtonSchulzChoice choose_newton_schulz(
    std::int64_t rows, std::int64_t cols, const NewtonSchulzOptions& options);

// Of one matrix.
struct NewtonSchulzReport {
  double input_norm{0};      // |U|_F before normalisation
  double effective_rank{0};  // |U|_F^4 / |UU^T|_F^2 from the first Gram matrix, in [1, short side]
  // |OO^T - I|_F / sqrt(short side), estimated by four seeded +-1 probes (Hutchinson): two skinny
  // products, about 10 % accurate.
  double orthogonality_error{0};
  // The input held NaN or infinity, or the iteration left its range in fp32 too. All elements of
  // the result are NaN.
  bool nonfinite{false};
  // The chosen form ran away on this matrix (rank-deficient momentum in low precision, see
  // docs/concepts/kernels.md); it was computed again in the symmetric form in fp32.
  bool recomputed{false};
};

// Grows as needed; reuse it between calls.
class NewtonSchulzWorkspace {
 public:
  NewtonSchulzWorkspace();
  ~NewtonSchulzWorkspace();
  NewtonSchulzWorkspace(const NewtonSchulzWorkspace&) = delete;
  NewtonSchulzWorkspace& operator=(const NewtonSchulzWorkspace&) = delete;
  NewtonSchulzWorkspace(NewtonSchulzWorkspace&&) noexcept;
  NewtonSchulzWorkspace& operator=(NewtonSchulzWorkspace&&) noexcept;

  struct State;

  [[nodiscard]] State& state() { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

// Orthogonalises each of x[count, rows, cols] in place. Every matrix is normalised in fp32 by its
// own Frobenius norm (summed in double) before any down-cast; there is no epsilon: a zero matrix
// stays zero, everything else is scale-invariant from 1e-38 to 1e38. A matrix with a non-finite
// element becomes all NaN. A matrix's result does not depend on `count`, on its place in the batch
// or on `threads`, bit for bit. `reports` is [count] or empty.
void newton_schulz_batch(
    std::span<float> x,
    std::int64_t count,
    std::int64_t rows,
    std::int64_t cols,
    const NewtonSchulzOptions& options,
    NewtonSchulzWorkspace& workspace,
    std::span<NewtonSchulzReport> reports);

// Multiply-adds * 2 of a form over `steps` iterations; gram with `restarts` restarts.
[[nodiscard]] double newton_schulz_flops(
    NewtonSchulzForm form, std::int64_t rows, std::int64_t cols, int steps, int restarts);

}  // namespace muster::kernels
