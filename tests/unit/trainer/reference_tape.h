// SPDX-License-Identifier: Apache-2.0
// Reverse-mode differentiation of small matrices in double: the oracle's arithmetic, as plain as
// can be. Each operation appends a node; `backward` walks them from the last to the first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace muster::moe_lm::reference {

struct Matrix {
  std::size_t rows{0};
  std::size_t cols{0};
  std::vector<double> data;

  Matrix() = default;

  Matrix(std::size_t r, std::size_t c) : rows(r), cols(c), data(r * c, 0.0) {}

  double& at(std::size_t r, std::size_t c) { return data[r * cols + c]; }

  [[nodiscard]] double at(std::size_t r, std::size_t c) const { return data[r * cols + c]; }
};

class Tape {
 public:
  using Var = std::size_t;

  // A leaf that adds its gradient into `gradient` (same shape) when backward is done with it.
  Var parameter(const Matrix& value, Matrix& gradient);

  Var rows(Var table, const std::vector<std::int32_t>& ids);
  Var row(Var x, std::size_t index);
  Var columns(Var x, std::size_t begin, std::size_t count);
  Var side_by_side(const std::vector<Var>& parts);
  Var stacked(const std::vector<Var>& parts);
  Var linear(Var x, Var weight);  // x weight^T
  Var product(Var a, Var b);      // a b
  Var add(Var a, Var b);
  Var times(Var a, Var b);  // element by element
  Var scaled(Var x, double factor);
  Var scaled_by(Var x, Var scalar, std::size_t column);  // x * scalar[0, column]
  Var silu(Var x);
  Var rms_norm(Var x, Var weight, double epsilon);
  Var rope(Var x, double base);     // rows are positions, one head
  Var softmax(Var x, bool causal);  // of each row; causal: columns <= row only
  Var renormalised(Var x, const std::vector<std::size_t>& chosen);  // [1, chosen], sum 1
  Var cross_entropy_sum(Var logits, const std::vector<std::int32_t>& targets);

  [[nodiscard]] const Matrix& value(Var x) const { return nodes_[x].value; }

  // Gradients of the single element of `result`.
  void backward(Var result);

 private:
  struct Node {
    Matrix value;
    Matrix gradient;
    std::function<void()> pull;  // from this node's gradient into those of its inputs
  };

  Var push(Matrix value);

  Matrix& gradient(Var x) { return nodes_[x].gradient; }

  std::vector<Node> nodes_;
};

}  // namespace muster::moe_lm::reference
