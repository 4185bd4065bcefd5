// Runs a plan on one matrix.
#pragma once

#include "cpu/gemm_packed.h"
#include "cpu/newton_schulz_plan.h"

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
  bool step_direct(const NewtonSchulzPlan& plan, std::size_t step, ThreadTeam& team);
  bool stretch(const NewtonSchulzPlan& plan, std::size_t begin, std::size_t end, ThreadTeam& team);

  void gram(const Factors& factors);
  void square_polynomial(const Factors& factors, const NewtonSchulzStep& step, float* to);
  void apply(const Factors& factors, const float* polynomial, double identity);
  [[nodiscard]] bool diagonal_in_range(double largest) const;
  [[nodiscard]] double squared_norm() const;
  [[nodiscard]] double orthogonality_error();

  ProductScratch products_;
  AlignedBuffer memory_;
  AlignedBuffer probes_;
  WorkMatrix x_;     // [short side, long side]
  WorkMatrix next_;  // like x_
  WorkMatrix r_;     // XX^T, and like it:
  WorkMatrix z_;
  WorkMatrix q_;
  WorkMatrix spare_;
  double effective_rank_{0};
};

}  // namespace muster::kernels
