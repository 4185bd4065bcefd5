// SPDX-License-Identifier: Apache-2.0
// Peers of Newton-Schulz: the standard quintic with the plain products of a library.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

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

// fp32 by OpenBLAS's sgemm.
std::unique_ptr<StandardQuintic> standard_float32(std::int64_t rows, std::int64_t cols);

// Everything stored in bf16: by oneDNN where the build found it, else by muster's own products.
std::unique_ptr<StandardQuintic> standard_bfloat16(std::int64_t rows, std::int64_t cols);

}  // namespace muster::bench
