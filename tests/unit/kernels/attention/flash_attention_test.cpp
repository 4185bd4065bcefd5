// SPDX-License-Identifier: Apache-2.0
// Exact attention against the oracle: layouts, shapes, types; equal problems give equal bits.
#include "tests/unit/kernels/attention/case.h"

namespace muster::kernels {
namespace {

using test::AttentionCase;
using test::AttentionRun;
using test::largest_difference;
using test::Values;

// Unit round-off of the sums; bf16 rounds weights, slopes and results besides.
template <typename E>
constexpr double kRoundOff = std::is_same_v<E, double> ? 0x1p-53 : 0x1p-24;
template <typename E>
constexpr bool kHalf = std::is_same_v<E, std::uint16_t>;

// Errors of logits are relative to the sums of magnitudes of their terms; a weight multiplies them
// by itself. bf16: a weight and a result are off by 2^-9 each; in the backward pass P or dS, delta
// (from a rounded out) and the result.
template <typename E>
void expect_agreement(const AttentionCase& config) {
  SCOPED_TRACE(config.name());
  AttentionRun<E> run(config);
  run.run();
  const auto oracle = run.oracle();
  const Values q = run.q.values();
  const Values k = run.k.values();
  const Values v = run.v.values();
  const auto forward = oracle_forward(oracle, q, k, v);
  const auto backward = oracle_backward(oracle, q, k, v, run.dout.values(), {});
  const double unit = 8 * kRoundOff<E> * (2 + forward.logit_size);
  const double half = kHalf<E> ? 0x1p-8 : 0;
  EXPECT_LE(largest_difference(run.out.values(), forward.out), (unit + half) * forward.size);
  EXPECT_LE(largest_difference(run.lse.values(), forward.lse), unit);
  const Values max_logit(run.max_logit.begin(), run.max_logit.end());
  // The maximum is a float even where the sums are double.
  EXPECT_LE(largest_difference(max_logit, forward.max_logit), unit + 0x1p-23 * forward.logit_size);
  EXPECT_EQ(run.nonfinite_rows, std::vector<std::int64_t>(run.nonfinite_rows.size()));
  const double slope = 2 * unit + 2 * half;
  EXPECT_LE(largest_difference(run.dq.values(), backward.dq), slope * backward.dq_size);
  EXPECT_LE(largest_difference(run.dk.values(), backward.dk), slope * backward.dk_size);
  EXPECT_LE(largest_difference(run.dv.values(), backward.dv), slope * backward.dv_size);
}

// One key, ends of panels, packs and tiles, several tiles and chunks, grouped heads, odd head
// dimensions, fewer queries than keys and more, empty sequences in the middle and at the ends.
const AttentionCase kCases[] = {
    {.queries = {1}},
    {.queries = {7, 0, 3}, .heads = 2, .kv_heads = 2, .head_dim = 9},
    {.queries = {47}, .head_dim = 16},
    {.queries = {48, 49}, .head_dim = 24},
    {.queries = {127}, .heads = 2, .kv_heads = 1, .head_dim = 33},
    {.queries = {128}, .head_dim = 64},
    {.queries = {129}, .heads = 3, .kv_heads = 3, .head_dim = 40},
    {.queries = {300}, .heads = 6, .kv_heads = 2, .head_dim = 20},
    {.queries = {600}, .head_dim = 8},
    {.queries = {70}, .head_dim = 256},
    {.queries = {0, 5, 0}, .heads = 4, .kv_heads = 1, .head_dim = 8},
    {.queries = {3, 20, 1}, .keys = {130, 20, 260}, .heads = 2, .kv_heads = 1, .head_dim = 12},
    {.queries = {50, 4}, .keys = {20, 0}, .head_dim = 16},
    {.queries = {0, 9}, .keys = {30, 9}, .head_dim = 16},
    {.queries = {60, 33}, .keys = {170, 5}, .heads = 4, .kv_heads = 2, .causal = false},
    {.queries = {90}, .head_dim = 16, .softcap = 2},
    {.queries = {90}, .heads = 2, .kv_heads = 1, .head_dim = 16, .bias = true},
    {.queries = {40}, .keys = {90}, .head_dim = 16, .causal = false, .softcap = 3, .bias = true}};

TEST(FlashAttention, FloatAgreesWithTheOracle) {
  for (const AttentionCase& config : kCases) {
    expect_agreement<float>(config);
  }
}

TEST(FlashAttention, BFloat16AgreesWithTheOracleUpToItsOwnRounding) {
  for (const AttentionCase& config : kCases) {
    expect_agreement<std::uint16_t>(config);
  }
}

TEST(FlashAttention, DoubleAgreesWithTheOracle) {
  for (const AttentionCase& config : kCases) {
    expect_agreement<double>(config);
  }
}

TEST(FlashAttention, AScaleOfItsOwnIsUsedForwardAndBackward) {
  for (const double scale : {0.5, -0.125}) {
    AttentionRun<float> run({.queries = {75}, .head_dim = 16});
    AttentionProblem problem = run.problem();
    problem.scale = scale;
    ASSERT_TRUE(attention_forward(
                    problem,
                    {{run.q.data()}, {run.k.data()}, {run.v.data()}},
                    {{run.out.data()}, run.lse.data()},
                    {run.max_logit, {}})
                    .ok());
    ASSERT_TRUE(attention_backward(
                    problem,
                    {{run.q.data()}, {run.k.data()}, {run.v.data()}},
                    {{run.out.data()},
                     run.lse.data(),
                     {run.dout.data()},
                     nullptr,
                     {run.dq.data()},
                     {run.dk.data()},
                     {run.dv.data()}})
                    .ok());
    auto oracle = run.oracle();
    oracle.scale = scale;
    const Values q = run.q.values();
    const Values k = run.k.values();
    const Values v = run.v.values();
    const auto forward = oracle_forward(oracle, q, k, v);
    const auto backward = oracle_backward(oracle, q, k, v, run.dout.values(), {});
    const double unit = 8 * kRoundOff<float> * (2 + forward.logit_size);
    EXPECT_LE(largest_difference(run.out.values(), forward.out), unit * forward.size);
    EXPECT_NEAR(static_cast<double>(run.max_logit[0]), forward.max_logit[0], unit);
    EXPECT_LE(largest_difference(run.dq.values(), backward.dq), 2 * unit * backward.dq_size);
    EXPECT_LE(largest_difference(run.dk.values(), backward.dk), 2 * unit * backward.dk_size);
  }
}

TEST(FlashAttention, GradientsOfTheLogSumExpAgreeWithTheOracle) {
  AttentionRun<double> run(
      {.queries = {30, 5}, .keys = {40, 5}, .heads = 2, .kv_heads = 1, .head_dim = 8});
  const Values dlse = test::normal_values(99, std::ssize(run.lse.values()));
  ASSERT_TRUE(run.forward().ok());
  ASSERT_TRUE(run.backward(dlse.data()).ok());
  const auto expected = oracle_backward(
      run.oracle(), run.q.values(), run.k.values(), run.v.values(), run.dout.values(), dlse);
  EXPECT_LT(largest_difference(run.dq.values(), expected.dq), 1e-13 * expected.dq_size);
  EXPECT_LT(largest_difference(run.dk.values(), expected.dk), 1e-13 * expected.dk_size);
  EXPECT_LT(largest_difference(run.dv.values(), expected.dv), 1e-13 * expected.dv_size);
}

TEST(FlashAttention, GradientsAgreeWithFiniteDifferences) {
  AttentionRun<double> run({.queries = {9}, .keys = {11}, .heads = 2, .kv_heads = 1, .softcap = 4});
  const Values dlse = test::normal_values(98, std::ssize(run.lse.values()));
  ASSERT_TRUE(run.forward().ok());
  ASSERT_TRUE(run.backward(dlse.data()).ok());
  const Values dout = run.dout.values();
  const auto check = [&](test::Fenced<double>& tensor, const Values& gradient) {
    Values at = tensor.values();
    test::expect_gradient(at, gradient, [&] {
      tensor.set(at);
      EXPECT_TRUE(run.forward().ok());
      return test::dot(run.out.values(), dout) + test::dot(run.lse.values(), dlse);
    });
    tensor.set(at);
  };
  check(run.q, run.dq.values());
  check(run.k, run.dk.values());
  check(run.v, run.dv.values());
}

TEST(FlashAttention, TheGradientNeedsTheGlobalLogSumExp) {
  // A part of the keys with its own output and log-sum-exp gives other gradients than with those
  // of the whole: the error that implementations of ring attention have made.
  AttentionRun<double> whole({.queries = {6}, .keys = {8}, .causal = false});
  whole.run();
  AttentionRun<double> part({.queries = {6}, .keys = {4}, .causal = false});
  part.q.set(whole.q.values());
  part.dout.set(whole.dout.values());
  const auto half = [](const Values& x) {
    return Values(x.begin(), x.begin() + std::ssize(x) / 2);
  };
  part.k.set(half(whole.k.values()));
  part.v.set(half(whole.v.values()));
  part.run();
  EXPECT_GT(largest_difference(part.dk.values(), half(whole.dk.values())), 1e-2);
  part.out.set(whole.out.values());
  part.lse.set(whole.lse.values());
  ASSERT_TRUE(part.backward().ok());
  EXPECT_LT(largest_difference(part.dk.values(), half(whole.dk.values())), 1e-14);
  EXPECT_LT(largest_difference(part.dv.values(), half(whole.dv.values())), 1e-14);
}

// Copies heads or sequences between runs, [tokens, heads, head_dim].
template <typename E>
void expect_same_rows(
    const std::vector<E>& a,
    std::size_t at_a,
    const std::vector<E>& b,
    std::size_t at_b,
    std::size_t count,
    const std::string& what) {
  for (std::size_t i = 0; i < count; ++i) {
    ASSERT_EQ(std::memcmp(&a[at_a + i], &b[at_b + i], sizeof(E)), 0) << what << " element " << i;
  }
}

template <typename E>
void expect_packing_does_not_matter(int threads) {
  const AttentionCase packed_config{
      .queries = {37, 0, 200, 1},
      .keys = {37, 3, 260, 90},
      .heads = 4,
      .kv_heads = 2,
      .head_dim = 24,
      .threads = threads};
  AttentionRun<E> packed(packed_config);
  packed.run();
  for (std::size_t s = 0; s < packed_config.queries.size(); ++s) {
    AttentionCase config = packed_config;
    config.queries = {packed_config.queries[s]};
    config.keys = {packed_config.keys[s]};
    config.threads = 1;
    AttentionRun<E> alone(config);
    const auto take = [](auto& to, auto& from, std::size_t first) {
      std::copy_n(from.data() + first, to.size(), to.data());
    };
    take(alone.q, packed.q, packed.at(packed.cu_q[s]));
    take(alone.dout, packed.dout, packed.at(packed.cu_q[s]));
    take(alone.k, packed.k, packed.key_at(packed.cu_k[s]));
    take(alone.v, packed.v, packed.key_at(packed.cu_k[s]));
    alone.run();
    const std::string what = "sequence " + std::to_string(s);
    const auto same = [&](auto& a, auto& b, std::size_t first) {
      expect_same_rows(a.copy(), 0, b.copy(), first, a.size(), what);
    };
    same(alone.out, packed.out, packed.at(packed.cu_q[s]));
    same(alone.dq, packed.dq, packed.at(packed.cu_q[s]));
    same(alone.dk, packed.dk, packed.key_at(packed.cu_k[s]));
    same(alone.dv, packed.dv, packed.key_at(packed.cu_k[s]));
  }
}

TEST(FlashAttention, ASequenceHasTheSameBitsPackedAndAlone) {
  expect_packing_does_not_matter<float>(1);
  expect_packing_does_not_matter<std::uint16_t>(1);
}

TEST(FlashAttention, ASequenceHasTheSameBitsPackedOnThreeThreadsAndAlone) {
  expect_packing_does_not_matter<float>(3);
}

TEST(FlashAttention, GroupedHeadsHaveTheBitsOfRepeatedOnes) {
  const AttentionCase config{.queries = {150, 20}, .heads = 6, .kv_heads = 2, .head_dim = 16};
  AttentionRun<float> grouped(config);
  AttentionCase repeated_config = config;
  repeated_config.kv_heads = 6;
  AttentionRun<float> repeated(repeated_config);
  repeated.dout.set(grouped.dout.values());
  for (std::int64_t token = 0; token < 170; ++token) {
    for (std::int64_t head = 0; head < 6; ++head) {
      std::copy_n(
          &grouped.k[grouped.key_at(token, head / 3)], 16, &repeated.k[repeated.at(token, head)]);
      std::copy_n(
          &grouped.v[grouped.key_at(token, head / 3)], 16, &repeated.v[repeated.at(token, head)]);
    }
  }
  grouped.run();
  repeated.run();
  EXPECT_EQ(grouped.out.copy(), repeated.out.copy());
  EXPECT_EQ(grouped.lse.copy(), repeated.lse.copy());
  EXPECT_EQ(grouped.max_logit, repeated.max_logit);
  Values sums(grouped.dk.size());
  for (std::size_t i = 0; i < repeated.dk.size(); ++i) {
    const std::size_t token = i / 96;
    const std::size_t head = i / 16 % 6;
    sums[(token * 2 + head / 3) * 16 + i % 16] += static_cast<double>(repeated.dk[i]);
  }
  EXPECT_LT(largest_difference(grouped.dk.values(), sums), 1e-5);
}

TEST(FlashAttention, PermutedHeadsPermuteTheResults) {
  const AttentionCase config{.queries = {60}, .heads = 3, .kv_heads = 3, .head_dim = 16};
  AttentionRun<float> first(config);
  AttentionRun<float> second(config);
  for (std::int64_t token = 0; token < 60; ++token) {
    for (std::int64_t head = 0; head < 3; ++head) {
      const std::size_t to = first.at(token, (head + 1) % 3);
      for (auto tensors :
           {std::pair{&first.q, &second.q},
            {&first.k, &second.k},
            {&first.v, &second.v},
            {&first.dout, &second.dout}}) {
        std::copy_n(tensors.first->data() + first.at(token, head), 16, tensors.second->data() + to);
      }
    }
  }
  first.run();
  second.run();
  for (std::int64_t token = 0; token < 60; ++token) {
    for (std::int64_t head = 0; head < 3; ++head) {
      const std::size_t from = first.at(token, head);
      const std::size_t to = first.at(token, (head + 1) % 3);
      expect_same_rows(first.out.copy(), from, second.out.copy(), to, 16, "out");
      expect_same_rows(first.dq.copy(), from, second.dq.copy(), to, 16, "dq");
      expect_same_rows(first.dk.copy(), from, second.dk.copy(), to, 16, "dk");
    }
  }
}

TEST(FlashAttention, LaterTokensDoNotChangeEarlierOutputsByABit) {
  const AttentionCase config{.queries = {200}, .head_dim = 32};
  AttentionRun<float> run(config);
  ASSERT_TRUE(run.forward().ok());
  const auto before = run.out.copy();
  for (const std::int64_t changed : {1, 16, 47, 130, 199}) {
    AttentionRun<float> other(config);
    for (std::size_t i = other.at(changed); i < other.k.size(); ++i) {
      other.k[i] = 1e3F;
      other.v[i] = std::numeric_limits<float>::quiet_NaN();
      other.q[i] = -3;
    }
    ASSERT_TRUE(other.forward().ok());
    expect_same_rows(before, 0, other.out.copy(), 0, other.at(changed), "before the change");
  }
}

TEST(FlashAttention, StridesOfInterleavedTensorsAreFollowed) {
  // q, k and v side by side per token, as one projection writes them; out by head, then token.
  const AttentionCase config{.queries = {70}, .heads = 4, .kv_heads = 2, .head_dim = 16};
  AttentionRun<float> plain(config);
  ASSERT_TRUE(plain.forward().ok());
  std::vector<float> joined(70 * 128);
  for (std::size_t token = 0; token < 70; ++token) {
    float* row = joined.data() + token * 128;
    std::copy_n(plain.q.data() + token * 64, 64, row);
    std::copy_n(plain.k.data() + token * 32, 32, row + 64);
    std::copy_n(plain.v.data() + token * 32, 32, row + 96);
  }
  std::vector<float> out(70 * 64);
  std::vector<float> lse(70 * 4);
  const Status status = attention_forward(
      plain.problem(),
      {{joined.data(), 128, 16}, {joined.data() + 64, 128, 16}, {joined.data() + 96, 128, 16}},
      {{out.data(), 16, 70 * 16}, lse.data()});
  ASSERT_TRUE(status.ok()) << status.to_string();
  for (std::int64_t token = 0; token < 70; ++token) {
    for (std::int64_t head = 0; head < 4; ++head) {
      expect_same_rows(
          plain.out.copy(),
          plain.at(token, head),
          out,
          static_cast<std::size_t>((head * 70 + token) * 16),
          16,
          "out");
    }
  }
}

}  // namespace
}  // namespace muster::kernels
