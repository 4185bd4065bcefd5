// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/optimizer/reference.h"

#include <muster/optimizer/newton_schulz_sets.h>

#include <algorithm>
#include <cmath>

namespace muster::optimizer {
namespace {

using Matrix = std::vector<double>;

// a[n, k] * b[k, m]
Matrix multiply(const Matrix& a, const Matrix& b, std::size_t n, std::size_t k, std::size_t m) {
  Matrix c(n * m, 0.0);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t l = 0; l < k; ++l) {
      for (std::size_t j = 0; j < m; ++j) {
        c[i * m + j] += a[i * k + l] * b[l * m + j];
      }
    }
  }
  return c;
}

Matrix transpose(const Matrix& a, std::size_t rows, std::size_t cols) {
  Matrix t(a.size());
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < cols; ++j) {
      t[j * rows + i] = a[i * cols + j];
    }
  }
  return t;
}

}  // namespace

void ReferenceSgd::update(
    std::span<const double> gradient, double learning_rate, double weight_decay) {
  for (std::size_t i = 0; i < value.size(); ++i) {
    value[i] *= 1 - learning_rate * weight_decay;
    value[i] -= learning_rate * gradient[i];
  }
}

void ReferenceMomentum::update(
    std::span<const double> gradient,
    const MomentumOptions& options,
    double learning_rate,
    double weight_decay) {
  buffer.resize(value.size(), 0.0);
  for (std::size_t i = 0; i < value.size(); ++i) {
    const double g = gradient[i] + weight_decay * value[i];
    buffer[i] = options.momentum * buffer[i] + g;
    value[i] -= learning_rate * (options.nesterov ? g + options.momentum * buffer[i] : buffer[i]);
  }
}

void ReferenceRmsProp::update(
    std::span<const double> gradient,
    const RmsPropOptions& options,
    double learning_rate,
    double weight_decay) {
  v.resize(value.size(), 0.0);
  for (std::size_t i = 0; i < value.size(); ++i) {
    const double g = gradient[i] + weight_decay * value[i];
    v[i] = options.alpha * v[i] + (1 - options.alpha) * g * g;
    value[i] -= learning_rate * g / (std::sqrt(v[i]) + options.epsilon);
  }
}

void ReferenceAdam::update(
    std::span<const double> gradient,
    const AdamOptions& options,
    double learning_rate,
    double weight_decay) {
  ++step;
  m.resize(value.size(), 0.0);
  v.resize(value.size(), 0.0);
  for (std::size_t i = 0; i < value.size(); ++i) {
    const double g = gradient[i] + weight_decay * value[i];
    m[i] = options.beta1 * m[i] + (1 - options.beta1) * g;
    v[i] = options.beta2 * v[i] + (1 - options.beta2) * g * g;
    const double m_hat = m[i] / (1 - std::pow(options.beta1, step));
    const double v_hat = v[i] / (1 - std::pow(options.beta2, step));
    value[i] -= learning_rate * m_hat / (std::sqrt(v_hat) + options.epsilon);
  }
}

void ReferenceAdamW::update(
    std::span<const double> gradient,
    const AdamWOptions& options,
    double learning_rate,
    double weight_decay) {
  ++step;
  m.resize(value.size(), 0.0);
  v.resize(value.size(), 0.0);
  for (std::size_t i = 0; i < value.size(); ++i) {
    value[i] *= 1 - learning_rate * weight_decay;
    m[i] = options.beta1 * m[i] + (1 - options.beta1) * gradient[i];
    v[i] = options.beta2 * v[i] + (1 - options.beta2) * gradient[i] * gradient[i];
    const double m_hat = m[i] / (1 - std::pow(options.beta1, step));
    const double v_hat = v[i] / (1 - std::pow(options.beta2, step));
    value[i] -= learning_rate * m_hat / (std::sqrt(v_hat) + options.epsilon);
  }
}

std::vector<double> reference_newton_schulz(
    std::vector<double> x, std::size_t rows, std::size_t cols, const MuonOptions& options) {
  double squared = 0;
  for (const double value : x) {
    squared += value * value;
  }
  if (squared == 0) {
    return x;
  }
  for (double& value : x) {
    value /= std::sqrt(squared);
  }
  for (const auto& [a, b, c] : newton_schulz_coefficients(options)) {
    const Matrix gram = multiply(x, transpose(x, rows, cols), rows, cols, rows);
    const Matrix gram2 = multiply(gram, gram, rows, rows, rows);
    Matrix polynomial(rows * rows);
    for (std::size_t i = 0; i < rows * rows; ++i) {
      polynomial[i] = b * gram[i] + c * gram2[i];
    }
    const Matrix correction = multiply(polynomial, x, rows, rows, cols);
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = a * x[i] + correction[i];
    }
  }
  return x;
}

std::vector<double> ReferenceMuon::direct(
    std::span<const double> gradient, const MuonOptions& options) {
  momentum.resize(gradient.size(), 0.0);
  std::vector<double> direction(gradient.size());
  const double mu = options.momentum;
  const double part = options.momentum_form == MomentumForm::kEma ? 1 - mu : 1.0;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    momentum[i] = mu * momentum[i] + part * gradient[i];
    direction[i] = options.nesterov ? part * gradient[i] + mu * momentum[i] : momentum[i];
  }
  return direction;
}

void ReferenceMuon::update(
    std::span<const double> gradient,
    const MuonOptions& options,
    double learning_rate,
    double weight_decay) {
  const std::vector<double> orthogonal =
      reference_newton_schulz(direct(gradient, options), rows, cols, options);
  const double out = static_cast<double>(rows);
  const double in = static_cast<double>(cols);
  double scale = options.rms_scale * std::sqrt(std::max(out, in));
  if (options.scale == MuonScale::kKeller) {
    scale = std::sqrt(std::max(1.0, out / in));
  } else if (options.scale == MuonScale::kMuP) {
    scale = std::sqrt(out / in);
  }
  for (std::size_t i = 0; i < value.size(); ++i) {
    value[i] *= 1 - learning_rate * weight_decay;
    value[i] -= learning_rate * scale * orthogonal[i];
  }
}

}  // namespace muster::optimizer
