// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/kernels/numbers.h"

#include <muster/kernels/newton_schulz.h>

#include <array>
#include <limits>

namespace muster::kernels {
namespace {

using test::cast;
using test::distance;
using test::normal_values;
using test::Values;

using Schedule = std::vector<std::array<double, 3>>;

const Schedule kKeller(5, {3.4445, -4.7750, 2.0315});

std::vector<float> orthogonalise(
    std::vector<float> x,
    std::int64_t rows,
    std::int64_t cols,
    const Schedule& schedule = kKeller) {
  NewtonSchulzWorkspace workspace;
  newton_schulz_batch(x, 1, rows, cols, {.coefficients = schedule}, workspace, {});
  return x;
}

std::vector<float> transpose(const std::vector<float>& x, std::size_t rows, std::size_t cols) {
  std::vector<float> result(x.size());
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < cols; ++j) {
      result[j * rows + i] = x[i * cols + j];
    }
  }
  return result;
}

std::vector<float> scaled(const std::vector<float>& x, double factor) {
  std::vector<float> result(x.size());
  std::transform(x.begin(), x.end(), result.begin(), [factor](float value) {
    return static_cast<float>(static_cast<double>(value) * factor);
  });
  return result;
}

// `count` orthonormal rows of length n: Gram-Schmidt, twice, on random ones.
std::vector<Values> orthonormal(std::uint64_t seed, std::size_t count, std::size_t n) {
  std::vector<Values> rows;
  for (std::size_t i = 0; i < count; ++i) {
    Values row = normal_values(seed + i, static_cast<std::int64_t>(n));
    for (int pass = 0; pass < 2; ++pass) {
      for (const Values& other : rows) {
        const double overlap = test::dot(row, other);
        for (std::size_t j = 0; j < n; ++j) {
          row[j] -= overlap * other[j];
        }
      }
    }
    const double norm = std::sqrt(test::dot(row, row));
    for (double& x : row) {
      x /= norm;
    }
    rows.push_back(row);
  }
  return rows;
}

// A matrix with chosen singular values, and what Newton-Schulz made of each of them.
class Spectrum {
 public:
  Spectrum(std::size_t rows, std::size_t cols, Values values)
      : values_(std::move(values)),
        rows_(rows),
        cols_(cols),
        left_(orthonormal(100, values_.size(), rows)),
        right_(orthonormal(900, values_.size(), cols)) {}

  [[nodiscard]] std::vector<float> matrix() const {
    std::vector<float> x(rows_ * cols_);
    for (std::size_t i = 0; i < rows_; ++i) {
      for (std::size_t j = 0; j < cols_; ++j) {
        double sum = 0;
        for (std::size_t s = 0; s < values_.size(); ++s) {
          sum += values_[s] * left_[s][i] * right_[s][j];
        }
        x[i * cols_ + j] = static_cast<float>(sum);
      }
    }
    return x;
  }

  // left_s^T x right_t
  [[nodiscard]] double component(const std::vector<float>& x, std::size_t s, std::size_t t) const {
    double sum = 0;
    for (std::size_t i = 0; i < rows_; ++i) {
      for (std::size_t j = 0; j < cols_; ++j) {
        sum += left_[s][i] * static_cast<double>(x[i * cols_ + j]) * right_[t][j];
      }
    }
    return sum;
  }

 private:
  Values values_;
  std::size_t rows_;
  std::size_t cols_;
  std::vector<Values> left_;
  std::vector<Values> right_;
};

double polynomial(const Schedule& schedule, double sigma) {
  for (const auto& [a, b, c] : schedule) {
    sigma = a * sigma + b * std::pow(sigma, 3) + c * std::pow(sigma, 5);
  }
  return sigma;
}

TEST(NewtonSchulz, KellerReproducesTheReferenceMatrix) {
  const std::vector<float> expected{
      -0.568290F, 0.057742F, 0.683774F, 0.563355F, 0.405613F, 0.247871F};
  EXPECT_LT(distance(orthogonalise({1, 2, 3, 4, 5, 6}, 2, 3), expected), 2e-6);
}

TEST(NewtonSchulz, SingularValuesFallIntoTheGoldenBand) {
  const std::size_t shapes[][2] = {{24, 40}, {40, 24}, {24, 24}};
  for (const auto& [rows, cols] : shapes) {
    Values sigma;
    for (int i = 0; i < 24; ++i) {
      sigma.push_back(std::pow(10, -1.6 * i / 23.0));  // 1 to 0.025: 0.0107 after normalising
    }
    const double norm = std::sqrt(test::dot(sigma, sigma));
    const Spectrum spectrum(rows, cols, sigma);
    const auto x = orthogonalise(
        spectrum.matrix(), static_cast<std::int64_t>(rows), static_cast<std::int64_t>(cols));
    for (std::size_t s = 0; s < sigma.size(); ++s) {
      ASSERT_GE(sigma[s] / norm, 0.01);
      const double got = spectrum.component(x, s, s);
      EXPECT_GE(got, 0.6818 - 1e-4);
      EXPECT_LE(got, 1.1344 + 1e-4);
      EXPECT_NEAR(got, polynomial(kKeller, sigma[s] / norm), 2e-4);
      EXPECT_NEAR(spectrum.component(x, s, (s + 1) % sigma.size()), 0, 2e-4);
    }
  }
}

TEST(NewtonSchulz, SchedulesWithDifferentStepsRunInOrder) {
  const Schedule you{
      {4.0848, -6.8946, 2.9270},
      {3.9505, -6.3029, 2.6377},
      {3.7418, -5.5913, 2.3037},
      {2.8769, -3.1427, 1.2046},
      {2.8366, -3.0525, 1.2012}};
  const std::vector<float> expected{
      -0.591518F, 0.110997F, 0.813512F, 0.707256F, 0.560562F, 0.413868F};
  EXPECT_LT(distance(orthogonalise({1, 2, 3, 4, 5, 6}, 2, 3, you), expected), 2e-6);
}

TEST(NewtonSchulz, EvenNumberOfStepsEndsInX) {
  const Schedule two(kKeller.begin(), kKeller.begin() + 2);
  const auto x = orthogonalise({2}, 1, 1, two);
  EXPECT_NEAR(static_cast<double>(x[0]), polynomial(two, 1), 1e-5);
}

TEST(NewtonSchulz, NoStepsOnlyNormalise) {
  EXPECT_EQ(orthogonalise({3, 4}, 1, 2, {}), (std::vector<float>{0.6F, 0.8F}));
}

TEST(NewtonSchulz, IsScaleInvariantFromTinyToHuge) {
  const auto x = cast<float>(normal_values(1, 12 * 20));
  const auto reference = orthogonalise(x, 12, 20);
  for (const double factor : {1e-20, 1e-30, 3e-7, 1e4, 1e30}) {
    EXPECT_LT(distance(orthogonalise(scaled(x, factor), 12, 20), reference), 2e-4) << factor;
  }
  // Powers of two change nothing but exponents.
  EXPECT_LT(distance(orthogonalise(scaled(x, 0x1p-40), 12, 20), reference), 1e-6);
}

TEST(NewtonSchulz, IsOdd) {
  const auto x = cast<float>(normal_values(2, 10 * 8));
  EXPECT_EQ(orthogonalise(scaled(x, -1), 10, 8), scaled(orthogonalise(x, 10, 8), -1));
}

TEST(NewtonSchulz, CommutesWithTransposition) {
  const auto x = cast<float>(normal_values(3, 12 * 20));
  const auto expected = transpose(orthogonalise(x, 12, 20), 12, 20);
  EXPECT_LT(distance(orthogonalise(transpose(x, 12, 20), 20, 12), expected), 2e-4);
}

TEST(NewtonSchulz, IsEquivariantUnderOrthogonalMatrices) {
  constexpr std::size_t kRows = 8;
  constexpr std::size_t kCols = 14;
  const auto q = orthonormal(50, kRows, kRows);
  const auto rotate = [&](const std::vector<float>& x) {
    std::vector<float> result(x.size());
    for (std::size_t i = 0; i < kRows; ++i) {
      for (std::size_t j = 0; j < kCols; ++j) {
        double sum = 0;
        for (std::size_t k = 0; k < kRows; ++k) {
          sum += q[i][k] * static_cast<double>(x[k * kCols + j]);
        }
        result[i * kCols + j] = static_cast<float>(sum);
      }
    }
    return result;
  };
  const auto x = cast<float>(normal_values(4, kRows * kCols));
  EXPECT_LT(
      distance(orthogonalise(rotate(x), kRows, kCols), rotate(orthogonalise(x, kRows, kCols))),
      2e-4);
}

TEST(NewtonSchulz, ZeroRowsAndColumnsAreInert) {
  const auto x = cast<float>(normal_values(5, 6 * 9));
  std::vector<float> padded(8 * 12, 0);
  for (std::size_t i = 0; i < 6; ++i) {
    std::copy_n(
        x.begin() + static_cast<std::ptrdiff_t>(i * 9),
        9,
        padded.begin() + static_cast<std::ptrdiff_t>(i * 12));
  }
  const auto expected = orthogonalise(x, 6, 9);
  const auto got = orthogonalise(padded, 8, 12);
  for (std::size_t i = 0; i < 8; ++i) {
    for (std::size_t j = 0; j < 12; ++j) {
      const float value = i < 6 && j < 9 ? expected[i * 9 + j] : 0;
      EXPECT_NEAR(got[i * 12 + j], value, i < 6 && j < 9 ? 1e-5F : 0.0F);
    }
  }
}

TEST(NewtonSchulz, ZeroStaysZero) {
  EXPECT_EQ(orthogonalise(std::vector<float>(12, 0), 3, 4), std::vector<float>(12, 0));
}

TEST(NewtonSchulz, RankOneBecomesItsDirectionTimesTheValueAtOne) {
  const Spectrum spectrum(16, 30, {7});
  const auto x = orthogonalise(spectrum.matrix(), 16, 30);
  EXPECT_NEAR(spectrum.component(x, 0, 0), 0.6964, 1e-4);
  double rest = 0;
  for (const float value : x) {
    rest += static_cast<double>(value) * static_cast<double>(value);
  }
  // Rounding of the input, 1e-8 in each of 16 other directions, grows by the slope at 0, 485.
  EXPECT_NEAR(std::sqrt(rest), 0.6964, 1e-4);
}

TEST(NewtonSchulz, NonfiniteInputGivesNanEverywhere) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> x(12, 1);
    x[7] = bad;
    const auto result = orthogonalise(x, 3, 4);
    EXPECT_TRUE(std::all_of(result.begin(), result.end(), [](float v) { return std::isnan(v); }));
  }
}

TEST(NewtonSchulz, AWorkspaceThatHeldALargerMatrixGivesTheSameBits) {
  NewtonSchulzWorkspace workspace;
  auto large = cast<float>(normal_values(6, 30 * 20));
  newton_schulz_batch(large, 1, 30, 20, {.coefficients = kKeller}, workspace, {});
  auto small = cast<float>(normal_values(7, 5 * 6));
  const auto expected = orthogonalise(small, 5, 6);
  newton_schulz_batch(small, 1, 5, 6, {.coefficients = kKeller}, workspace, {});
  EXPECT_EQ(small, expected);
}

TEST(NewtonSchulz, AcceptsEmptyMatrices) {
  EXPECT_TRUE(orthogonalise({}, 0, 5).empty());
  EXPECT_TRUE(orthogonalise({}, 5, 0).empty());
}

TEST(NewtonSchulz, FlopsAreSymmetricInTheSidesAndLinearInSteps) {
  const auto flops = [](std::int64_t rows, std::int64_t cols, int steps) {
    return newton_schulz_flops(NewtonSchulzForm::kSymmetric, rows, cols, steps, 0);
  };
  EXPECT_EQ(flops(128, 512, 5), flops(512, 128, 5));
  EXPECT_EQ(flops(64, 64, 10), 2 * flops(64, 64, 5));
  // 3 m^2 n + m^3, up to the diagonals that a symmetric product computes once.
  EXPECT_NEAR(flops(1000, 4000, 1), 3 * 1e6 * 4000 + 1e9, 1e-3 * flops(1000, 4000, 1));
}

}  // namespace
}  // namespace muster::kernels
