// SPDX-License-Identifier: Apache-2.0
// Random packs, heads, ranks and forms; repeats; what is left of order in the sums.
#include "tests/unit/parallel/context/case.h"

#include <algorithm>
#include <cmath>

namespace muster::parallel {
namespace {

using test::ContextCase;
using test::ContextNumbers;
using test::ContextResult;
using test::Floats;
using test::kUnit;
using test::largest;

ContextCase random_case(std::uint64_t seed) {
  Random random(seed);
  const auto pick = [&random](std::int64_t low, std::int64_t high) {
    return low +
           static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(high - low + 1)));
  };
  ContextCase c;
  c.seed = 1000 * seed + 7;
  c.lengths.clear();
  const std::int64_t sequences = pick(1, 4);
  for (std::int64_t s = 0; s < sequences; ++s) {
    c.lengths.push_back(pick(0, 3) == 0 ? pick(0, 9) : pick(10, 160));
  }
  c.kv_heads = static_cast<int>(pick(1, 2));
  c.heads = c.kv_heads * static_cast<int>(pick(1, 3));
  c.dim = 8 * static_cast<int>(pick(1, 4));
  c.causal = pick(0, 3) != 0;
  c.softcap = pick(0, 3) == 0 ? 4 : 0;
  c.ranks = static_cast<int>(pick(1, 9));
  c.order = pick(0, 1) == 0 ? ShardOrder::kContiguous : ShardOrder::kZigzag;
  c.form = pick(0, 1) == 0 ? ContextForm::kAllGather : ContextForm::kRing;
  if (pick(0, 1) == 0) {
    c.moba = kernels::MobaOptions{
        .block = pick(1, 40),
        .top_k = static_cast<int>(pick(1, 5)),
        .force_neighbour = c.causal && pick(0, 4) == 0,
        .share_in_group = pick(0, 3) == 0};
  }
  return c;
}

// Largest difference over the largest value of `b`; NaN stays.
double relative(const Floats& a, const Floats& b) {
  double result = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    result = a[i] == b[i] || d <= result ? result : d;
  }
  return result == 0 ? 0 : result / largest(b);
}

TEST(ContextFuzz, RandomCallsGiveWhatOneRankGives) {
  for (std::uint64_t seed = 1; seed <= (test::kSanitized ? 40 : 300); ++seed) {
    const ContextCase c = random_case(seed);
    SCOPED_TRACE(c.name() + ", case " + std::to_string(seed));
    const ContextNumbers n(c);
    const ContextResult one = run_alone(c, n);
    const ContextResult many = run_spread(c, n);
    ASSERT_TRUE(one.status.ok()) << one.status.to_string();
    ASSERT_TRUE(many.status.ok()) << many.status.to_string();
    // 8 u (1 + |S|) for a run, and a gradient is a sum over many rows.
    const double unit = 8 * kUnit * (1 + largest(one.max_logit));
    ASSERT_EQ(many.blocks, one.blocks);
    ASSERT_EQ(many.max_logit, one.max_logit);
    ASSERT_EQ(many.nonfinite_rows, one.nonfinite_rows);
    ASSERT_LE(relative(many.out, one.out), unit);
    ASSERT_LE(relative(many.dq, one.dq), 2 * unit);
    ASSERT_LE(relative(many.dk, one.dk), 2 * unit);
    ASSERT_LE(relative(many.dv, one.dv), 2 * unit);
  }
}

TEST(ContextDeterminism, RepeatsAreEqualBitForBit) {
  for (const ContextForm form : {ContextForm::kAllGather, ContextForm::kRing}) {
    for (const bool moba : {false, true}) {
      ContextCase c{.lengths = {150, 31}, .heads = 4, .kv_heads = 2, .ranks = 4, .form = form};
      if (moba) {
        c.moba = kernels::MobaOptions{.block = 20, .top_k = 2};
      }
      const ContextNumbers n(c);
      const ContextResult first = run_spread(c, n);
      ASSERT_TRUE(first.status.ok()) << first.status.to_string();
      for (int repeat = 0; repeat < (test::kSanitized ? 2 : 10); ++repeat) {
        const ContextResult again = run_spread(c, n);
        EXPECT_EQ(again.out, first.out);
        EXPECT_EQ(again.lse, first.lse);
        EXPECT_EQ(again.dq, first.dq);
        EXPECT_EQ(again.dk, first.dk);
        EXPECT_EQ(again.dv, first.dv);
      }
    }
  }
}

// softcap makes of an infinite logit a finite output: only the logit tells, and only its shard.
TEST(ContextStatistics, AnInfiniteLogitUnderSoftcapCountsOnceOverAllShards) {
  for (const ContextForm form : {ContextForm::kAllGather, ContextForm::kRing}) {
    ContextCase c{.lengths = {64}, .softcap = 3, .ranks = 4, .form = form};
    ContextNumbers n(c);
    for (const std::int64_t token : {3, 20, 50}) {
      std::fill_n(n.k.begin() + token * 16, 8, 3e38F);
    }
    std::fill_n(n.q.begin(), n.q.size(), 10.0F);
    const ContextResult one = run_alone(c, n);
    ASSERT_EQ(one.nonfinite_rows, (std::vector<std::int64_t>{61, 0}));
    const ContextResult many = run_spread(c, n);
    ASSERT_TRUE(many.status.ok()) << many.status.to_string();
    EXPECT_EQ(many.nonfinite_rows, one.nonfinite_rows);
    EXPECT_EQ(many.max_logit, one.max_logit);
  }
}

// Also a key of block 0, which a shard of few blocks would see whole if it were a sequence.
TEST(ContextMoba, ANaNKeyCountsOnTheRowsThatOneRankCounts) {
  for (const ContextForm form : {ContextForm::kAllGather, ContextForm::kRing}) {
    for (const ShardOrder order : {ShardOrder::kContiguous, ShardOrder::kZigzag}) {
      for (const std::int64_t key : {5, 30, 127}) {
        ContextCase c{.lengths = {128, 40}, .ranks = 4, .order = order, .form = form};
        c.moba = kernels::MobaOptions{.block = 24, .top_k = 2};
        ContextNumbers n(c);
        n.k[static_cast<std::size_t>(key) * 16] = std::numeric_limits<float>::quiet_NaN();
        SCOPED_TRACE(c.name() + ", key " + std::to_string(key));
        const ContextResult one = run_alone(c, n);
        ASSERT_GT(one.nonfinite_rows[0], 0);
        const ContextResult many = run_spread(c, n);
        ASSERT_TRUE(many.status.ok()) << many.status.to_string();
        EXPECT_EQ(many.nonfinite_rows, one.nonfinite_rows);
        EXPECT_EQ(many.max_logit, one.max_logit);
        EXPECT_EQ(many.blocks, one.blocks);
        EXPECT_EQ(many.moba.nonfinite_scores, one.moba.nonfinite_scores);
        EXPECT_EQ(many.moba.norm_bound, one.moba.norm_bound);
      }
    }
  }
}

}  // namespace
}  // namespace muster::parallel
