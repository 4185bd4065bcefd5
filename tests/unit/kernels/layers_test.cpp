// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/kernels/numbers.h"

#include <muster/kernels/layers.h>

#include <limits>

namespace muster::kernels {
namespace {

using test::cast;
using test::distance;
using test::dot;
using test::expect_gradient;
using test::normal_values;
using test::Values;

// Around one pack of 16 floats or 8 doubles, and more than one.
constexpr std::int64_t kDims[] = {1, 7, 8, 9, 17, 40};

TEST(RmsNorm, GradientsAgreeWithDifferences) {
  for (const std::int64_t dim : kDims) {
    constexpr std::int64_t kTokens = 3;
    Values x = normal_values(1, kTokens * dim);
    Values weight = normal_values(2, dim);
    const Values dy = normal_values(3, kTokens * dim);
    Values inverse(kTokens);
    const auto loss = [&] {
      Values y(x.size());
      rms_norm_forward(x.data(), weight.data(), y.data(), inverse.data(), kTokens, dim, 1e-2);
      return dot(y, dy);
    };
    static_cast<void>(loss());
    Values dx(x.size(), 99);
    Values dweight(weight.size(), 0);
    rms_norm_backward(
        x.data(),
        weight.data(),
        inverse.data(),
        dy.data(),
        dx.data(),
        dweight.data(),
        kTokens,
        dim);
    expect_gradient(x, dx, loss);
    expect_gradient(weight, dweight, loss);
  }
}

TEST(RmsNorm, FloatAgreesWithDoubleAndDefinition) {
  for (const std::int64_t dim : kDims) {
    const auto x = cast<float>(normal_values(4, dim));
    const auto weight = cast<float>(normal_values(5, dim));
    std::vector<float> y(x.size());
    float inverse = 0;
    rms_norm_forward(x.data(), weight.data(), y.data(), &inverse, 1, dim, 1e-5);
    const Values wide = cast<double>(x);
    const double rms = std::sqrt(dot(wide, wide) / static_cast<double>(dim) + 1e-5);
    for (std::size_t i = 0; i < y.size(); ++i) {
      const double expected = wide[i] / rms * static_cast<double>(weight[i]);
      EXPECT_NEAR(static_cast<double>(y[i]), expected, 1e-6 * (1 + std::abs(expected)));
    }
  }
}

TEST(Rope, RotatesPairsByPositionTimesFrequency) {
  constexpr std::int64_t kSequence = 5;
  constexpr std::int64_t kDim = 6;
  constexpr double kBase = 100;
  Values x = normal_values(6, 2 * kSequence * kDim);
  const Values before = x;
  rope(x.data(), 2 * kSequence, 1, kDim, kSequence, kBase, false);
  for (std::size_t t = 0; t < 2 * kSequence; ++t) {
    for (std::size_t i = 0; i < kDim / 2; ++i) {
      const double angle = static_cast<double>(t % kSequence) *
                           std::pow(kBase, -2.0 * static_cast<double>(i) / kDim);
      const double a = before[t * kDim + i];
      const double b = before[t * kDim + kDim / 2 + i];
      EXPECT_NEAR(x[t * kDim + i], a * std::cos(angle) - b * std::sin(angle), 1e-14);
      EXPECT_NEAR(x[t * kDim + kDim / 2 + i], b * std::cos(angle) + a * std::sin(angle), 1e-14);
    }
  }
}

TEST(Rope, InverseIsTheAdjoint) {
  for (const std::int64_t head_dim : {2, 8, 18, 32, 38}) {
    const std::int64_t count = 7 * 3 * head_dim;
    Values x = normal_values(7, count);
    Values y = normal_values(8, count);
    const Values x0 = x;
    const Values y0 = y;
    rope(x.data(), 7, 3, head_dim, 4, 10000, false);
    rope(y.data(), 7, 3, head_dim, 4, 10000, true);
    EXPECT_NEAR(dot(x, y0), dot(x0, y), 1e-11);
    rope(x.data(), 7, 3, head_dim, 4, 10000, true);
    EXPECT_LT(distance(x, x0), 1e-14);
  }
}

TEST(Swiglu, GradientsAgreeWithDifferences) {
  Values gate = normal_values(9, 21, 2);
  Values up = normal_values(10, 21);
  const Values dy = normal_values(11, 21);
  const auto loss = [&] {
    Values y(21);
    swiglu_forward(gate.data(), up.data(), y.data(), 21);
    return dot(y, dy);
  };
  Values dgate(21);
  Values dup(21);
  swiglu_backward(gate.data(), up.data(), dy.data(), dgate.data(), dup.data(), 21);
  expect_gradient(gate, dgate, loss);
  expect_gradient(up, dup, loss);
}

TEST(Swiglu, FloatKeepsThreeUlpOverTheWholeRange) {
  std::vector<float> gate;
  for (float x = -100; x <= 100; x += 0.0371F) {
    gate.push_back(x);
  }
  const std::vector<float> up(gate.size(), 1);
  std::vector<float> y(gate.size());
  swiglu_forward(gate.data(), up.data(), y.data(), std::ssize(gate));
  for (std::size_t i = 0; i < gate.size(); ++i) {
    const auto x = static_cast<double>(gate[i]);
    const double expected = x / (1 + std::exp(-x));
    // exp, one addition, one division, one product; below exp's range the result is -0.
    ASSERT_NEAR(static_cast<double>(y[i]), expected, 4e-7 * std::abs(expected) + 1e-36) << x;
  }
}

TEST(Swiglu, NanComesOutAsNan) {
  const float gate[] = {std::numeric_limits<float>::quiet_NaN(), 1};
  const float up[] = {1, 1};
  float y[2] = {};
  swiglu_forward(gate, up, y, 2);
  EXPECT_TRUE(std::isnan(y[0]));
  EXPECT_NEAR(y[1], 0.7310586F, 1e-6F);
}

TEST(Embedding, BackwardIsTheAdjointAndAddsRepeatedTokens) {
  const std::vector<std::int32_t> tokens{2, 0, 2};
  const Values table = normal_values(12, 4 * 3);
  const Values dy = normal_values(13, 3 * 3);
  Values y(9);
  embedding_forward(tokens.data(), table.data(), y.data(), 3, 3);
  Values dtable(12, 0);
  embedding_backward(tokens.data(), dy.data(), dtable.data(), 3, 3);
  EXPECT_NEAR(dot(y, dy), dot(table, dtable), 1e-14);
  EXPECT_DOUBLE_EQ(dtable[6], dy[0] + dy[6]);
  EXPECT_EQ(dtable[3], 0);
}

TEST(CrossEntropy, GradientAgreesWithDifferences) {
  for (const std::int64_t vocab : kDims) {
    Values logits = normal_values(14, 3 * vocab, 3);
    const std::vector<std::int32_t> targets{0, -1, static_cast<std::int32_t>(vocab - 1)};
    Values dlogits(logits.size(), 99);
    cross_entropy(logits.data(), targets.data(), dlogits.data(), 3, vocab);
    expect_gradient(logits, dlogits, [&] {
      return cross_entropy<double>(logits.data(), targets.data(), nullptr, 3, vocab);
    });
  }
}

TEST(CrossEntropy, LeavesOutNegativeTargets) {
  Values logits{1, 2, 3, 4};
  const std::vector<std::int32_t> targets{-1, -100};
  Values dlogits(4, 99);
  EXPECT_EQ(cross_entropy(logits.data(), targets.data(), dlogits.data(), 2, 2), 0);
  EXPECT_EQ(dlogits, Values(4, 0));
}

TEST(CrossEntropy, UniformLogitsCostLogVocab) {
  const std::vector<float> logits(256, 5.0F);
  const std::int32_t target = 17;
  EXPECT_NEAR(cross_entropy<float>(logits.data(), &target, nullptr, 1, 256), std::log(256.0), 1e-6);
}

TEST(CrossEntropy, WritesOverItsInput) {
  const Values logits = normal_values(15, 2 * 33);
  const std::vector<std::int32_t> targets{4, 30};
  Values apart(logits.size());
  Values aliased = logits;
  const double loss = cross_entropy(logits.data(), targets.data(), apart.data(), 2, 33);
  EXPECT_EQ(cross_entropy(aliased.data(), targets.data(), aliased.data(), 2, 33), loss);
  EXPECT_EQ(aliased, apart);
}

TEST(CrossEntropy, HugeLogitsStayFiniteAndNanDoesNot) {
  std::vector<float> logits{1e30F, -1e30F, 0};
  const std::int32_t target = 0;
  EXPECT_EQ(cross_entropy<float>(logits.data(), &target, nullptr, 1, 3), 0);
  logits[2] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(cross_entropy<float>(logits.data(), &target, nullptr, 1, 3)));
}

TEST(Layers, AcceptEmptyInputs) {
  rms_norm_forward<float>(nullptr, nullptr, nullptr, nullptr, 0, 8, 1e-6);
  rms_norm_backward<float>(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, 0, 8);
  rope<float>(nullptr, 0, 2, 8, 4, 10000, false);
  swiglu_forward<float>(nullptr, nullptr, nullptr, 0);
  swiglu_backward<float>(nullptr, nullptr, nullptr, nullptr, nullptr, 0);
  embedding_forward<float>(nullptr, nullptr, nullptr, 0, 4);
  embedding_backward<float>(nullptr, nullptr, nullptr, 0, 4);
  add_in_place<float>(nullptr, nullptr, 0);
  EXPECT_EQ(cross_entropy<float>(nullptr, nullptr, nullptr, 0, 4), 0);
}

TEST(AddInPlace, ResultOfAnElementDoesNotDependOnItsPlace) {
  const auto x = cast<float>(normal_values(16, 64));
  const auto y = cast<float>(normal_values(17, 64));
  std::vector<float> whole = y;
  add_in_place(whole.data(), x.data(), 64);
  std::vector<float> parts = y;
  add_in_place(parts.data(), x.data(), 5);
  add_in_place(parts.data() + 5, x.data() + 5, 59);
  EXPECT_EQ(whole, parts);
}

}  // namespace
}  // namespace muster::kernels
