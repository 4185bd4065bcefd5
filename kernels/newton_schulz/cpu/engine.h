// SPDX-License-Identifier: Apache-2.0
// Runs a plan on one matrix.
#pragma once

#include "kernels/gemm/cpu/packed.h"
#include "kernels/newton_schulz/cpu/plan.h"

#include <cstdint>
#include <span>
#include <utility>

namespace muster::kernels {

// Row-major in memory of the engine; `stride` is not a power of two, so that rows spread over the
// caches.
struct WorkMatrix {
  float* data{nullptr};
  std::int64_t rows{0};
  std::int64_t cols{0};
  std::int64_t stride{0};

  [[nodiscard]] float* row(std::int64_t i) const { return data + i * stride; }
};

// rest + shift * I, trace(rest) = 0: what rounding of an operand touches is as small as it can be.
struct ShiftedMatrix {
  WorkMatrix rest;
  double shift{0};
};

// Estimates from random signs z of a matrix.
struct Probes {
  double orthogonality_error{0};  // |XX^T - I|_F / sqrt(rows), from |(XX^T - I) z|
  double largest{0};              // |XX^T z| / |X^T z|, a lower bound of the largest singular value
};

// Belongs to one call at a time; keeps its memory.
class NewtonSchulzEngine {
 public:
  // x[rows, cols] in place; see newton_schulz_batch. `team` works inside the products.
  NewtonSchulzReport run(
      std::span<float> x,
      std::int64_t rows,
      std::int64_t cols,
      const NewtonSchulzPlan& plan,
      ThreadTeam& team);

 private:
  struct Factors;

  void load(std::span<const float> x, std::int64_t rows, std::int64_t cols, double factor);
  void store(std::span<float> x, std::int64_t rows, std::int64_t cols) const;
  // False where the matrices left the range that the polynomials allow.
  bool iterate(const NewtonSchulzPlan& plan, ThreadTeam& team);
  // Steps begin + 1 ... end on the small side, then X.
  bool stretch(const NewtonSchulzPlan& plan, std::size_t begin, std::size_t end, ThreadTeam& team);

  void gram(const Factors& factors);
  void square_polynomial(const Factors& factors, const NewtonSchulzStep& step, ShiftedMatrix& to);
  void multiply(
      const Factors& factors,
      const ShiftedMatrix& a,
      const ShiftedMatrix& b,
      double more,
      ShiftedMatrix& to);
  void apply(const Factors& factors, const ShiftedMatrix& polynomial);
  [[nodiscard]] bool diagonal_in_range(double largest) const;
  [[nodiscard]] double squared_norm() const;
  [[nodiscard]] Probes probe();

  ProductScratch products_;
  AlignedBuffer memory_;
  AlignedBuffer probes_;
  WorkMatrix x_;     // [short side, long side]
  WorkMatrix next_;  // like x_
  ShiftedMatrix r_;  // XX^T, and like it:
  ShiftedMatrix z_;
  ShiftedMatrix q_;
  ShiftedMatrix spare_;
  double effective_rank_{0};
};

}  // namespace muster::kernels
