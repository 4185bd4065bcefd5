#include "reference.h"

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
  for (const auto& [a, b, c] :
       newton_schulz_coefficients(options.newton_schulz_set, options.newton_schulz_steps)) {
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

void ReferenceMuon::update(
    std::span<const double> gradient,
    const MuonOptions& options,
    double learning_rate,
    double weight_decay) {
  momentum.resize(value.size(), 0.0);
  std::vector<double> direction(value.size());
  for (std::size_t i = 0; i < value.size(); ++i) {
    momentum[i] = options.momentum * momentum[i] + gradient[i];
    direction[i] = options.nesterov ? gradient[i] + options.momentum * momentum[i] : momentum[i];
  }
  direction = reference_newton_schulz(std::move(direction), rows, cols, options);
  const double scale = options.rms_scale * std::sqrt(static_cast<double>(std::max(rows, cols)));
  for (std::size_t i = 0; i < value.size(); ++i) {
    value[i] *= 1 - learning_rate * weight_decay;
    value[i] -= learning_rate * scale * direction[i];
  }
}

}  // namespace muster::optimizer
