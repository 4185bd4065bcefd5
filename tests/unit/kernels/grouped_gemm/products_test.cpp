// SPDX-License-Identifier: Apache-2.0
// Values of grouped products against sums in double.
#include "tests/unit/kernels/grouped_gemm/case.h"

#include <muster/common/text.h>

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

namespace muster::kernels {
namespace {

using test::Layout;
using test::Sizes;
using test::Tensor;
using test::uniform_values;

constexpr DType kProductTypes[] = {DType::kFloat32, DType::kBFloat16};

struct Case {
  Layout layout;
  std::int64_t in;
  std::int64_t out;
  DType type;
  int threads{1};

  [[nodiscard]] std::int64_t groups() const { return std::ssize(layout.rows); }

  [[nodiscard]] GroupedProblem problem() const { return {layout.groups(), in, out, type, threads}; }
};

struct ProductInputs {
  explicit ProductInputs(const Case& c)
      : x(c.type, uniform_values(1, c.layout.total * c.in)),
        dy(c.type, uniform_values(2, c.layout.total * c.out)),
        weights(c.type, uniform_values(3, c.groups() * c.in * c.out)) {}

  Tensor x, dy, weights;
};

// A sum with the sum of the magnitudes of its terms, which bounds what rounding does to it.
struct Sum {
  double value{0};
  double terms{0};

  void add(double term) {
    value += term;
    terms += std::abs(term);
  }
};

// count + 1 roundings of fp32, and, in bf16, one of the result.
void expect_sum(DType type, double got, const Sum& sum, std::int64_t count, const char* what) {
  const double rounding = type == DType::kBFloat16 ? 0x1p-8 * std::abs(sum.value) : 0;
  const double bound = 0x1p-24 * static_cast<double>(count + 1) * sum.terms + rounding;
  ASSERT_NEAR(got, sum.value, bound) << what;
}

// Rows of groups are those of `sum`, zeros behind them, everything else untouched (7).
void expect_rows(
    const Case& c,
    const Tensor& got,
    std::int64_t columns,
    std::int64_t depth,
    const std::function<Sum(std::int64_t, std::int64_t, std::int64_t)>& sum) {
  std::int64_t row = 0;
  const auto untouched = [&](std::int64_t end) {
    for (; row < end; ++row) {
      for (std::int64_t j = 0; j < columns; ++j) {
        ASSERT_EQ(got.at(row * columns + j), 7) << "row " << row;
      }
    }
  };
  for (std::int64_t g = 0; g < c.groups(); ++g) {
    const auto group = static_cast<std::size_t>(g);
    untouched(c.layout.begins[group]);
    for (; row < c.layout.ends[group]; ++row) {
      const bool padding = row >= c.layout.begins[group] + c.layout.rows[group];
      for (std::int64_t j = 0; j < columns; ++j) {
        const double value = got.at(row * columns + j);
        if (padding) {
          ASSERT_EQ(value, 0) << "padding row " << row;
        } else {
          expect_sum(c.type, value, sum(g, row, j), depth, "row");
        }
      }
    }
  }
  untouched(c.layout.total);
}

void expect_products(const Case& c) {
  const ProductInputs in(c);
  Tensor y(c.type, std::vector<double>(static_cast<std::size_t>(c.layout.total * c.out), 7));
  grouped_forward(c.problem(), in.x.data(), in.weights.data(), y.data());
  expect_rows(c, y, c.out, c.in, [&](std::int64_t g, std::int64_t row, std::int64_t j) {
    Sum sum;
    for (std::int64_t k = 0; k < c.in; ++k) {
      sum.add(in.x.at(row * c.in + k) * in.weights.at((g * c.out + j) * c.in + k));
    }
    return sum;
  });
  Tensor dx(c.type, std::vector<double>(static_cast<std::size_t>(c.layout.total * c.in), 7));
  grouped_dgrad(c.problem(), in.dy.data(), in.weights.data(), dx.data(), false);
  expect_rows(c, dx, c.in, c.out, [&](std::int64_t g, std::int64_t row, std::int64_t j) {
    Sum sum;
    for (std::int64_t k = 0; k < c.out; ++k) {
      sum.add(in.dy.at(row * c.out + k) * in.weights.at((g * c.out + k) * c.in + j));
    }
    return sum;
  });
  std::vector<float> gradients(static_cast<std::size_t>(c.groups() * c.in * c.out), 0.5F);
  grouped_wgrad(c.problem(), in.x.data(), in.dy.data(), gradients.data());
  for (std::int64_t i = 0; i < std::ssize(gradients); ++i) {
    const std::int64_t g = i / (c.in * c.out);
    const std::int64_t o = i / c.in % c.out;
    const std::int64_t k = i % c.in;
    const auto group = static_cast<std::size_t>(g);
    Sum sum;
    sum.add(0.5);
    for (std::int64_t n = 0; n < c.layout.rows[group]; ++n) {
      const std::int64_t row = c.layout.begins[group] + n;
      sum.add(in.dy.at(row * c.out + o) * in.x.at(row * c.in + k));
    }
    const auto got = static_cast<double>(gradients[static_cast<std::size_t>(i)]);
    expect_sum(DType::kFloat32, got, sum, c.layout.rows[group] + 1, "gradient");
  }
}

TEST(GroupedProducts, EqualTheSumsInDoubleForEverySizeOfGroup) {
  for (const DType type : kProductTypes) {
    for (const auto& [in, out] : {std::pair{1, 1}, {3, 5}, {17, 33}, {40, 64}, {65, 31}}) {
      SCOPED_TRACE(concat(in, " x ", out, " ", type));
      expect_products({Layout({0, 1, 5, 0, 14, 33, 2}, 4, 3), in, out, type});
    }
  }
}

TEST(GroupedProducts, EqualTheSumsInDoubleAcrossBlocksOfTheDepth) {
  for (const DType type : kProductTypes) {
    SCOPED_TRACE(to_string(type));
    expect_products({Layout({3, 1}, 1, 0), 1030, 35, type});  // forward
    expect_products({Layout({3, 1}, 1, 0), 35, 1030, type});  // dgrad
    expect_products({Layout({2100, 1}, 1, 0), 5, 34, type});  // wgrad, blocks of rows
  }
}

// Skewed as routers skew them: most groups empty or tiny, now and then one with most of the rows.
TEST(GroupedProducts, EqualTheSumsInDoubleForRandomSkewedGroups) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Random random(seed);
    Sizes rows(1 + random.below(12));
    for (std::int64_t& count : rows) {
      count = static_cast<std::int64_t>(random.below(3) == 0 ? random.below(20) : random.below(3));
    }
    rows[random.below(rows.size())] += static_cast<std::int64_t>(random.below(120));
    const auto multiple = static_cast<std::int64_t>(1 + random.below(16));
    const auto gap = static_cast<std::int64_t>(random.below(3));
    const auto in = static_cast<std::int64_t>(1 + random.below(70));
    const auto out = static_cast<std::int64_t>(1 + random.below(70));
    const DType type = kProductTypes[random.below(2)];
    const int threads = static_cast<int>(1 + random.below(3));
    SCOPED_TRACE("seed " + std::to_string(seed));
    expect_products({Layout(rows, multiple, gap), in, out, type, threads});
    if (testing::Test::HasFatalFailure()) {
      return;
    }
  }
}

}  // namespace
}  // namespace muster::kernels
