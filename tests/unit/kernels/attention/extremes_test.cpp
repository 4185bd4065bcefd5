// SPDX-License-Identifier: Apache-2.0
// Exact attention at the edges: logits near the largest float, packs in another order, memory next
// to the tensors, offsets and pointers that do not fit.
#include "tests/unit/kernels/attention/case.h"
#include "tests/unit/kernels/attention/memory.h"

#include <limits>

namespace muster::kernels {
namespace {

using test::AttentionCase;
using test::AttentionRun;
using test::Values;

// Logits of +-3e38: their difference overflows, their weights are 1 and 0.
template <typename E>
void expect_largest_logits_are_finite() {
  AttentionRun<E> run({.queries = {150}, .head_dim = 16});
  AttentionProblem problem = run.problem();
  problem.scale = 1;
  Values q(run.q.size(), 0);
  Values k(run.k.size(), 0);
  for (std::size_t token = 0; token < 150; ++token) {
    q[token * 16] = 1;
    k[token * 16] = token % 3 == 0 ? 3e38 : token % 3 == 1 ? -3e38 : 1;
  }
  Values dout = run.dout.values();
  for (double& x : dout) {
    x /= 64;  // dq is a sum of slopes times keys, and would itself be too large for a float
  }
  run.q.set(q);
  run.k.set(k);
  run.dout.set(dout);
  ASSERT_TRUE(attention_forward(
                  problem,
                  {{run.q.data()}, {run.k.data()}, {run.v.data()}},
                  {{run.out.data()}, run.lse.data()},
                  {run.max_logit, run.nonfinite_rows})
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
  for (auto* tensor : {&run.out, &run.dq, &run.dk, &run.dv}) {
    for (const double x : tensor->values()) {
      ASSERT_TRUE(std::isfinite(x));
    }
  }
  EXPECT_EQ(run.nonfinite_rows[0], 0);
  EXPECT_NEAR(run.max_logit[0], 3e38, 2e36);  // rounded to bf16 there
  // Row 7: the mean of the values of keys 0, 3 and 6.
  const Values v = run.v.values();
  const double mean = (v[2] + v[3 * 16 + 2] + v[6 * 16 + 2]) / 3;
  EXPECT_NEAR(test::value_of(run.out[7 * 16 + 2]), mean, 1e-2);
}

TEST(FlashHuge, LogitsNearTheLargestFloatStayFinite) {
  expect_largest_logits_are_finite<float>();
  expect_largest_logits_are_finite<std::uint16_t>();
}

TEST(FlashAttention, PermutedSequencesPermuteTheResults) {
  const AttentionCase config{.queries = {40, 7, 93}, .heads = 2, .kv_heads = 1, .head_dim = 16};
  AttentionRun<float> first(config);
  AttentionCase moved = config;
  moved.queries = {93, 40, 7};
  AttentionRun<float> second(moved);
  const auto permuted = [](const auto& values, std::size_t row) {
    auto result = values;
    std::rotate_copy(
        values.begin(),
        values.begin() + static_cast<std::ptrdiff_t>(47 * row),
        values.end(),
        result.begin());
    return result;
  };
  second.q.set(permuted(first.q.values(), 32));
  second.k.set(permuted(first.k.values(), 16));
  second.v.set(permuted(first.v.values(), 16));
  second.dout.set(permuted(first.dout.values(), 32));
  first.run();
  second.run();
  EXPECT_EQ(second.out.copy(), permuted(first.out.copy(), 32));
  EXPECT_EQ(second.dq.copy(), permuted(first.dq.copy(), 32));
  EXPECT_EQ(second.dk.copy(), permuted(first.dk.copy(), 16));
  EXPECT_EQ(second.dv.copy(), permuted(first.dv.copy(), 16));
}

TEST(FlashMemory, ACallTakesNoMoreThanPackedOperandsNextToItsTensors) {
  // Scores of 8192 tokens would take 256 MiB a head.
  AttentionRun<float> run({.queries = {8192}, .heads = 2, .kv_heads = 2, .head_dim = 16});
  Status status;
  const std::int64_t forward = test::peak_growth([&] { status = run.forward(); });
  ASSERT_TRUE(status.ok()) << status.to_string();
  const std::int64_t backward = test::peak_growth([&] { status = run.backward(); });
  ASSERT_TRUE(status.ok()) << status.to_string();
  if (forward < 0 || backward < 0) {
    GTEST_SKIP() << "no peak of resident memory here";
  }
  const auto tensor = static_cast<std::int64_t>(run.q.size() * sizeof(float));
  EXPECT_LT(forward, 3 * tensor + (std::int64_t{4} << 20));    // k and v packed, and `out` touched
  EXPECT_LT(backward, 20 * tensor + (std::int64_t{4} << 20));  // 7 copies, 8 slabs, dq, dk, dv
}

// One call with what `spoil` makes of it; forward and backward, or the message of the first
// refusal.
struct Call {
  AttentionRun<float> run{{.queries = {4, 4}, .heads = 4, .kv_heads = 2, .head_dim = 16}};
  AttentionProblem problem = run.problem();
  AttentionInput q{run.q.data()};
  AttentionInput k{run.k.data()};
  AttentionInput v{run.v.data()};
  AttentionOutput out{run.out.data()};
  void* lse = run.lse.data();
  const void* dlse{nullptr};
  AttentionInput dout{run.dout.data()};
  AttentionOutput dq{run.dq.data()};
  AttentionOutput dk{run.dk.data()};

  std::string refusal() {
    Status status = attention_forward(problem, {q, k, v}, {out, lse});
    if (status.ok()) {
      status = attention_backward(
          problem, {q, k, v}, {{run.out.data()}, lse, dout, dlse, dq, dk, {run.dv.data()}});
    }
    EXPECT_EQ(run.dq[0], 77.0F);
    return status.to_string();
  }
};

void expect_refused(void (*spoil)(Call&), const char* words) {
  Call call;
  spoil(call);
  const std::string message = call.refusal();
  EXPECT_NE(message.find(words), std::string::npos) << message;
}

TEST(FlashArguments, OffsetsThatOverrunATensorAreRefused) {
  expect_refused([](Call& c) { c.q.tokens = 7; }, "q must have room for 8 tokens, got 7");
  expect_refused([](Call& c) { c.k.tokens = 7; }, "k must have room for 8 tokens, got 7");
  expect_refused([](Call& c) { c.v.tokens = 1; }, "v must have room for 8 tokens, got 1");
  expect_refused([](Call& c) { c.out.tokens = 7; }, "out must have room for 8 tokens, got 7");
  expect_refused([](Call& c) { c.dout.tokens = 7; }, "dout must have room for 8 tokens, got 7");
  expect_refused([](Call& c) { c.dq.tokens = 7; }, "dq must have room for 8 tokens, got 7");
  expect_refused([](Call& c) { c.dk.tokens = 7; }, "dk must have room for 8 tokens, got 7");
  Call call;
  call.q.tokens = call.k.tokens = call.v.tokens = call.out.tokens = 8;
  EXPECT_TRUE(attention_forward(call.problem, {call.q, call.k, call.v}, {call.out, call.lse}).ok());
}

TEST(FlashArguments, LogSumsAndBiasMustBeAlignedAndTheTypeKnown) {
  const auto behind = [](void* data) { return static_cast<void*>(static_cast<char*>(data) + 1); };
  static void* (*shifted)(void*) = behind;
  expect_refused([](Call& c) { c.lse = shifted(c.lse); }, "lse must be aligned");
  expect_refused([](Call& c) { c.dlse = shifted(c.lse); }, "dlse must be aligned");
  expect_refused(
      [](Call& c) { c.problem.bias = reinterpret_cast<const float*>(shifted(c.run.q.data())); },
      "bias must be aligned");
  expect_refused(
      [](Call& c) { c.problem.type = static_cast<DType>(9); }, "type must be fp32, bf16 or fp64");
}

}  // namespace
}  // namespace muster::kernels
