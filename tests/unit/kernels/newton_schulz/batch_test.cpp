// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/kernels/newton_schulz/reference.h"

#include <muster/common/check.h>

#include <limits>

namespace muster::kernels {
namespace {

using test::cast;
using test::distance;
using test::keller;
using test::log_spectrum;
using test::normal_values;
using test::options_of;
using test::orthogonalise;
using test::Schedule;
using test::SpectralMatrix;
using test::Variant;
using test::variants;

std::vector<float> scaled(const std::vector<float>& x, double factor) {
  std::vector<float> result(x.size());
  std::transform(x.begin(), x.end(), result.begin(), [factor](float value) {
    return static_cast<float>(static_cast<double>(value) * factor);
  });
  return result;
}

std::vector<float> transposed(const std::vector<float>& x, std::size_t rows, std::size_t cols) {
  std::vector<float> result(x.size());
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < cols; ++j) {
      result[j * rows + i] = x[i * cols + j];
    }
  }
  return result;
}

// How far a variant's results may differ where only its rounding does: measured 3e-5 and 0.02 at
// most, on elements below 1.
double tolerance(const Variant& variant) {
  return variant.precision == DType::kBFloat16 ? 0.04 : 2e-4;
}

class NewtonSchulzBatch : public ::testing::TestWithParam<Variant> {
 protected:
  [[nodiscard]] std::vector<float> run(
      const std::vector<float>& x, std::int64_t rows, std::int64_t cols) const {
    return orthogonalise(x, rows, cols, options());
  }

  [[nodiscard]] NewtonSchulzOptions options() const { return options_of(schedule_, GetParam()); }

  [[nodiscard]] double near() const { return tolerance(GetParam()); }

  Schedule schedule_{keller()};
};

INSTANTIATE_TEST_SUITE_P(
    Variants, NewtonSchulzBatch, ::testing::ValuesIn(variants()), [](const auto& variant) {
      std::string name = test::name_of(variant.param);
      std::replace(name.begin(), name.end(), ' ', '_');
      return name;
    });

TEST_P(NewtonSchulzBatch, EqualsALoopBitForBitWithAnyNumberOfThreads) {
  constexpr std::int64_t kShapes[][3] = {{7, 33, 70}, {2, 70, 33}, {5, 48, 48}, {1, 90, 200}};
  for (const auto& [count, rows, cols] : kShapes) {
    const auto size = static_cast<std::size_t>(rows * cols);
    const auto input = normal_values<float>(1, count * rows * cols);
    std::vector<float> looped;
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
      const auto first = input.begin() + static_cast<std::ptrdiff_t>(i * size);
      const auto one = run({first, first + static_cast<std::ptrdiff_t>(size)}, rows, cols);
      looped.insert(looped.end(), one.begin(), one.end());
    }
    NewtonSchulzWorkspace workspace;
    for (const int threads : {1, 2, 3, 8}) {
      NewtonSchulzOptions with_threads = options();
      with_threads.threads = threads;
      auto batch = input;
      newton_schulz_batch(batch, count, rows, cols, with_threads, workspace, {});
      EXPECT_EQ(batch, looped) << threads;
    }
  }
}

TEST_P(NewtonSchulzBatch, EveryMatrixHasItsOwnNorm) {
  auto x = normal_values<float>(2, 3 * 20 * 30);
  const std::vector<float> first(x.begin(), x.begin() + 600);
  for (std::size_t i = 600; i < x.size(); ++i) {
    x[i] *= i < 1200 ? 1e12F : 1e-12F;
  }
  NewtonSchulzWorkspace workspace;
  newton_schulz_batch(x, 3, 20, 30, options(), workspace, {});
  EXPECT_EQ(std::vector<float>(x.begin(), x.begin() + 600), run(first, 20, 30));
  for (std::size_t i = 0; i < 3; ++i) {
    double norm = 0;
    for (std::size_t j = 0; j < 600; ++j) {
      norm += std::pow(static_cast<double>(x[i * 600 + j]), 2);
    }
    EXPECT_NEAR(std::sqrt(norm / 20), 0.95, 0.15) << i;
  }
}

TEST_P(NewtonSchulzBatch, PowersOfTwoChangeNothing) {
  const auto x = normal_values<float>(3, 40 * 70);
  const auto expected = run(x, 40, 70);
  for (const double factor : {0x1p-66, 0x1p-30, 0x1p66}) {
    EXPECT_EQ(run(scaled(x, factor), 40, 70), expected) << factor;
  }
}

TEST_P(NewtonSchulzBatch, IsScaleInvariantFromTinyToHuge) {
  const auto x = normal_values<float>(3, 40 * 70);
  const auto expected = run(x, 40, 70);
  for (const double factor : {1e-30, 1e-20, 1e-10, 1e-7, 1e10, 1e20, 1e30}) {
    EXPECT_LT(distance(run(scaled(x, factor), 40, 70), expected), near()) << factor;
  }
}

TEST_P(NewtonSchulzBatch, IsOdd) {
  const auto x = normal_values<float>(4, 33 * 21);
  EXPECT_EQ(run(scaled(x, -1), 33, 21), scaled(run(x, 33, 21), -1));
}

TEST_P(NewtonSchulzBatch, CommutesWithTransposition) {
  const auto x = normal_values<float>(5, 37 * 71);
  EXPECT_LT(
      distance(run(transposed(x, 37, 71), 71, 37), transposed(run(x, 37, 71), 37, 71)), near());
}

TEST_P(NewtonSchulzBatch, CommutesWithPermutationsOfRows) {
  const auto x = normal_values<float>(6, 24 * 50);
  const auto reversed = [](const std::vector<float>& matrix) {
    std::vector<float> result;
    for (std::size_t i = 24; i-- > 0;) {
      result.insert(
          result.end(),
          matrix.begin() + static_cast<std::ptrdiff_t>(i * 50),
          matrix.begin() + static_cast<std::ptrdiff_t>(i * 50 + 50));
    }
    return result;
  };
  EXPECT_LT(distance(run(reversed(x), 24, 50), reversed(run(x, 24, 50))), near());
}

TEST_P(NewtonSchulzBatch, CommutesWithRotationsOfRows) {
  const auto x = normal_values<float>(7, 24 * 50);
  const auto q = test::orthonormal_rows(50, 24, 24);
  const auto rotated = [&](const std::vector<float>& matrix) {
    const auto from = cast<double>(matrix);
    test::Values to(from.size());
    gemm(GemmCall<double>{
        Transpose::kNo,
        Transpose::kNo,
        24,
        50,
        24,
        1.0,
        q.data(),
        24,
        from.data(),
        50,
        0.0,
        to.data(),
        50});
    return cast<float>(to);
  };
  EXPECT_LT(distance(run(rotated(x), 24, 50), rotated(run(x, 24, 50))), near());
}

TEST_P(NewtonSchulzBatch, ZeroRowsAndColumnsAreInert) {
  const auto x = normal_values<float>(8, 30 * 45);
  std::vector<float> padded(41 * 64, 0);
  for (std::size_t i = 0; i < 30; ++i) {
    std::copy_n(
        x.begin() + static_cast<std::ptrdiff_t>(i * 45),
        45,
        padded.begin() + static_cast<std::ptrdiff_t>(i * 64));
  }
  const auto expected = run(x, 30, 45);
  const auto got = run(padded, 41, 64);
  for (std::size_t i = 0; i < 41; ++i) {
    for (std::size_t j = 0; j < 64; ++j) {
      const bool inside = i < 30 && j < 45;
      EXPECT_NEAR(
          static_cast<double>(got[i * 64 + j]),
          inside ? static_cast<double>(expected[i * 45 + j]) : 0.0,
          inside ? near() : 1e-6);
    }
  }
}

TEST_P(NewtonSchulzBatch, OneRowAndOneColumnAreScaled) {
  const auto row = normal_values<float>(9, 50);
  double norm = 0;
  for (const float value : row) {
    norm += std::pow(static_cast<double>(value), 2);
  }
  const double factor = test::polynomial(keller(), 1) / std::sqrt(norm);
  const auto expected = scaled(row, factor);
  EXPECT_LT(distance(run(row, 1, 50), expected), near());
  EXPECT_LT(distance(run(row, 50, 1), expected), near());
}

TEST_P(NewtonSchulzBatch, AZeroMatrixStaysZeroAmongOthers) {
  auto x = normal_values<float>(10, 3 * 12 * 9);
  std::fill(x.begin() + 108, x.begin() + 216, 0.0F);
  const std::vector<float> last(x.begin() + 216, x.end());
  NewtonSchulzWorkspace workspace;
  std::vector<NewtonSchulzReport> reports(3);
  newton_schulz_batch(x, 3, 12, 9, options(), workspace, reports);
  EXPECT_TRUE(std::all_of(x.begin() + 108, x.begin() + 216, [](float v) { return v == 0; }));
  EXPECT_EQ(std::vector<float>(x.begin() + 216, x.end()), run(last, 12, 9));
  EXPECT_EQ(reports[1].input_norm, 0);
  EXPECT_FALSE(reports[1].nonfinite);
}

TEST_P(NewtonSchulzBatch, ANonfiniteElementMakesItsMatrixNanAndNoOther) {
  auto x = normal_values<float>(11, 3 * 12 * 9);
  x[110] = std::numeric_limits<float>::infinity();
  const std::vector<float> first(x.begin(), x.begin() + 108);
  NewtonSchulzWorkspace workspace;
  std::vector<NewtonSchulzReport> reports(3);
  newton_schulz_batch(x, 3, 12, 9, options(), workspace, reports);
  EXPECT_TRUE(reports[1].nonfinite);
  EXPECT_TRUE(std::all_of(x.begin() + 108, x.begin() + 216, [](float v) { return std::isnan(v); }));
  EXPECT_EQ(std::vector<float>(x.begin(), x.begin() + 108), run(first, 12, 9));
  EXPECT_FALSE(reports[0].nonfinite);
  EXPECT_FALSE(reports[2].nonfinite);
}

TEST_P(NewtonSchulzBatch, ReportsTheNormAndTheEffectiveRankOfTheInput) {
  const SpectralMatrix spectrum(40, 90, log_spectrum(40, 2));
  double fourth = 0;
  for (const double sigma : spectrum.sigma()) {
    fourth += std::pow(sigma, 4);
  }
  NewtonSchulzReport report;
  orthogonalise(scaled(spectrum.matrix(), 250), 40, 90, options(), &report);
  EXPECT_NEAR(report.input_norm, 250, 1e-4);
  EXPECT_NEAR(report.effective_rank * fourth, 1, 1e-3);
  EXPECT_FALSE(report.recomputed);
}

TEST_P(NewtonSchulzBatch, DiagnosticsChangeNoResult) {
  const auto x = normal_values<float>(12, 40 * 64);
  NewtonSchulzOptions quiet = options();
  quiet.diagnostics = false;
  NewtonSchulzReport report;
  EXPECT_EQ(orthogonalise(x, 40, 64, quiet, &report), run(x, 40, 64));
  EXPECT_EQ(report.effective_rank, 0);
  EXPECT_EQ(report.orthogonality_error, 0);
}

// Widths and heights that fit no register, no panel and no block.
TEST_P(NewtonSchulzBatch, OddShapesFollowTheExactPolynomial) {
  constexpr std::size_t kShapes[][2] = {
      {2, 3}, {15, 17}, {31, 33}, {33, 127}, {127, 33}, {129, 257}};
  for (const auto& [rows, cols] : kShapes) {
    const SpectralMatrix spectrum(rows, cols, log_spectrum(std::min(rows, cols), 1.5));
    const auto x =
        run(spectrum.matrix(), static_cast<std::int64_t>(rows), static_cast<std::int64_t>(cols));
    EXPECT_LT(test::relative_error(x, spectrum.result(keller())), near()) << rows << " x " << cols;
  }
}

TEST_P(NewtonSchulzBatch, AModelsLayerStaysFinite) {
  const auto x = run(normal_values<float>(13, 256 * 704), 256, 704);
  EXPECT_TRUE(std::all_of(x.begin(), x.end(), [](float v) { return std::isfinite(v); }));
}

TEST_P(NewtonSchulzBatch, NoStepsOnlyNormalise) {
  schedule_.clear();
  NewtonSchulzReport report;
  const auto x = orthogonalise({3, 4}, 1, 2, options(), &report);
  EXPECT_EQ(x, (std::vector<float>{0.6F, 0.8F}));
  EXPECT_NEAR(report.effective_rank, 1, 1e-6);
}

TEST(NewtonSchulzReports, TheOrthogonalityErrorIsThatOfTheResult) {
  const Schedule schedule = keller();
  const SpectralMatrix spectrum(96, 150, log_spectrum(96, 1.5));
  NewtonSchulzReport report;
  orthogonalise(spectrum.matrix(), 96, 150, {.coefficients = schedule}, &report);
  double squares = 0;
  for (const double sigma : spectrum.sigma()) {
    squares += std::pow(std::pow(test::polynomial(schedule, sigma), 2) - 1, 2);
  }
  const double exact = std::sqrt(squares / 96);
  // Four probes over 96 directions: a standard deviation of about 8 % of the square.
  EXPECT_NEAR(report.orthogonality_error / exact, 1, 0.15);
}

TEST(NewtonSchulzReports, AnEmptyBatchIsLegal) {
  const Schedule schedule = keller();
  NewtonSchulzWorkspace workspace;
  std::vector<NewtonSchulzReport> reports(2, {.input_norm = 5});
  newton_schulz_batch({}, 2, 0, 7, {.coefficients = schedule}, workspace, reports);
  EXPECT_EQ(reports[1].input_norm, 0);
  newton_schulz_batch({}, 0, 3, 7, {.coefficients = schedule}, workspace, {});
}

TEST(NewtonSchulzReports, SizesThatDoNotFitAreRefusedBeforeAnythingIsTouched) {
  const Schedule schedule = keller();
  NewtonSchulzWorkspace workspace;
  auto x = normal_values<float>(14, 24);
  const auto before = x;
  std::vector<NewtonSchulzReport> reports(3);
  const NewtonSchulzOptions options{.coefficients = schedule};
  EXPECT_THROW(newton_schulz_batch(x, 2, 3, 5, options, workspace, {}), CheckFailure);
  EXPECT_THROW(newton_schulz_batch(x, 2, 3, 4, options, workspace, reports), CheckFailure);
  EXPECT_EQ(x, before);
}

TEST(NewtonSchulzReports, AWorkspaceServesOtherShapesSchedulesAndThreads) {
  const Schedule five = keller();
  const Schedule two = keller(2);
  NewtonSchulzWorkspace workspace;
  const auto large = normal_values<float>(15, 60 * 100);
  const auto small = normal_values<float>(16, 7 * 5);
  for (int round = 0; round < 2; ++round) {
    for (const Schedule* schedule : {&five, &two}) {
      for (const int threads : {2, 1}) {
        const NewtonSchulzOptions options{.coefficients = *schedule, .threads = threads};
        auto x = large;
        newton_schulz_batch(x, 1, 60, 100, options, workspace, {});
        EXPECT_EQ(x, orthogonalise(large, 60, 100, {.coefficients = *schedule}));
        x = small;
        newton_schulz_batch(x, 1, 7, 5, options, workspace, {});
        EXPECT_EQ(x, orthogonalise(small, 7, 5, {.coefficients = *schedule}));
      }
    }
  }
  NewtonSchulzWorkspace moved = std::move(workspace);
  auto x = small;
  newton_schulz_batch(x, 1, 7, 5, {.coefficients = five}, moved, {});
  EXPECT_EQ(x, orthogonalise(small, 7, 5, {.coefficients = five}));
}

}  // namespace
}  // namespace muster::kernels
