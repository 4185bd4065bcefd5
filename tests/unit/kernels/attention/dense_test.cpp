// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/kernels/numbers.h"

#include <muster/kernels/attention.h>

#include <limits>
#include <string>

namespace muster::kernels {
namespace {

using test::cast;
using test::distance;
using test::dot;
using test::expect_gradient;
using test::normal_values;
using test::Values;

template <typename T>
struct Tensors {
  Tensors(const AttentionShape& shape, std::uint64_t seed, double scale = 1)
      : q(cast<T>(normal_values(seed, size(shape), scale))),
        k(cast<T>(normal_values(seed + 1, size(shape), scale))),
        v(cast<T>(normal_values(seed + 2, size(shape)))),
        out(q.size()),
        lse(static_cast<std::size_t>(shape.batch * shape.heads * shape.sequence)),
        max_logits(static_cast<std::size_t>(shape.heads)) {}

  static std::int64_t size(const AttentionShape& shape) {
    return shape.batch * shape.sequence * shape.heads * shape.head_dim;
  }

  void forward(const AttentionShape& shape) {
    attention_forward(
        shape, q.data(), k.data(), v.data(), out.data(), lse.data(), max_logits.data());
  }

  std::vector<T> q;
  std::vector<T> k;
  std::vector<T> v;
  std::vector<T> out;
  std::vector<T> lse;
  std::vector<float> max_logits;
};

struct Reference {
  Values out;
  Values lse;
  Values max_logits;
};

// Softmax over the whole row, in double, with [N, N] work and no blocks.
template <typename T>
Reference naive(const AttentionShape& s, const Tensors<T>& t) {
  Reference r{
      Values(t.out.size()),
      Values(t.lse.size()),
      Values(t.max_logits.size(), -std::numeric_limits<double>::infinity())};
  const auto at = [&](std::int64_t b, std::int64_t i, std::int64_t h, std::int64_t d) {
    return static_cast<std::size_t>(((b * s.sequence + i) * s.heads + h) * s.head_dim + d);
  };
  for (std::int64_t row = 0; row < s.batch * s.heads * s.sequence; ++row) {
    const std::int64_t i = row % s.sequence;
    const std::int64_t h = row / s.sequence % s.heads;
    const std::int64_t b = row / s.sequence / s.heads;
    Values weights;
    for (std::int64_t j = 0; j <= i; ++j) {
      double logit = 0;
      for (std::int64_t d = 0; d < s.head_dim; ++d) {
        logit +=
            static_cast<double>(t.q[at(b, i, h, d)]) * static_cast<double>(t.k[at(b, j, h, d)]);
      }
      weights.push_back(s.scale * logit);
    }
    const double largest = *std::max_element(weights.begin(), weights.end());
    double total = 0;
    for (double& weight : weights) {
      weight = std::exp(weight - largest);
      total += weight;
    }
    for (std::int64_t j = 0; j <= i; ++j) {
      for (std::int64_t d = 0; d < s.head_dim; ++d) {
        r.out[at(b, i, h, d)] +=
            weights[static_cast<std::size_t>(j)] / total * static_cast<double>(t.v[at(b, j, h, d)]);
      }
    }
    r.lse[static_cast<std::size_t>(row)] = largest + std::log(total);
    double& head_max = r.max_logits[static_cast<std::size_t>(h)];
    head_max = std::max(head_max, largest);
  }
  return r;
}

AttentionShape shape_of(
    std::int64_t batch, std::int64_t sequence, std::int64_t heads, std::int64_t head_dim) {
  return {batch, sequence, heads, head_dim, 1 / std::sqrt(static_cast<double>(head_dim))};
}

// One token, below, at and above the tile of 64, several tiles; head_dim odd, below and above a
// pack.
const AttentionShape kShapes[] = {
    shape_of(1, 1, 1, 4),
    shape_of(2, 5, 3, 7),
    shape_of(1, 16, 1, 16),
    shape_of(1, 63, 2, 8),
    shape_of(2, 64, 1, 32),
    shape_of(1, 65, 2, 32),
    shape_of(1, 130, 2, 5),
    shape_of(1, 200, 1, 33)};

std::string name(const AttentionShape& shape) {
  return "batch " + std::to_string(shape.batch) + " sequence " + std::to_string(shape.sequence) +
         " heads " + std::to_string(shape.heads) + " head_dim " + std::to_string(shape.head_dim);
}

TEST(Attention, DoubleAgreesWithTheWholeSoftmax) {
  for (const AttentionShape& shape : kShapes) {
    Tensors<double> t(shape, 1);
    t.forward(shape);
    const Reference r = naive(shape, t);
    EXPECT_LT(distance(t.out, r.out), 1e-14) << name(shape);
    EXPECT_LT(distance(t.lse, r.lse), 1e-14) << name(shape);
    EXPECT_LT(distance(t.max_logits, r.max_logits), 1e-7) << name(shape);  // rounded to float
  }
}

TEST(Attention, FloatAgreesWithDouble) {
  for (const AttentionShape& shape : kShapes) {
    Tensors<float> t(shape, 2);
    t.forward(shape);
    const Reference r = naive(shape, t);
    // Dot products of up to 33 terms near 1, exp to 2e-7, sums of up to 200 weights.
    EXPECT_LT(distance(t.out, r.out), 2e-6) << name(shape);
    EXPECT_LT(distance(t.lse, r.lse), 1e-6) << name(shape);
    EXPECT_LT(distance(t.max_logits, r.max_logits), 1e-6) << name(shape);
  }
}

TEST(Attention, MaxLogitIsExactWhereDotProductsAre) {
  // Small integers: every dot product is exact in float in whatever order, so not one bit may
  // differ.
  const AttentionShape shape{2, 150, 3, 16, 0.25};
  Tensors<float> t(shape, 3);
  const auto round = [](float x) { return std::nearbyint(4 * x); };
  std::transform(t.q.begin(), t.q.end(), t.q.begin(), round);
  std::transform(t.k.begin(), t.k.end(), t.k.begin(), round);
  t.forward(shape);
  EXPECT_EQ(cast<double>(t.max_logits), naive(shape, t).max_logits);
}

TEST(Attention, MaxLogitIsSignedAndIgnoresFutureKeys) {
  const AttentionShape shape{1, 2, 1, 1, 1};
  Tensors<float> t(shape, 4);
  t.q = {2, 1};
  t.k = {-1, -3};  // visible logits: -2, then -1 and -3
  t.forward(shape);
  EXPECT_EQ(t.max_logits[0], -1);
  t.k = {-1, 5};  // query 0 must not see 2 * 5
  t.forward(shape);
  EXPECT_EQ(t.max_logits[0], 5);
}

TEST(Attention, GradientsAgreeWithDifferences) {
  for (const AttentionShape& shape :
       {shape_of(1, 1, 1, 3), shape_of(2, 6, 2, 5), shape_of(1, 20, 1, 9), shape_of(1, 67, 1, 2)}) {
    Tensors<double> t(shape, 5);
    const Values dout = normal_values(8, std::ssize(t.out));
    const auto loss = [&] {
      t.forward(shape);
      return dot(t.out, dout);
    };
    static_cast<void>(loss());
    Values dq(t.q.size(), 99);
    Values dk(t.q.size(), 99);
    Values dv(t.q.size(), 99);
    attention_backward(
        shape,
        t.q.data(),
        t.k.data(),
        t.v.data(),
        {t.out.data(), t.lse.data(), dout.data(), dq.data(), dk.data(), dv.data()});
    SCOPED_TRACE(name(shape));
    expect_gradient(t.q, dq, loss);
    expect_gradient(t.k, dk, loss);
    expect_gradient(t.v, dv, loss);
  }
}

TEST(Attention, FloatGradientsAgreeWithDouble) {
  for (const AttentionShape& shape : kShapes) {
    Tensors<float> t(shape, 9);
    Tensors<double> wide(shape, 9);
    wide.q = cast<double>(t.q);
    wide.k = cast<double>(t.k);
    wide.v = cast<double>(t.v);
    const auto dout = cast<float>(normal_values(12, std::ssize(t.out)));
    const auto backward = [&](auto& from, const auto& upstream) {
      using T = typename std::decay_t<decltype(from.q)>::value_type;
      std::vector<T> gradients(3 * from.q.size());
      T* dq = gradients.data();
      from.forward(shape);
      attention_backward(
          shape,
          from.q.data(),
          from.k.data(),
          from.v.data(),
          {from.out.data(),
           from.lse.data(),
           upstream.data(),
           dq,
           dq + from.q.size(),
           dq + 2 * from.q.size()});
      return gradients;
    };
    EXPECT_LT(distance(backward(t, dout), backward(wide, cast<double>(dout))), 3e-6) << name(shape);
  }
}

TEST(Attention, LargeLogitsDoNotOverflow) {
  const AttentionShape shape = shape_of(1, 100, 1, 32);
  Tensors<float> t(shape, 13, 40);
  t.forward(shape);
  const Reference r = naive(shape, t);
  EXPECT_GT(r.max_logits[0], 1000);
  // Logits near 5000 carry an error of 5000 * 2^-23 into the exponent.
  EXPECT_LT(distance(t.out, r.out), 5e-3);
  EXPECT_LT(distance(t.lse, r.lse), 1e-6);
}

TEST(Attention, NanReachesMaxLogitAndLaterTokensOnly) {
  constexpr std::int64_t kPoisoned = 70;
  for (const std::int64_t sequence : {75, 140}) {
    const AttentionShape shape = shape_of(1, sequence, 2, 16);
    for (const int which : {0, 1, 2}) {
      Tensors<float> t(shape, 14);
      auto& tensor = which == 0 ? t.q : which == 1 ? t.k : t.v;
      tensor[static_cast<std::size_t>(kPoisoned * 32 + 3)] =
          std::numeric_limits<float>::quiet_NaN();  // head 0
      t.forward(shape);
      EXPECT_EQ(std::isnan(t.max_logits[0]), which != 2);
      EXPECT_FALSE(std::isnan(t.max_logits[1]));
      for (std::int64_t i = 0; i < sequence; ++i) {
        const bool poisoned = which == 0 ? i == kPoisoned : i >= kPoisoned;
        const auto row = static_cast<std::size_t>(i * 32);
        EXPECT_EQ(std::isnan(t.out[row + 3]), poisoned) << which << " token " << i;
        EXPECT_FALSE(std::isnan(t.out[row + 16])) << "the other head";
      }
    }
  }
}

TEST(Attention, InfiniteLogitComesOutAsInfinity) {
  const AttentionShape shape = shape_of(1, 20, 1, 4);
  Tensors<float> t(shape, 15);
  for (std::size_t d = 0; d < 4; ++d) {
    t.q[10 * 4 + d] = 1e30F;
    t.k[5 * 4 + d] = 1e30F;
  }
  t.forward(shape);
  EXPECT_EQ(t.max_logits[0], std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(t.out[40]));
  EXPECT_FALSE(std::isnan(t.out[36]));
}

TEST(Attention, MinusInfiniteLogitsOnlyHideTheirKeys) {
  const AttentionShape shape = shape_of(1, 70, 1, 4);
  Tensors<float> t(shape, 16);
  for (std::size_t i = 0; i < 69 * 4; ++i) {
    t.k[i] = -1e30F;
  }
  for (std::size_t d = 0; d < 4; ++d) {
    t.q[69 * 4 + d] = 1e30F;
    t.k[69 * 4 + d] = 0;
  }
  t.forward(shape);
  for (std::size_t d = 0; d < 4; ++d) {
    EXPECT_EQ(t.out[69 * 4 + d], t.v[69 * 4 + d]);
  }
}

TEST(Attention, AcceptsEmptyInputs) {
  float max_logit = 0;
  attention_forward<float>(
      shape_of(2, 0, 1, 8), nullptr, nullptr, nullptr, nullptr, nullptr, &max_logit);
  EXPECT_EQ(max_logit, -std::numeric_limits<float>::infinity());
  attention_backward<float>(shape_of(0, 8, 1, 8), nullptr, nullptr, nullptr, {});
}

TEST(Attention, RepeatsItselfBitForBit) {
  const AttentionShape shape = shape_of(2, 100, 2, 32);
  Tensors<float> first(shape, 17);
  Tensors<float> second(shape, 17);
  first.forward(shape);
  second.forward(shape);
  EXPECT_EQ(first.out, second.out);
  EXPECT_EQ(first.lse, second.lse);
}

TEST(AttentionGradientCoverage, ReachesAllKeysUpToTheLastTokenWithAGradient) {
  const AttentionShape shape{.batch = 3, .sequence = 4, .heads = 2, .head_dim = 8, .scale = 1};
  std::vector<float> dout(3 * 4 * 16, 0.0F);
  dout[(0 * 4 + 1) * 16 + 15] = 1e-20F;  // sequence 0: token 1, second head
  dout[(0 * 4 + 0) * 16] = -0.0F;
  dout[(2 * 4 + 2) * 16] = std::numeric_limits<float>::quiet_NaN();
  const GradientCoverage coverage = attention_gradient_coverage(shape, dout.data());
  EXPECT_EQ(coverage.queries, 12);
  EXPECT_EQ(coverage.queries_reached, 2);
  EXPECT_EQ(coverage.blocks, 12);
  EXPECT_EQ(coverage.blocks_reached, 2 + 3);
}

}  // namespace
}  // namespace muster::kernels
