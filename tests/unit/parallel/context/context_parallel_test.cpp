// SPDX-License-Identifier: Apache-2.0
// Attention spread over ranks gives what one rank gives.
#include "tests/unit/parallel/context/case.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace muster::parallel {
namespace {

using test::ContextCase;
using test::ContextNumbers;
using test::ContextResult;
using test::Floats;
using test::kUnit;
using test::largest;

double difference(const Floats& a, const Floats& b) {
  EXPECT_EQ(a.size(), b.size());
  double result = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    result = a[i] == b[i] ? result : d <= result ? result : d;  // NaN is the largest.
  }
  return result;
}

void expect_same_statistics(
    const test::ContextMobaNumbers& many, const test::ContextMobaNumbers& one) {
  EXPECT_EQ(many.gate_bound, one.gate_bound);
  EXPECT_EQ(many.norm_bound, one.norm_bound);
  EXPECT_EQ(many.nonfinite_scores, one.nonfinite_scores);
  EXPECT_EQ(many.block_counts, one.block_counts);
  EXPECT_EQ(many.sink_share, one.sink_share);
  EXPECT_EQ(many.margin_rows, one.margin_rows);
  for (std::size_t h = 0; h < one.margin.size(); ++h) {
    if (one.margin_rows[h] >
        0) {  // An fp64 sum of at most some thousand numbers, in another order.
      EXPECT_NEAR(many.margin[h], one.margin[h], 1e-12 * one.margin[h]);
    } else {
      EXPECT_EQ(std::isnan(many.margin[h]), std::isnan(one.margin[h]));
    }
  }
}

// The error of an output of attention in fp32 is within 8 u (1 + |S|) |v|, S the largest logit;
// both runs have it, and a gradient is a sum of such products of its own size.
void expect_equal(const ContextCase& c, const ContextNumbers& n, const ContextResult& one) {
  SCOPED_TRACE(c.name());
  const ContextResult many = run_spread(c, n);
  ASSERT_TRUE(many.status.ok()) << many.status.to_string();
  const double unit = 8 * kUnit * (1 + largest(one.max_logit));
  EXPECT_LE(difference(many.out, one.out), unit * largest(n.v));
  EXPECT_LE(difference(many.lse, one.lse), unit * (1 + largest(one.lse)));
  EXPECT_LE(difference(many.dq, one.dq), unit * largest(one.dq));
  EXPECT_LE(difference(many.dk, one.dk), unit * largest(one.dk));
  EXPECT_LE(difference(many.dv, one.dv), unit * largest(one.dv));
  EXPECT_EQ(many.max_logit, one.max_logit);
  EXPECT_EQ(many.nonfinite_rows, one.nonfinite_rows);
  EXPECT_EQ(many.blocks, one.blocks);
  expect_same_statistics(many.moba, one.moba);
}

// Every number of ranks, both orders.
void expect_equal_everywhere(ContextCase c) {
  const ContextNumbers n(c);
  const ContextResult one = run_alone(c, n);
  ASSERT_TRUE(one.status.ok()) << one.status.to_string();
  for (const int ranks : {1, 2, 4, 8}) {
    for (const ShardOrder order : {ShardOrder::kContiguous, ShardOrder::kZigzag}) {
      c.ranks = ranks;
      c.order = order;
      expect_equal(c, n, one);
    }
  }
}

const std::vector<std::int64_t> kUneven{131, 0, 17, 3, 200, 1};

TEST(ContextAttention, GatheredKeysGiveWhatOneRankGives) {
  expect_equal_everywhere({.lengths = kUneven, .heads = 4, .kv_heads = 2, .dim = 16});
}

TEST(ContextAttention, ARingGivesWhatOneRankGives) {
  expect_equal_everywhere(
      {.lengths = kUneven, .heads = 4, .kv_heads = 2, .dim = 16, .form = ContextForm::kRing});
}

TEST(ContextAttention, WithoutAMaskEveryShardSeesEveryOther) {
  for (const ContextForm form : {ContextForm::kAllGather, ContextForm::kRing}) {
    expect_equal_everywhere(
        {.lengths = {70, 0, 33}, .causal = false, .softcap = 5, .form = form, .seed = 11});
  }
}

TEST(ContextAttention, SequencesWithoutRowsLeaveRanksThatStillTakePart) {
  for (const ContextForm form : {ContextForm::kAllGather, ContextForm::kRing}) {
    expect_equal_everywhere({.lengths = {2, 0, 1}, .form = form});
    expect_equal_everywhere({.lengths = {0, 0}, .form = form});
  }
}

// Both forms.
void expect_moba_equal_everywhere(ContextCase c) {
  for (const ContextForm form : {ContextForm::kAllGather, ContextForm::kRing}) {
    c.form = form;
    expect_equal_everywhere(c);
  }
}

TEST(ContextMoba, BlocksThatStraddleRanksGiveWhatOneRankGives) {
  expect_moba_equal_everywhere(
      {.lengths = {301, 0, 64, 5, 130},
       .heads = 4,
       .kv_heads = 2,
       .dim = 16,
       .moba = kernels::MobaOptions{.block = 24, .top_k = 3}});
}

TEST(ContextMoba, BlocksThatFillShardsGiveWhatOneRankGives) {
  expect_moba_equal_everywhere(
      {.lengths = {256},
       .dim = 16,
       .moba = kernels::MobaOptions{.block = 16, .top_k = 4},
       .seed = 3});
}

TEST(ContextMoba, BlocksWiderThanAShardGiveWhatOneRankGives) {
  expect_moba_equal_everywhere(
      {.lengths = {260, 90}, .moba = kernels::MobaOptions{.block = 50, .top_k = 2}, .seed = 5});
}

TEST(ContextMoba, OneBlockPerQueryGivesWhatOneRankGives) {
  expect_moba_equal_everywhere(
      {.lengths = {200, 7}, .moba = kernels::MobaOptions{.block = 30, .top_k = 1}, .seed = 8});
}

TEST(ContextMoba, OtherWaysToChooseGiveWhatOneRankGives) {
  expect_moba_equal_everywhere(
      {.lengths = {200},
       .heads = 4,
       .kv_heads = 2,
       .moba = kernels::MobaOptions{.block = 16, .top_k = 3, .share_in_group = true}});
  expect_moba_equal_everywhere(
      {.lengths = {200},
       .moba = kernels::MobaOptions{.block = 16, .top_k = 3, .force_neighbour = true}});
  expect_moba_equal_everywhere(
      {.lengths = {200}, .causal = false, .moba = kernels::MobaOptions{.block = 16, .top_k = 3}});
  expect_moba_equal_everywhere(
      {.lengths = {200}, .softcap = 3, .moba = kernels::MobaOptions{.block = 16, .top_k = 3}});
}

TEST(ContextMoba, PooledKeysEqualThoseOfOneRankBitForBit) {
  const ContextCase c{.lengths = {301, 0, 64, 5}, .heads = 4, .kv_heads = 2, .dim = 16};
  const ContextNumbers n(c);
  const kernels::MobaOptions options{.block = 24};
  kernels::AttentionProblem problem = problem_of(c);
  problem.cu_q = n.cu;
  Floats expected(static_cast<std::size_t>(kernels::moba_block_count(n.cu, 24) * 2 * 16));
  ASSERT_TRUE(kernels::moba_block_means(problem, options, {n.k.data()}, expected, {}).ok());
  for (const ShardOrder order : {ShardOrder::kContiguous, ShardOrder::kZigzag}) {
    const auto plan = ContextPlan::create(n.cu, 4, order);
    ASSERT_TRUE(plan.ok());
    test::run_ranks(4, [&](comm::Communicator& world) {
      const auto k = test::take_rows(n.k, plan->pack_rows(world.rank()), 2 * 16);
      Floats means;
      const ContextCall call{world, *plan, problem_of(c), test::soon()};
      const Status status = context_block_means(call, options, k, means);
      EXPECT_TRUE(status.ok()) << status.to_string();
      EXPECT_EQ(means, expected);
    });
  }
}

TEST(ContextAttention, RowsThatAreNotFiniteCountOnceOverAllShards) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  for (const ContextForm form : {ContextForm::kAllGather, ContextForm::kRing}) {
    ContextCase c{.lengths = {64, 20}, .ranks = 4, .form = form};
    ContextNumbers n(c);
    n.k[5 * 16] = kNaN;       // Seen from key 5 on.
    n.k[40 * 16 + 3] = kNaN;  // Again, in another shard.
    n.q[70 * 16 + 8] = kNaN;  // A row of the other sequence, head 1.
    n.v[80 * 16 + 9] = std::numeric_limits<float>::infinity();
    const ContextResult one = run_alone(c, n);
    ASSERT_EQ(one.nonfinite_rows, (std::vector<std::int64_t>{59, 5}));
    for (const ShardOrder order : {ShardOrder::kContiguous, ShardOrder::kZigzag}) {
      c.order = order;
      const ContextResult many = run_spread(c, n);
      ASSERT_TRUE(many.status.ok()) << many.status.to_string();
      EXPECT_EQ(many.nonfinite_rows, one.nonfinite_rows) << c.name();
      EXPECT_EQ(many.max_logit, one.max_logit) << c.name();
    }
  }
}

// The gradients of keys add up over shards only if every shard weighs its keys as the whole does.
TEST(ContextAttention, BackwardFromAShardsOwnLogSumIsWrong) {
  const ContextCase c{.lengths = {64}};
  const ContextNumbers n(c);
  ContextResult one = run_alone(c, n);
  ASSERT_TRUE(one.status.ok());
  const auto plan = ContextPlan::create(n.cu, 2, ShardOrder::kContiguous);
  ASSERT_TRUE(plan.ok());
  for (const bool local : {false, true}) {
    Floats dk(n.k.size());
    test::run_ranks(2, [&](comm::Communicator& world) {
      const auto rows = plan->pack_rows(world.rank());
      const auto q = test::take_rows(n.q, rows, 16);
      const auto k = test::take_rows(n.k, rows, 16);
      const auto v = test::take_rows(n.v, rows, 16);
      const auto dout = test::take_rows(n.dout, rows, 16);
      Floats out(q.size());
      Floats lse(rows.size() * 2);
      const ContextCall call{world, *plan, problem_of(c), test::soon()};
      Status status = context_attention_forward(call, ContextForm::kRing, {q, k, v}, out, lse, {});
      EXPECT_TRUE(status.ok()) << status.to_string();
      if (local) {  // The softmax over the keys of this shard alone.
        const std::vector<std::int64_t> own{0, 32};
        kernels::AttentionProblem problem = problem_of(c);
        problem.cu_q = own;
        status = kernels::attention_forward(
            problem, {{q.data()}, {k.data()}, {v.data()}}, {{out.data()}, lse.data()});
        EXPECT_TRUE(status.ok()) << status.to_string();
      }
      Floats dq(q.size());
      Floats shard_dk(k.size());
      Floats dv(k.size());
      status = context_attention_backward(
          call, ContextForm::kRing, {q, k, v}, out, lse, dout, {dq, shard_dk, dv});
      EXPECT_TRUE(status.ok()) << status.to_string();
      test::put_rows(shard_dk, rows, 16, dk);
    });
    const double error = difference(dk, one.dk) / largest(one.dk);
    EXPECT_EQ(error > 0.05, local) << error;
  }
}

// Partial results are fp32, so that the error does not grow with the ring.
TEST(ContextAttention, ALongerRingIsNoLessExact) {
  ContextCase c{.lengths = {512}, .dim = 32, .form = ContextForm::kRing, .spread = 2};
  const ContextNumbers n(c);
  const ContextResult one = run_alone(c, n);
  ASSERT_TRUE(one.status.ok());
  const double unit = 8 * kUnit * (1 + largest(one.max_logit));
  for (const int ranks : {2, 8, 32}) {
    c.ranks = ranks;
    const ContextResult many = run_spread(c, n);
    ASSERT_TRUE(many.status.ok()) << many.status.to_string();
    EXPECT_LE(difference(many.out, one.out), unit * largest(n.v)) << ranks;
    EXPECT_LE(difference(many.dk, one.dk), unit * largest(one.dk)) << ranks;
  }
}

}  // namespace
}  // namespace muster::parallel
