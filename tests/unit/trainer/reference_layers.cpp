// SPDX-License-Identifier: Apache-2.0
// The operations of the tape that are layers of the model.
#include "tests/unit/trainer/reference_tape.h"

#include <cmath>
#include <limits>

namespace muster::moe_lm::reference {

using Var = Tape::Var;

Var Tape::silu(Var x) {
  Matrix out = value(x);
  for (double& element : out.data) {
    element /= 1 + std::exp(-element);
  }
  const Var y = push(std::move(out));
  nodes_[y].pull = [this, x, y] {
    for (std::size_t i = 0; i < value(y).data.size(); ++i) {
      const double sigmoid = 1 / (1 + std::exp(-value(x).data[i]));
      const double slope = sigmoid * (1 + value(x).data[i] * (1 - sigmoid));
      gradient(x).data[i] += gradient(y).data[i] * slope;
    }
  };
  return y;
}

Var Tape::rms_norm(Var x, Var weight, double epsilon) {
  Matrix out{value(x).rows, value(x).cols};
  std::vector<double> inverse(out.rows);
  const auto d = static_cast<double>(out.cols);
  for (std::size_t r = 0; r < out.rows; ++r) {
    double squared = 0;
    for (std::size_t c = 0; c < out.cols; ++c) {
      squared += value(x).at(r, c) * value(x).at(r, c);
    }
    inverse[r] = 1 / std::sqrt(squared / d + epsilon);
    for (std::size_t c = 0; c < out.cols; ++c) {
      out.at(r, c) = value(x).at(r, c) * inverse[r] * value(weight).at(0, c);
    }
  }
  const Var y = push(std::move(out));
  nodes_[y].pull = [this, x, weight, y, inverse, d] {
    for (std::size_t r = 0; r < value(y).rows; ++r) {
      double dot = 0;  // how the common factor moves
      for (std::size_t c = 0; c < value(y).cols; ++c) {
        dot += gradient(y).at(r, c) * value(weight).at(0, c) * value(x).at(r, c);
        gradient(weight).at(0, c) += gradient(y).at(r, c) * value(x).at(r, c) * inverse[r];
      }
      const double factor_slope = -dot * inverse[r] * inverse[r] * inverse[r] / d;
      for (std::size_t c = 0; c < value(y).cols; ++c) {
        gradient(x).at(r, c) += gradient(y).at(r, c) * value(weight).at(0, c) * inverse[r] +
                                factor_slope * value(x).at(r, c);
      }
    }
  };
  return y;
}

Var Tape::rope(Var x, double base) {
  Matrix out{value(x).rows, value(x).cols};
  const std::size_t half = out.cols / 2;
  const auto angle = [base, cols = out.cols](std::size_t position, std::size_t pair) {
    const double exponent = -2.0 * static_cast<double>(pair) / static_cast<double>(cols);
    return static_cast<double>(position) * std::pow(base, exponent);
  };
  for (std::size_t r = 0; r < out.rows; ++r) {
    for (std::size_t i = 0; i < half; ++i) {
      const double cosine = std::cos(angle(r, i));
      const double sine = std::sin(angle(r, i));
      out.at(r, i) = value(x).at(r, i) * cosine - value(x).at(r, i + half) * sine;
      out.at(r, i + half) = value(x).at(r, i) * sine + value(x).at(r, i + half) * cosine;
    }
  }
  const Var y = push(std::move(out));
  nodes_[y].pull = [this, x, y, half, angle] {
    for (std::size_t r = 0; r < value(y).rows; ++r) {
      for (std::size_t i = 0; i < half; ++i) {
        const double cosine = std::cos(angle(r, i));
        const double sine = std::sin(angle(r, i));
        gradient(x).at(r, i) += gradient(y).at(r, i) * cosine + gradient(y).at(r, i + half) * sine;
        gradient(x).at(r, i + half) +=
            gradient(y).at(r, i + half) * cosine - gradient(y).at(r, i) * sine;
      }
    }
  };
  return y;
}

Var Tape::softmax(Var x, bool causal) {
  Matrix out{value(x).rows, value(x).cols};
  for (std::size_t r = 0; r < out.rows; ++r) {
    const std::size_t visible = causal ? r + 1 : out.cols;
    double largest = -std::numeric_limits<double>::infinity();
    for (std::size_t c = 0; c < visible; ++c) {
      largest = std::max(largest, value(x).at(r, c));
    }
    double sum = 0;
    for (std::size_t c = 0; c < visible; ++c) {
      out.at(r, c) = std::exp(value(x).at(r, c) - largest);
      sum += out.at(r, c);
    }
    for (std::size_t c = 0; c < visible; ++c) {
      out.at(r, c) /= sum;
    }
  }
  const Var y = push(std::move(out));
  nodes_[y].pull = [this, x, y] {
    for (std::size_t r = 0; r < value(y).rows; ++r) {
      double dot = 0;
      for (std::size_t c = 0; c < value(y).cols; ++c) {
        dot += gradient(y).at(r, c) * value(y).at(r, c);
      }
      for (std::size_t c = 0; c < value(y).cols; ++c) {
        gradient(x).at(r, c) += value(y).at(r, c) * (gradient(y).at(r, c) - dot);
      }
    }
  };
  return y;
}

Var Tape::renormalised(Var x, const std::vector<std::size_t>& chosen) {
  Matrix out{1, chosen.size()};
  double sum = 0;
  for (const std::size_t column : chosen) {
    sum += value(x).at(0, column);
  }
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    out.at(0, i) = value(x).at(0, chosen[i]) / sum;
  }
  const Var y = push(std::move(out));
  nodes_[y].pull = [this, x, y, chosen, sum] {
    double dot = 0;
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      dot += gradient(y).at(0, i) * value(y).at(0, i);
    }
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      gradient(x).at(0, chosen[i]) += (gradient(y).at(0, i) - dot) / sum;
    }
  };
  return y;
}

Var Tape::cross_entropy_sum(Var logits, const std::vector<std::int32_t>& targets) {
  const Var probabilities = softmax(logits, false);
  Matrix out{1, 1};
  for (std::size_t r = 0; r < targets.size(); ++r) {
    out.at(0, 0) -= std::log(value(probabilities).at(r, static_cast<std::size_t>(targets[r])));
  }
  const Var y = push(std::move(out));
  nodes_[y].pull = [this, probabilities, y, targets] {
    for (std::size_t r = 0; r < targets.size(); ++r) {
      const auto target = static_cast<std::size_t>(targets[r]);
      gradient(probabilities).at(r, target) -=
          gradient(y).at(0, 0) / value(probabilities).at(r, target);
    }
  };
  return y;
}

}  // namespace muster::moe_lm::reference
