// SPDX-License-Identifier: Apache-2.0
// Peers of Newton-Schulz: the standard quintic with the plain products of a library.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace muster::bench {

// x[rows, cols] (rows <= cols) becomes the result of `steps` Keller steps. Scaling and addition
// ride on the products, three of them per step, all full.
class StandardQuintic {
 public:
  virtual ~StandardQuintic() = default;

  virtual void run(std::span<float> x) = 0;
  [[nodiscard]] virtual std::string products() const = 0;
};

inline constexpr double kKellerStep[3] = {3.4445, -4.7750, 2.0315};
inline constexpr int kSteps = 5;

// c[m, n] = alpha * a[m, k] * b[k, n] + beta * c, in row-major order; b may be stored transposed.
struct PlainProduct {
  int m{0};
  int n{0};
  int k{0};
  float alpha{1};
  const float* a{nullptr};
  const float* b{nullptr};
  bool is_b_transposed{false};
  float beta{0};
  float* c{nullptr};
};

struct Float32Library {
  const char* name;
  void (*multiply)(const PlainProduct&);
};

// OpenBLAS, and oneDNN where the build found it. The peer is the fastest.
std::vector<Float32Library> float32_libraries();

std::unique_ptr<StandardQuintic> standard_float32(
    const Float32Library& library, std::int64_t rows, std::int64_t cols);

// Everything stored in bf16: by oneDNN where the build found it, else by muster's own products.
std::unique_ptr<StandardQuintic> standard_bfloat16(std::int64_t rows, std::int64_t cols);

}  // namespace muster::bench
