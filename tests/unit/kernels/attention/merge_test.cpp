// SPDX-License-Identifier: Apache-2.0
// Partial results over disjoint keys make one result; equal calls make equal bits.
#include "tests/support/floats.h"
#include "tests/unit/kernels/attention/case.h"

#include <limits>

namespace muster::kernels {
namespace {

using muster::test::kInfinityF;

using test::AttentionCase;
using test::AttentionRun;
using test::largest_difference;
using test::Values;

struct Part {
  std::vector<float> out;
  std::vector<float> lse;
};

void merge(std::int64_t rows, int heads, int head_dim, Part& to, const Part& from) {
  merge_partial_attention(
      rows, heads, head_dim, to.out.data(), to.lse.data(), from.out.data(), from.lse.data());
}

// Keys [begin, end) of a run without mask.
Part part_of(AttentionRun<float>& run, std::int64_t begin, std::int64_t end) {
  Part part{std::vector<float>(run.out.size()), std::vector<float>(run.lse.size())};
  AttentionProblem problem = run.problem();
  const std::vector<std::int64_t> cu_k{0, end - begin};
  problem.cu_k = cu_k;
  const auto status = attention_forward(
      problem,
      {{run.q.data()}, {run.k.data() + run.key_at(begin)}, {run.v.data() + run.key_at(begin)}},
      {{part.out.data()}, part.lse.data()});
  EXPECT_TRUE(status.ok()) << status.to_string();
  return part;
}

TEST(MergePartialAttention, PartsInAnyOrderEqualTheWhole) {
  AttentionRun<float> run(
      {.queries = {20}, .keys = {90}, .heads = 4, .kv_heads = 2, .causal = false});
  ASSERT_TRUE(run.forward().ok());
  for (const bool backwards : {false, true}) {
    std::vector<Part> parts;
    for (const auto& [begin, end] :
         {std::pair<std::int64_t, std::int64_t>{0, 40}, {40, 41}, {41, 90}}) {
      parts.push_back(part_of(run, begin, end));
    }
    if (backwards) {
      std::reverse(parts.begin(), parts.end());
    }
    merge(20, 4, 8, parts[0], parts[1]);
    merge(20, 4, 8, parts[0], parts[2]);
    EXPECT_LT(test::distance(parts[0].out, run.out.copy()), 1e-6);
    EXPECT_LT(test::distance(parts[0].lse, run.lse.copy()), 1e-6);
  }
}

// (a + b) + c against a + (b + c), and a + b against b + a: within 4 units of the round-off.
TEST(MergePartialAttention, IsAssociativeAndCommutativeUpToRounding) {
  constexpr double kFour = 4 * 0x1p-24;
  const auto random_part = [](std::uint64_t seed) {
    const Values values = test::normal_values(seed, 5 * 3 * 8);
    const Values lse = test::normal_values(seed + 1, 5 * 3, 4);
    return Part{test::cast<float>(values), test::cast<float>(lse)};
  };
  for (std::uint64_t seed = 1; seed < 40; seed += 6) {
    const Part a = random_part(seed);
    const Part b = random_part(seed + 2);
    const Part c = random_part(seed + 4);
    const auto merged = [](Part to, const Part& from) {
      merge(5, 3, 8, to, from);
      return to;
    };
    const Part left = merged(merged(a, b), c);
    const Part right = merged(a, merged(b, c));
    EXPECT_LE(test::distance(left.out, right.out), kFour);
    EXPECT_LE(test::distance(left.lse, right.lse), kFour);
    const Part ab = merged(a, b);
    const Part ba = merged(b, a);
    EXPECT_LE(test::distance(ab.out, ba.out), kFour);
    EXPECT_LE(test::distance(ab.lse, ba.lse), kFour);
  }
}

TEST(MergePartialAttention, AnEmptyPartIsTheIdentity) {
  const Part some{{1.5F, -2.5F}, {0.75F}};
  const Part nothing{{std::numeric_limits<float>::quiet_NaN(), 0}, {-kInfinityF}};
  Part a = some;
  merge(1, 1, 2, a, nothing);
  EXPECT_EQ(a.out, some.out);
  EXPECT_EQ(a.lse, some.lse);
  Part b = nothing;
  merge(1, 1, 2, b, some);
  EXPECT_EQ(b.out, some.out);
  EXPECT_EQ(b.lse, some.lse);
  Part c{{0, 0}, {-kInfinityF}};
  merge(1, 1, 2, c, c);
  EXPECT_EQ(c.out, (std::vector<float>{0, 0}));
  EXPECT_EQ(c.lse[0], -kInfinityF);
}

TEST(MergePartialAttention, HugeSpreadsDoNotOverflow) {
  for (const float apart : {50.0F, 1e4F, 3e38F}) {
    Part low{{1}, {-apart}};
    const Part high{{2}, {apart}};
    merge(1, 1, 1, low, high);
    EXPECT_EQ(low.out[0], 2.0F);
    EXPECT_EQ(low.lse[0], apart);
    Part other = high;
    merge(1, 1, 1, other, Part{{1}, {-apart}});
    EXPECT_EQ(other.out[0], 2.0F);
    EXPECT_EQ(other.lse[0], apart);
  }
}

TEST(MergePartialAttention, ANanPartStaysNan) {
  Part part{{1}, {0}};
  merge(1, 1, 1, part, Part{{1}, {std::numeric_limits<float>::quiet_NaN()}});
  EXPECT_TRUE(std::isnan(part.out[0]));
  EXPECT_TRUE(std::isnan(part.lse[0]));
}

template <typename E>
struct Bits {
  std::vector<E> out;
  std::vector<E> dq;
  std::vector<E> dk;
  std::vector<E> dv;
  std::vector<float> lse;
  std::vector<float> max_logit;

  bool operator==(const Bits&) const = default;
};

template <typename E>
Bits<E> bits_of(AttentionRun<E>& run) {
  run.run();
  return {
      run.out.copy(), run.dq.copy(), run.dk.copy(), run.dv.copy(), run.lse.copy(), run.max_logit};
}

constexpr int kRepeats = test::kSanitized ? 2 : 50;

template <typename E>
void expect_equal_bits() {
  AttentionCase config{
      .queries = {600, 3, 70}, .heads = 4, .kv_heads = 2, .head_dim = 24, .threads = 1};
  AttentionRun<E> run(config);
  const Bits<E> first = bits_of(run);
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    EXPECT_TRUE(bits_of(run) == first) << "repeat " << repeat;
  }
  for (const int threads : {2, 3, 8}) {
    config.threads = threads;
    for (int repeat = 0; repeat < kRepeats / 10 + 1; ++repeat) {
      AttentionRun<E> other(config);
      EXPECT_TRUE(bits_of(other) == first) << threads << " threads, repeat " << repeat;
    }
  }
}

TEST(FlashDeterminism, RepeatsAndThreadCountsGiveTheSameBits) {
  expect_equal_bits<float>();
}

TEST(FlashDeterminism, RepeatsAndThreadCountsGiveTheSameBitsInBFloat16) {
  expect_equal_bits<std::uint16_t>();
}

TEST(FlashDeterminism, LengthsChangedInPlaceBetweenCallsAreSeen) {
  AttentionRun<float> run({.queries = {30, 30}, .head_dim = 8});
  ASSERT_TRUE(run.forward().ok());
  run.cu_q[1] = run.cu_k[1] = 10;
  ASSERT_TRUE(run.forward().ok());
  AttentionRun<float> fresh({.queries = {10, 50}, .head_dim = 8});
  ASSERT_TRUE(fresh.forward().ok());
  EXPECT_EQ(run.out.copy(), fresh.out.copy());
}

}  // namespace
}  // namespace muster::kernels
