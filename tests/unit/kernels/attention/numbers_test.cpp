// SPDX-License-Identifier: Apache-2.0
// Exact attention where numbers are extreme, not numbers, or nowhere.
#include "kernels/attention/cpu/simd/tiles.h"
#include "tests/support/floats.h"
#include "tests/unit/kernels/attention/case.h"

#include <limits>

namespace muster::kernels {
namespace {

using muster::test::kInfinityF;
using muster::test::kNanF;

using test::AttentionCase;
using test::AttentionRun;
using test::largest_difference;
using test::Values;

TEST(FlashExp, IsWithinTwoUnitsInTheLastPlace) {
  // Every 499th float of [-87, -2^-30], 0 and some values below -87.33.
  std::vector<float> x;
  for (std::uint32_t bits = 0xB0800000U; bits <= 0xC2AE0000U; bits += 499) {
    float value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    x.push_back(value);
  }
  std::vector<float> y = x;
  const auto& table = flash_table<float>(DType::kFloat32);
  table.exponentials(y.data(), std::ssize(y));
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp(static_cast<double>(x[i]));
    const auto nearest = static_cast<float>(exact);
    const double ulp = static_cast<double>(std::nextafter(nearest, 2.0F) - nearest);
    worst = std::max(worst, std::abs(static_cast<double>(y[i]) - exact) / ulp);
  }
  EXPECT_LE(worst, 2.0);
  std::vector<float> ends{0.0F, -0.0F, -88.0F, -1e30F, -kInfinityF, kNanF};
  table.exponentials(ends.data(), 6);
  EXPECT_EQ(ends[0], 1.0F);
  EXPECT_EQ(ends[1], 1.0F);
  EXPECT_EQ(ends[2], 0.0F);
  EXPECT_EQ(ends[3], 0.0F);
  EXPECT_EQ(ends[4], 0.0F);
  EXPECT_TRUE(std::isnan(ends[5]));
}

// Small integers and a scale that is a power of 2: all logits are exact in whatever order.
template <typename E>
void expect_exact_maximum(int head_dim) {
  AttentionRun<E> run(
      {.queries = {150, 40}, .keys = {170, 60}, .heads = 4, .kv_heads = 2, .head_dim = head_dim});
  for (auto* tensor : {&run.q, &run.k}) {
    Values values = tensor->values();
    for (double& x : values) {
      x = std::nearbyint(3 * x);
    }
    tensor->set(values);
  }
  ASSERT_TRUE(run.forward().ok());
  const auto expected =
      oracle_forward(run.oracle(), run.q.values(), run.k.values(), run.v.values());
  EXPECT_EQ(Values(run.max_logit.begin(), run.max_logit.end()), expected.max_logit) << head_dim;
}

TEST(FlashMaxLogit, IsExactWhereLogitsAreAndScaledOnce) {
  for (const int head_dim : {16, 64, 256}) {
    expect_exact_maximum<float>(head_dim);
    expect_exact_maximum<std::uint16_t>(head_dim);
    expect_exact_maximum<double>(head_dim);
  }
}

TEST(FlashMaxLogit, IsSignedAndIgnoresHiddenKeys) {
  AttentionRun<float> run({.queries = {2}, .head_dim = 16});
  run.q.set(Values(32, 1));
  Values k(32, -0.5);
  k[16] = -1.5;
  run.k.set(k);
  ASSERT_TRUE(run.forward().ok());
  EXPECT_EQ(run.max_logit[0], -2.0F);  // 16 * -0.5 / 4
  std::fill_n(run.k.data() + 16, 16, 5.0F);
  std::fill_n(run.q.data() + 16, 16, -1.0F);  // query 0 must not see 16 * 5 / 4
  ASSERT_TRUE(run.forward().ok());
  EXPECT_EQ(run.max_logit[0], 2.0F);
}

TEST(FlashMaxLogit, IsMinusInfinityForAHeadThatSawNothing) {
  AttentionRun<float> run({.queries = {3}, .keys = {0}, .heads = 2, .kv_heads = 1});
  ASSERT_TRUE(run.forward().ok());
  EXPECT_EQ(run.max_logit, std::vector<float>(2, -kInfinityF));
  EXPECT_EQ(run.nonfinite_rows, std::vector<std::int64_t>(2, 0));
}

TEST(FlashMaxLogit, ThatIsInfiniteCountsAlsoWhereSoftcapMakesItFinite) {
  AttentionRun<float> run({.queries = {40}, .head_dim = 16, .softcap = 2});
  std::fill_n(run.q.data(), run.q.size(), 10.0F);
  std::fill_n(run.k.data() + run.key_at(3), 16, 3e38F);
  ASSERT_TRUE(run.forward().ok());
  EXPECT_EQ(run.nonfinite_rows[0], 37);
  EXPECT_TRUE(std::isinf(run.max_logit[0]));
  EXPECT_TRUE(std::isfinite(run.out[run.at(39)]));
}

TEST(FlashMaxLogit, IsTakenBeforeTheSoftcapAndAfterTheBias) {
  AttentionRun<float> run({.queries = {1}, .head_dim = 16, .softcap = 2, .bias = true});
  run.q.set(Values(16, 3));
  run.k.set(Values(16, 3));
  run.bias = {4};
  ASSERT_TRUE(run.forward().ok());
  EXPECT_EQ(run.max_logit[0], 40.0F);  // 16 * 9 / 4 + 4
  EXPECT_NEAR(run.lse[0], 2.0F, 1e-6);
}

TEST(FlashMaxLogit, RowsBeyondTheLastSequenceAreNotReadAndNotWritten) {
  AttentionRun<float> run({.queries = {50, 30}, .head_dim = 16});
  for (auto* tensor : {&run.q, &run.k, &run.v}) {
    std::fill_n(tensor->data() + 50 * 16, 30 * 16, 1e30F);
  }
  std::fill_n(run.out.data(), run.out.size(), 77.0F);
  AttentionProblem problem = run.problem();
  const std::vector<std::int64_t> first{0, 50};
  problem.cu_q = first;
  problem.cu_k = first;
  std::vector<float> lse(50);
  const auto status = attention_forward(
      problem,
      {{run.q.data()}, {run.k.data()}, {run.v.data()}},
      {{run.out.data()}, lse.data()},
      {run.max_logit, {}});
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_LT(run.max_logit[0], 100.0F);
  for (std::size_t i = run.at(50); i < run.out.size(); ++i) {
    ASSERT_EQ(run.out[i], 77.0F) << i;
  }
}

// One NaN in q, k or v of kv head 1: every output that sees it, and no other, and exact counts.
template <typename E>
void expect_nan_reach(std::int64_t poisoned, int which) {
  SCOPED_TRACE(which == 0 ? "q" : which == 1 ? "k" : "v");
  const AttentionCase config{.queries = {10, 200}, .heads = 4, .kv_heads = 2, .head_dim = 16};
  AttentionRun<E> clean(config);
  ASSERT_TRUE(clean.forward().ok());
  AttentionRun<E> run(config);
  const auto nan = test::element_of<E>(std::numeric_limits<double>::quiet_NaN());
  const std::int64_t head = 2;  // reads kv head 1, as does head 3
  const std::size_t place = which == 0 ? run.at(10 + poisoned, head) : run.key_at(10 + poisoned, 1);
  (which == 0 ? run.q : which == 1 ? run.k : run.v)[place + 5] = nan;
  ASSERT_TRUE(run.forward().ok());
  std::vector<std::int64_t> rows(4);
  const Values out = run.out.values();
  const Values expected = clean.out.values();
  for (std::int64_t token = 0; token < 210; ++token) {
    for (std::int64_t h = 0; h < 4; ++h) {
      const bool sees =
          which == 0 ? token == 10 + poisoned && h == head : token >= 10 + poisoned && h >= 2;
      rows[static_cast<std::size_t>(h)] += sees ? 1 : 0;
      for (std::size_t d = 0; d < 16; ++d) {
        const std::size_t i = run.at(token, h) + d;
        const bool reached = sees && (which != 2 || d == 5);
        ASSERT_EQ(std::isnan(out[i]), reached) << "token " << token << " head " << h << ' ' << d;
        ASSERT_TRUE(reached || out[i] == expected[i]) << "token " << token << " head " << h;
      }
    }
  }
  EXPECT_EQ(run.nonfinite_rows, rows);
  for (const float logit : run.max_logit) {
    EXPECT_TRUE(std::isfinite(logit));  // the count reports the error
  }
}

TEST(FlashNan, ReachesWhatSeesItAndNothingElse) {
  for (const std::int64_t poisoned : {0, 33, 70, 128, 199}) {
    SCOPED_TRACE(poisoned);
    for (const int which : {0, 1, 2}) {
      expect_nan_reach<float>(poisoned, which);
      expect_nan_reach<std::uint16_t>(poisoned, which);
      expect_nan_reach<double>(poisoned, which);
    }
  }
}

TEST(FlashNan, OfAnOutputGradientReachesOnlyTheKeysOfItsRow) {
  const AttentionCase config{.queries = {180}, .head_dim = 16};
  AttentionRun<float> clean(config);
  clean.run();
  for (const std::int64_t poisoned : {0, 50, 131}) {
    AttentionRun<float> run(config);
    run.dout[run.at(poisoned) + 3] = kNanF;
    run.run();
    for (std::int64_t token = 0; token < 180; ++token) {
      for (std::size_t i = run.at(token); i < run.at(token + 1); ++i) {
        ASSERT_EQ(std::isnan(run.dq[i]), token == poisoned) << "token " << token;
        ASSERT_EQ(std::isnan(run.dk[i]), token <= poisoned) << "token " << token;
        ASSERT_EQ(std::isnan(run.dv[i]), token <= poisoned) << "token " << token;
        ASSERT_TRUE(token <= poisoned || run.dk[i] == clean.dk[i]) << "token " << token;
      }
    }
  }
}

TEST(FlashNan, OfAKeyReachesNoQueryBeforeItInTheGradients) {
  const AttentionCase config{.queries = {150}, .head_dim = 8};
  AttentionRun<float> run(config);
  run.k[run.at(140)] = kNanF;
  run.v[run.at(145)] = kInfinityF;
  run.run();
  for (std::int64_t token = 0; token < 150; ++token) {
    for (std::size_t i = run.at(token); i < run.at(token + 1); ++i) {
      ASSERT_EQ(std::isnan(run.dq[i]), token >= 140) << "token " << token;
    }
  }
}

TEST(FlashNan, DoesNotStayInWorkingMemory) {
  AttentionRun<float> poison({.queries = {300}, .heads = 2, .kv_heads = 1, .head_dim = 40});
  for (std::size_t i = 0; i < poison.k.size(); ++i) {
    poison.k[i] = kNanF;
    poison.v[i] = kNanF;
  }
  poison.run();
  AttentionRun<float> run({.queries = {45, 0, 3}, .keys = {50, 5, 1}, .head_dim = 20});
  for (auto* tensor : {&run.out, &run.dq, &run.dk, &run.dv}) {
    std::fill_n(tensor->data(), tensor->size(), kNanF);
  }
  run.run();
  for (auto* tensor : {&run.out, &run.dq, &run.dk, &run.dv}) {
    for (std::size_t i = 0; i < tensor->size(); ++i) {
      ASSERT_TRUE(std::isfinite((*tensor)[i])) << i;
    }
  }
}

TEST(FlashInfinity, ALogitThatOverflowsIsCountedInItsRowAlone) {
  AttentionRun<float> run({.queries = {60}, .head_dim = 8});
  std::fill_n(run.q.data() + run.at(20), 8, 1e30F);
  std::fill_n(run.k.data() + run.at(5), 8, 1e30F);
  std::fill_n(run.q.data() + run.at(21), 39 * 8, 0.0F);
  ASSERT_TRUE(run.forward().ok());
  EXPECT_EQ(run.max_logit[0], kInfinityF);
  // Row 20 only: rows 5 to 19 see the key, but their logits are finite.
  EXPECT_EQ(run.nonfinite_rows[0], 1);
  EXPECT_TRUE(std::isnan(run.out[run.at(20)]));
  EXPECT_TRUE(std::isfinite(run.out[run.at(19)]));
  EXPECT_TRUE(std::isfinite(run.out[run.at(21)]));
}

TEST(FlashInfinity, MinusInfiniteLogitsHideTheirKeys) {
  // A bias of -inf over whole tiles of one row, and over all keys of another.
  AttentionRun<float> run({.queries = {3}, .keys = {400}, .causal = false, .bias = true});
  std::fill_n(run.bias.begin(), 300, -kInfinityF);
  std::fill_n(run.bias.begin() + 400, 400, -kInfinityF);
  run.run();
  const auto expected =
      oracle_forward(run.oracle(), run.q.values(), run.k.values(), run.v.values());
  EXPECT_LT(largest_difference(run.out.values(), expected.out), 1e-5);
  EXPECT_LT(largest_difference(run.lse.values(), expected.lse), 1e-5);
  EXPECT_EQ(run.lse[1], -kInfinityF);
  for (std::size_t d = 0; d < 8; ++d) {
    EXPECT_EQ(run.out[run.at(1) + d], 0.0F);
    EXPECT_EQ(run.dq[run.at(1) + d], 0.0F);
    EXPECT_TRUE(std::isfinite(run.dq[run.at(0) + d]));
    EXPECT_TRUE(std::isfinite(run.dk[run.at(399) + d]));
  }
  EXPECT_EQ(run.nonfinite_rows[0], 0);
}

TEST(FlashInfinity, RowsThatSeeNothingAreZeroWithAMinusInfiniteLogSumExp) {
  AttentionRun<float> run({.queries = {9}, .keys = {4}, .head_dim = 8});
  run.run();
  for (std::int64_t token = 0; token < 5; ++token) {
    EXPECT_EQ(run.lse[static_cast<std::size_t>(token)], -kInfinityF);
    for (std::size_t i = run.at(token); i < run.at(token + 1); ++i) {
      EXPECT_EQ(run.out[i], 0.0F);
      EXPECT_EQ(run.dq[i], 0.0F);
    }
  }
  EXPECT_TRUE(std::isfinite(run.lse[5]));
}

TEST(FlashHuge, LogitsOfTenThousandStayExact) {
  AttentionRun<float> run({.queries = {130}, .head_dim = 64, .spread = 100});
  run.run();
  const auto expected =
      oracle_forward(run.oracle(), run.q.values(), run.k.values(), run.v.values());
  ASSERT_GT(expected.max_logit[0], 1e4);
  EXPECT_LT(largest_difference(run.lse.values(), expected.lse), 8 * 0x1p-24 * expected.logit_size);
  for (std::size_t i = 0; i < run.dk.size(); ++i) {
    ASSERT_TRUE(std::isfinite(run.dk[i]) && std::isfinite(run.out[i])) << i;
  }
}

template <typename E>
void expect_uniform_weights(double magnitude) {
  SCOPED_TRACE(magnitude);
  AttentionRun<E> run({.queries = {140}, .head_dim = 24});
  run.q.set(Values(run.q.size(), magnitude));
  run.k.set(Values(run.k.size(), magnitude));
  run.v.set(Values(run.v.size(), 3));
  run.run();
  // Scaling the maximum and the logit in different ways would give weights other than 1 here.
  for (std::size_t i = 0; i < run.out.size(); ++i) {
    ASSERT_NEAR(test::value_of(run.out[i]), 3, 1e-5);
    ASSERT_TRUE(std::isfinite(test::value_of(run.dq[i])));
  }
  EXPECT_EQ(run.nonfinite_rows[0], 0);
}

TEST(FlashHuge, ConstantRowsHaveUniformWeightsAtAnyMagnitude) {
  for (const double magnitude : {1.0, 100.3, 1e10, 3e18}) {
    expect_uniform_weights<float>(magnitude);
    expect_uniform_weights<std::uint16_t>(magnitude);
  }
}

TEST(FlashHuge, AddingAConstantToARowOfLogitsShiftsOnlyItsLogSumExp) {
  AttentionRun<float> run({.queries = {80}, .head_dim = 16});
  for (std::int64_t token = 0; token < 80; ++token) {
    run.k[run.at(token) + 15] = 1;
    run.q[run.at(token) + 15] = 0;
  }
  ASSERT_TRUE(run.forward().ok());
  const Values out = run.out.values();
  Values lse = run.lse.values();
  for (std::int64_t token = 0; token < 80; ++token) {
    run.q[run.at(token) + 15] = 512;  // 128 after the scale
  }
  ASSERT_TRUE(run.forward().ok());
  for (double& x : lse) {
    x += 128;
  }
  EXPECT_LT(largest_difference(run.out.values(), out), 1e-4);
  EXPECT_LT(largest_difference(run.lse.values(), lse), 1e-4);
}

}  // namespace
}  // namespace muster::kernels
