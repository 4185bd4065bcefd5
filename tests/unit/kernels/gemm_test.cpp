// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/kernels/numbers.h"

#include <muster/kernels/gemm.h>

#include <limits>

namespace muster::kernels {
namespace {

using test::cast;
using test::distance;
using test::dot;
using test::expect_gradient;
using test::normal_values;
using test::Values;

// C = alpha op(A) op(B) + beta C by the definition.
Values naive_gemm(
    bool ta,
    bool tb,
    std::size_t m,
    std::size_t n,
    std::size_t k,
    double alpha,
    const Values& a,
    const Values& b,
    double beta,
    Values c) {
  for (std::size_t i = 0; i < m; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      double sum = 0;
      for (std::size_t l = 0; l < k; ++l) {
        sum += (ta ? a[l * m + i] : a[i * k + l]) * (tb ? b[j * k + l] : b[l * n + j]);
      }
      c[i * n + j] = alpha * sum + beta * c[i * n + j];
    }
  }
  return c;
}

TEST(Gemm, AgreesWithTheDefinitionForAllTransposes) {
  constexpr std::int64_t kM = 17;
  constexpr std::int64_t kN = 9;
  constexpr std::int64_t kK = 33;
  const Values a = normal_values(1, kM * kK);
  const Values b = normal_values(2, kK * kN);
  const Values c = normal_values(3, kM * kN);
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      Values got = c;
      gemm(GemmCall<double>{
          Transpose{ta},
          Transpose{tb},
          kM,
          kN,
          kK,
          0.5,
          a.data(),
          ta ? kM : kK,
          b.data(),
          tb ? kK : kN,
          2.0,
          got.data(),
          kN});
      EXPECT_LT(distance(got, naive_gemm(ta, tb, kM, kN, kK, 0.5, a, b, 2.0, c)), 1e-14);
      auto narrow = cast<float>(c);
      gemm(GemmCall<float>{
          Transpose{ta},
          Transpose{tb},
          kM,
          kN,
          kK,
          0.5F,
          cast<float>(a).data(),
          ta ? kM : kK,
          cast<float>(b).data(),
          tb ? kK : kN,
          2.0F,
          narrow.data(),
          kN});
      EXPECT_LT(distance(narrow, got), 1e-6);
    }
  }
}

TEST(Gemm, BetaZeroOverwritesNan) {
  for (const std::int64_t size : {1, 8, 64, 200}) {
    const auto values = cast<float>(normal_values(4, size * size));
    std::vector<float> c(values.size(), std::numeric_limits<float>::quiet_NaN());
    gemm(GemmCall<float>{
        Transpose::kNo,
        Transpose::kNo,
        size,
        size,
        size,
        1.0F,
        values.data(),
        size,
        values.data(),
        size,
        0.0F,
        c.data(),
        size});
    EXPECT_TRUE(std::all_of(c.begin(), c.end(), [](float x) { return std::isfinite(x); })) << size;
  }
}

TEST(Gemm, EmptyInnerDimensionOnlyScales) {
  Values c{1, 2, 3, 4};
  gemm(GemmCall<double>{.m = 2, .n = 2, .ldb = 2, .beta = 0.5, .c = c.data(), .ldc = 2});
  EXPECT_EQ(c, (Values{0.5, 1, 1.5, 2}));
  gemm(GemmCall<double>{.m = 2, .n = 2, .ldb = 2, .c = c.data(), .ldc = 2});
  EXPECT_EQ(c, Values(4, 0));
}

TEST(Gemm, NoRowsTouchNothing) {
  Values c{7};
  gemm(
      GemmCall<double>{.n = 1, .k = 3, .lda = 3, .b = c.data(), .ldb = 1, .c = c.data(), .ldc = 1});
  EXPECT_EQ(c[0], 7);
}

TEST(Linear, GradientsAgreeWithDifferences) {
  constexpr std::int64_t kTokens = 3;
  constexpr std::int64_t kIn = 5;
  constexpr std::int64_t kOut = 4;
  Values x = normal_values(5, kTokens * kIn);
  Values weight = normal_values(6, kOut * kIn);
  const Values dy = normal_values(7, kTokens * kOut);
  const auto loss = [&] {
    Values y(dy.size());
    linear_forward(x.data(), weight.data(), y.data(), kTokens, kIn, kOut);
    return dot(y, dy);
  };
  Values dx(x.size(), 99);
  Values dweight(weight.size(), 0);
  linear_backward(
      x.data(), weight.data(), dy.data(), dx.data(), false, dweight.data(), kTokens, kIn, kOut);
  expect_gradient(x, dx, loss);
  expect_gradient(weight, dweight, loss);
}

TEST(Linear, AddsToBothGradientsWhenAsked) {
  const Values x{1, 2};
  const Values weight{3, 4};
  const Values dy{5};
  Values dx{10, 20};
  Values dweight{100, 200};
  linear_backward(x.data(), weight.data(), dy.data(), dx.data(), true, dweight.data(), 1, 2, 1);
  EXPECT_EQ(dx, (Values{25, 40}));
  EXPECT_EQ(dweight, (Values{105, 210}));
  linear_backward<double>(
      x.data(), weight.data(), dy.data(), nullptr, false, dweight.data(), 1, 2, 1);
  EXPECT_EQ(dweight, (Values{110, 220}));
}

}  // namespace
}  // namespace muster::kernels
