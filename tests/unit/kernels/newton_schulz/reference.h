// SPDX-License-Identifier: Apache-2.0
// Matrices with chosen singular values and what the exact polynomial makes of them, in double.
#pragma once

#include "tests/unit/kernels/numbers.h"

#include <muster/kernels/gemm.h>
#include <muster/kernels/newton_schulz.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace muster::kernels::test {

using Schedule = std::vector<NewtonSchulzStep>;

struct NamedSchedule {
  std::string name;
  Schedule steps;
};

inline Schedule keller(std::size_t steps = 5) {
  return Schedule(steps, {3.4445, -4.7750, 2.0315});
}

inline Schedule you() {
  return {
      {4.0848, -6.8946, 2.9270},
      {3.9505, -6.3029, 2.6377},
      {3.7418, -5.5913, 2.3037},
      {2.8769, -3.1427, 1.2046},
      {2.8366, -3.0525, 1.2012}};
}

// With its safety factor on all steps, or on all but the last.
inline Schedule polar_express(double safety, bool also_last, std::size_t steps = 5) {
  Schedule raw{
      {8.28721201814563, -23.595886519098837, 17.300387312530933},
      {4.107059111542203, -2.9478499167379106, 0.5448431082926601},
      {3.9486908534822946, -2.908902115962949, 0.5518191394370137},
      {3.3184196573706015, -2.488488024314874, 0.51004894012372},
      {2.300652019954817, -1.6689039845747493, 0.4188073119525673},
      {1.891301407787398, -1.2679958271945868, 0.37680408948524835},
      {1.8750014808534479, -1.2500016453999487, 0.3750001645474248},
      {1.875, -1.25, 0.375}};
  raw.resize(steps);
  for (std::size_t i = 0; i < steps; ++i) {
    if (also_last || i + 1 < steps) {
      raw[i][0] /= safety;
      raw[i][1] /= std::pow(safety, 3);
      raw[i][2] /= std::pow(safety, 5);
    }
  }
  return raw;
}

inline Schedule deepseek_v4() {
  Schedule steps = keller(8);
  steps.push_back({2, -1.5, 0.5});
  steps.push_back({2, -1.5, 0.5});
  return steps;
}

inline Schedule cubic5() {
  return {
      {3.3656576, -3.3420992, 0},
      {2.5744352, -1.4957376, 0},
      {2.5368962, -1.4312570, 0},
      {2.4418906, -1.2764040, 0},
      {2.2230472, -0.9630650, 0}};
}

inline Schedule cans() {
  return {
      {8.4703, -25.1081, 18.6293},
      {4.1828, -3.1087, 0.5806},
      {3.9619, -2.9541, 0.5630},
      {3.2866, -2.4647, 0.5074},
      {2.2737, -1.6447, 0.4162}};
}

// The sets that are safe with Frobenius normalisation, and the cubic ones.
inline std::vector<NamedSchedule> safe_schedules() {
  return {
      {"keller", keller()},
      {"keller x 10", keller(10)},
      {"you", you()},
      {"polar express / 1.01", polar_express(1.01, false)},
      {"polar express / 1.05", polar_express(1.05, true)},
      {"polar express / 1.01 x 8", polar_express(1.01, false, 8)},
      {"deepseek v4", deepseek_v4()},
      {"cubic5", cubic5()},
      {"classic cubic x 15", Schedule(15, {1.5, -0.5, 0})}};
}

inline double polynomial(const Schedule& schedule, double sigma) {
  for (const auto& [a, b, c] : schedule) {
    sigma = a * sigma + b * std::pow(sigma, 3) + c * std::pow(sigma, 5);
  }
  return sigma;
}

// `count` orthonormal rows of length n, row-major: Gram-Schmidt, twice, on random ones.
inline Values orthonormal_rows(std::uint64_t seed, std::size_t count, std::size_t n) {
  Values rows = normal_values(seed, static_cast<std::int64_t>(count * n));
  for (std::size_t i = 0; i < count; ++i) {
    double* row = rows.data() + i * n;
    for (int pass = 0; pass < 2; ++pass) {
      for (std::size_t j = 0; j < i; ++j) {
        const double* other = rows.data() + j * n;
        double overlap = 0;
        for (std::size_t k = 0; k < n; ++k) {
          overlap += row[k] * other[k];
        }
        for (std::size_t k = 0; k < n; ++k) {
          row[k] -= overlap * other[k];
        }
      }
    }
    double norm = 0;
    for (std::size_t k = 0; k < n; ++k) {
      norm += row[k] * row[k];
    }
    for (std::size_t k = 0; k < n; ++k) {
      row[k] /= std::sqrt(norm);
    }
  }
  return rows;
}

// Singular values, scaled to Frobenius norm 1, with random singular vectors.
class SpectralMatrix {
 public:
  SpectralMatrix(std::size_t rows, std::size_t cols, Values sigma, std::uint64_t seed = 100)
      : rows_(rows),
        cols_(cols),
        sigma_(std::move(sigma)),
        left_(orthonormal_rows(seed, sigma_.size(), rows)),
        right_(orthonormal_rows(seed + 1, sigma_.size(), cols)) {
    const double norm = std::sqrt(dot(sigma_, sigma_));
    for (double& value : sigma_) {
      value /= norm;
    }
  }

  [[nodiscard]] const Values& sigma() const { return sigma_; }

  [[nodiscard]] std::vector<float> matrix() const { return cast<float>(with(sigma_)); }

  // What the polynomial makes of matrix().
  [[nodiscard]] Values result(const Schedule& schedule) const {
    Values values;
    for (const double sigma : sigma_) {
      values.push_back(polynomial(schedule, sigma));
    }
    return with(values);
  }

  // left_s^T x right_s
  [[nodiscard]] double component(const std::vector<float>& x, std::size_t s) const {
    double sum = 0;
    for (std::size_t i = 0; i < rows_; ++i) {
      for (std::size_t j = 0; j < cols_; ++j) {
        sum += left_[s * rows_ + i] * static_cast<double>(x[i * cols_ + j]) * right_[s * cols_ + j];
      }
    }
    return sum;
  }

 private:
  [[nodiscard]] Values with(const Values& values) const {
    Values scaled = left_;
    for (std::size_t s = 0; s < values.size(); ++s) {
      for (std::size_t i = 0; i < rows_; ++i) {
        scaled[s * rows_ + i] *= values[s];
      }
    }
    Values x(rows_ * cols_);
    const auto m = static_cast<std::int64_t>(rows_);
    const auto n = static_cast<std::int64_t>(cols_);
    const auto k = static_cast<std::int64_t>(values.size());
    gemm(GemmCall<double>{
        Transpose::kYes,
        Transpose::kNo,
        m,
        n,
        k,
        1.0,
        scaled.data(),
        m,
        right_.data(),
        n,
        0.0,
        x.data(),
        n});
    return x;
  }

  std::size_t rows_;
  std::size_t cols_;
  Values sigma_;
  Values left_;
  Values right_;
};

// `count` singular values from 1 down to 10^-decades.
inline Values log_spectrum(std::size_t count, double decades) {
  Values sigma;
  for (std::size_t i = 0; i < count; ++i) {
    sigma.push_back(
        std::pow(10, -decades * static_cast<double>(i) / static_cast<double>(count - 1)));
  }
  return sigma;
}

// |a - b|_F / |b|_F
inline double relative_error(const std::vector<float>& a, const Values& b) {
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - b[i], 2);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

inline double cosine(const std::vector<float>& a, const Values& b) {
  const Values other = cast<double>(a);
  return dot(other, b) / std::sqrt(dot(other, other) * dot(b, b));
}

inline std::vector<float> orthogonalise(
    std::vector<float> x,
    std::int64_t rows,
    std::int64_t cols,
    const NewtonSchulzOptions& options,
    NewtonSchulzReport* report = nullptr) {
  NewtonSchulzWorkspace workspace;
  std::array<NewtonSchulzReport, 1> reports;
  newton_schulz_batch(x, 1, rows, cols, options, workspace, reports);
  if (report != nullptr) {
    *report = reports[0];
  }
  return x;
}

// Every precision in every form.
struct Variant {
  DType precision;
  NewtonSchulzForm form;
};

inline const std::vector<Variant>& variants() {
  static const std::vector<Variant> kAll{
      {DType::kFloat32, NewtonSchulzForm::kStandard},
      {DType::kFloat32, NewtonSchulzForm::kSymmetric},
      {DType::kFloat32, NewtonSchulzForm::kGram},
      {DType::kBFloat16, NewtonSchulzForm::kStandard},
      {DType::kBFloat16, NewtonSchulzForm::kSymmetric},
      {DType::kBFloat16, NewtonSchulzForm::kGram}};
  return kAll;
}

inline NewtonSchulzOptions options_of(const Schedule& schedule, const Variant& variant) {
  return {.coefficients = schedule, .precision = variant.precision, .form = variant.form};
}

inline std::string name_of(const Variant& variant) {
  return std::string(variant.precision == DType::kBFloat16 ? "bf16 " : "fp32 ") +
         to_string(variant.form);
}

}  // namespace muster::kernels::test
