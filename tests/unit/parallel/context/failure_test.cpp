// SPDX-License-Identifier: Apache-2.0
// Bytes that move, calls that break a rule, and peers that do not answer.
#include "tests/unit/parallel/context/case.h"

#include <barrier>

namespace muster::parallel {
namespace {

using test::ContextCase;
using test::ContextNumbers;
using test::ContextResult;
using test::Floats;

// Rows, ranks and blocks that divide, so that every rank moves the same.
ContextCase even_case(ContextForm form) {
  ContextCase c;
  c.lengths = {256};
  c.heads = 4;
  c.kv_heads = 2;
  c.dim = 16;
  c.ranks = 4;
  c.form = form;
  return c;
}

constexpr std::int64_t kKeysBytes = std::int64_t{2} * 256 * 2 * 16 * 4;  // k and v, 2 N Hkv d e
constexpr std::int64_t kOthers = kKeysBytes / 4 * 3;                     // (P - 1) / P of them

TEST(ContextTraffic, GatheredKeysAndReducedGradientsMoveOncePerOtherRank) {
  const ContextCase c = even_case(ContextForm::kAllGather);
  const ContextResult result = run_spread(c, ContextNumbers(c));
  ASSERT_TRUE(result.status.ok()) << result.status.to_string();
  for (int rank = 0; rank < c.ranks; ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    EXPECT_EQ(result.forward_traffic[r].key_value_bytes, kOthers);
    EXPECT_EQ(result.forward_traffic[r].gradient_bytes, 0);
    EXPECT_EQ(result.backward_traffic[r].key_value_bytes, kOthers);
    EXPECT_EQ(result.backward_traffic[r].gradient_bytes, kOthers);
  }
}

TEST(ContextTraffic, ARingMovesAsMuchAndBringsGradientsHomeInOnePassMore) {
  const ContextCase c = even_case(ContextForm::kRing);
  const ContextResult result = run_spread(c, ContextNumbers(c));
  ASSERT_TRUE(result.status.ok()) << result.status.to_string();
  for (int rank = 0; rank < c.ranks; ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    EXPECT_EQ(result.forward_traffic[r].key_value_bytes, kOthers);
    EXPECT_EQ(result.backward_traffic[r].key_value_bytes, kOthers);
    EXPECT_EQ(result.backward_traffic[r].gradient_bytes, kKeysBytes);
  }
}

TEST(ContextTraffic, PooledKeysAreOneRowPerBlockAndTwiceThatForPartsOfABlock) {
  ContextCase c = even_case(ContextForm::kAllGather);
  c.moba = kernels::MobaOptions{.block = 16, .top_k = 3};
  const ContextResult aligned = run_spread(c, ContextNumbers(c));
  ASSERT_TRUE(aligned.status.ok()) << aligned.status.to_string();
  EXPECT_EQ(aligned.forward_traffic[1].pooled_key_bytes, 256 / 16 * 2 * 16 * 4 / 4 * 3);
  EXPECT_EQ(aligned.forward_traffic[1].key_value_bytes, kOthers);
  // Shards of 64 rows: blocks of 128 lie on two ranks each, in fp64 sums.
  c.moba = kernels::MobaOptions{.block = 128, .top_k = 1};
  const ContextResult straddling = run_spread(c, ContextNumbers(c));
  ASSERT_TRUE(straddling.status.ok()) << straddling.status.to_string();
  EXPECT_EQ(straddling.forward_traffic[1].pooled_key_bytes, 3 * 2 * 16 * 8);
}

TEST(ContextTraffic, WhatIsCountedIsWhatMoves) {
  for (const ContextForm form : {ContextForm::kAllGather, ContextForm::kRing}) {
    for (const bool moba : {false, true}) {
      ContextCase c = even_case(form);
      c.lengths = {131, 0, 17};
      if (moba) {
        c.moba = kernels::MobaOptions{.block = 20, .top_k = 2};
      }
      const ContextResult result = run_spread(c, ContextNumbers(c));
      ASSERT_TRUE(result.status.ok()) << result.status.to_string();
      for (std::size_t r = 0; r < 4; ++r) {
        std::int64_t counted = 0;
        for (const auto& traffic : {result.forward_traffic[r], result.backward_traffic[r]}) {
          counted += traffic.key_value_bytes + traffic.gradient_bytes + traffic.pooled_key_bytes;
        }
        EXPECT_EQ(counted, result.moved_bytes[r]) << c.name() << ", rank " << r;
        EXPECT_GT(counted, 0);
      }
    }
  }
}

TEST(ContextFailure, APeerThatDoesNotComeIsNamedToEveryOther) {
  for (const bool moba : {false, true}) {
    for (const ContextForm form : {ContextForm::kAllGather, ContextForm::kRing}) {
      const ContextCase c = even_case(form);
      const ContextNumbers n(c);
      const auto plan = ContextPlan::create(n.cu, 4, ShardOrder::kZigzag);
      ASSERT_TRUE(plan.ok());
      std::barrier others{3};
      test::run_ranks(4, [&](comm::Communicator& world) {
        if (world.rank() == 2) {
          return;
        }
        const auto rows = plan->pack_rows(world.rank());
        const auto q = test::take_rows(n.q, rows, 64);
        const auto k = test::take_rows(n.k, rows, 32);
        const auto v = test::take_rows(n.v, rows, 32);
        Floats out(q.size());
        Floats lse(rows.size() * 4);
        ContextSelection selection;
        others.arrive_and_wait();  // So that only rank 2 can be late.
        const ContextCall call{
            world, *plan, problem_of(c), Deadline::after(std::chrono::seconds{1})};
        const Status status =
            moba ? context_moba_forward(
                       call, form, {.block = 16, .top_k = 2}, {q, k, v}, out, lse, selection, {})
                 : context_attention_forward(call, form, {q, k, v}, out, lse, {});
        EXPECT_FALSE(status.ok());
        EXPECT_NE(status.to_string().find("rank 2"), std::string::npos) << status.to_string();
      });
    }
  }
}

TEST(ContextFailure, CallsThatBreakARuleAreNamedBeforeAnythingMovesOrIsWritten) {
  const std::vector<std::int64_t> cu{0, 8};
  const auto plan = ContextPlan::create(cu, 1, ShardOrder::kZigzag);
  const auto for_two = ContextPlan::create(cu, 2, ShardOrder::kZigzag);
  ASSERT_TRUE(plan.ok() && for_two.ok());
  const auto group = comm::make_local_group(1);
  const Floats x(8 * 16, 1);
  Floats out(x.size(), 77);
  Floats lse(16, 77);
  kernels::AttentionProblem good = problem_of(ContextCase{});
  const auto message = [&](const kernels::AttentionProblem& problem,
                           const ContextPlan& used,
                           Floats q) {
    const ContextCall call{*group[0], used, problem, test::soon()};
    return context_attention_forward(call, ContextForm::kRing, {q, x, x}, out, lse, {}).to_string();
  };
  const auto names = [](const std::string& text, const char* what) {
    return text.find(what) != std::string::npos;
  };
  EXPECT_PRED2(names, message(good, *for_two, x), "plan is for 2 ranks");
  EXPECT_PRED2(names, message(good, *plan, Floats(3)), "q has 3 elements");
  kernels::AttentionProblem bad = good;
  bad.type = DType::kBFloat16;
  EXPECT_PRED2(names, message(bad, *plan, x), "problem.type");
  bad = good;
  bad.cu_q = cu;
  EXPECT_PRED2(names, message(bad, *plan, x), "problem.cu_q");
  bad = good;
  bad.bias = x.data();
  EXPECT_PRED2(names, message(bad, *plan, x), "problem.bias");
  bad = good;
  bad.head_dim = 0;
  EXPECT_PRED2(names, message(bad, *plan, x), "head_dim");
  bad = good;
  bad.kv_heads = 3;
  EXPECT_PRED2(names, message(bad, *plan, x), "kv_heads");
  EXPECT_EQ(out, Floats(x.size(), 77));
  EXPECT_EQ(lse, Floats(16, 77));
  EXPECT_EQ(message(good, *plan, x), Status{}.to_string());
}

}  // namespace
}  // namespace muster::parallel
