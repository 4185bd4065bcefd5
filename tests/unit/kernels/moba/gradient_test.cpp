// SPDX-License-Identifier: Apache-2.0
// Gradients of block attention, determinism, and symmetries of both passes.
#include "tests/unit/kernels/moba/oracle.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace muster::kernels::test {
namespace {

MobaSetup small_setup() {
  MobaSetup setup;
  setup.query_lengths = {21, 13};
  setup.options.block = 4;
  setup.options.top_k = 3;
  setup.heads = 2;
  setup.kv_heads = 1;
  setup.dim = 8;
  return setup;
}

// The least gap between a chosen and a left out past block of any query, by score.
double least_margin(const MobaSetup& setup, const MobaNumbers& numbers, const Choices& choices) {
  double least = 1e30;
  for (int head = 0; head < setup.heads; ++head) {
    std::int64_t token = 0;
    for (std::size_t s = 0; s < setup.query_lengths.size(); ++s) {
      for (std::int64_t row = 0; row < setup.query_lengths[s]; ++row, ++token) {
        const auto& chosen =
            choices[static_cast<std::size_t>(head)][static_cast<std::size_t>(token)];
        for (std::int32_t a = 0; a < row / setup.options.block; ++a) {
          for (std::int32_t b = 0; b < row / setup.options.block; ++b) {
            const bool in = std::binary_search(chosen.begin(), chosen.end(), a);
            const bool out = !std::binary_search(chosen.begin(), chosen.end(), b);
            if (in && out) {
              least = std::min(
                  least,
                  oracle_score(setup, numbers, head, s, row, a) -
                      oracle_score(setup, numbers, head, s, row, b));
            }
          }
        }
      }
    }
  }
  return least;
}

TEST(MobaGradient, MatchesFiniteDifferencesWhereTheChoiceIsConstant) {
  for (const double softcap : {0.0, 2.0}) {
    MobaSetup setup = small_setup();
    setup.softcap = softcap;
    MobaNumbers numbers = random_numbers(setup, 31);
    const auto run = run_moba<double>(setup, numbers);
    ASSERT_TRUE(run.status.ok()) << run.status.to_string();
    // A step of 1e-5 moves a score by less than 1e-3: no query changes its choice in between.
    ASSERT_GT(least_margin(setup, numbers, run.choices(setup)), 1e-3);
    const auto loss = [&] {
      MobaNumbers forward{numbers.q, numbers.k, numbers.v, {}};
      return dot(run_moba<double>(setup, forward).out, numbers.dout);
    };
    expect_gradient(numbers.q, run.dq, loss);
    expect_gradient(numbers.k, run.dk, loss);
    expect_gradient(numbers.v, run.dv, loss);
  }
}

// A local log sum instead of the global one is the classic mistake; the test must see it.
TEST(MobaGradient, TheLogSumOfAPartOfTheBlocksGivesWrongGradients) {
  const MobaSetup setup = small_setup();
  const MobaNumbers numbers = random_numbers(setup, 32);
  const auto run = run_moba<double>(setup, numbers);
  const auto cu = setup.cu_q();
  const AttentionProblem problem = problem_of(setup, DType::kFloat64, cu, cu);
  MobaSetup diagonal = setup;
  diagonal.options.top_k = 1;
  const auto part = run_moba<double>(diagonal, numbers);
  Values dq(run.dq.size());
  Values dk(run.dk.size());
  Values dv(run.dv.size());
  ASSERT_TRUE(moba_backward(
                  problem,
                  setup.options,
                  {{numbers.q.data()}, {numbers.k.data()}, {numbers.v.data()}},
                  {{run.out.data()},
                   part.lse.data(),
                   {numbers.dout.data()},
                   nullptr,
                   {dq.data()},
                   {dk.data()},
                   {dv.data()}},
                  run.selection)
                  .ok());
  EXPECT_GT(distance(dv, run.dv), 1e-2);
  EXPECT_GT(distance(dq, run.dq), 1e-2);
}

MobaSetup long_setup() {
  MobaSetup setup;
  setup.query_lengths = {4200, 300, 0, 90};
  setup.options.block = 64;
  setup.options.top_k = 3;
  setup.dim = 16;
  return setup;
}

TEST(Moba, RepeatsAndThreadsGiveTheSameBits) {
  MobaSetup setup = long_setup();
  const MobaNumbers numbers = random_numbers(setup, 33);
  const auto first = run_moba<float>(setup, numbers);
  ASSERT_TRUE(first.status.ok()) << first.status.to_string();
  for (const int threads : {1, 2, 3, 8}) {
    setup.threads = threads;
    const auto again = run_moba<float>(setup, numbers);
    EXPECT_EQ(first.out, again.out) << threads;
    EXPECT_EQ(first.lse, again.lse) << threads;
    EXPECT_EQ(first.dq, again.dq) << threads;
    EXPECT_EQ(first.dk, again.dk) << threads;
    EXPECT_EQ(first.dv, again.dv) << threads;
  }
}

TEST(Moba, FiftyRepeatsGiveTheSameBits) {
  MobaSetup setup = small_setup();
  setup.query_lengths = {300};
  setup.threads = 2;
  const MobaNumbers numbers = random_numbers(setup, 34);
  const auto first = run_moba<std::uint16_t>(setup, numbers);
  for (int repeat = 0; repeat < (kSanitized ? 3 : 50); ++repeat) {
    const auto again = run_moba<std::uint16_t>(setup, numbers);
    ASSERT_EQ(first.out, again.out);
    ASSERT_EQ(first.dq, again.dq);
    ASSERT_EQ(first.dk, again.dk);
    ASSERT_EQ(first.dv, again.dv);
  }
}

// Head h of the result is head order[h] of `values` [tokens, heads, dim].
Values with_heads(const Values& values, int heads, int dim, const std::vector<int>& order) {
  Values result;
  const auto width = static_cast<std::size_t>(heads * dim);
  for (std::size_t token = 0; token < values.size() / width; ++token) {
    for (const int head : order) {
      const auto begin = values.begin() + static_cast<std::ptrdiff_t>(token * width) + head * dim;
      result.insert(result.end(), begin, begin + dim);
    }
  }
  return result;
}

TEST(Moba, PermutingHeadsPermutesResults) {
  MobaSetup setup;
  setup.query_lengths = {120};
  setup.options = {8, 3};
  setup.heads = 3;
  setup.kv_heads = 3;
  const MobaNumbers numbers = random_numbers(setup, 35);
  const std::vector<int> order{2, 0, 1};
  const auto permuted = [&](const Values& values) {
    return with_heads(values, 3, setup.dim, order);
  };
  const auto plain = run_moba<float>(setup, numbers);
  const auto moved = run_moba<float>(
      setup,
      {permuted(numbers.q), permuted(numbers.k), permuted(numbers.v), permuted(numbers.dout)});
  EXPECT_EQ(doubles(moved.out), permuted(doubles(plain.out)));
  EXPECT_EQ(doubles(moved.dq), permuted(doubles(plain.dq)));
  EXPECT_EQ(doubles(moved.dk), permuted(doubles(plain.dk)));
  EXPECT_EQ(doubles(moved.dv), permuted(doubles(plain.dv)));
}

TEST(Moba, AGroupIsItsKeyHeadRepeated) {
  MobaSetup grouped;
  grouped.query_lengths = {120};
  grouped.options = {8, 3};
  grouped.heads = 4;
  grouped.kv_heads = 2;
  const MobaNumbers numbers = random_numbers(grouped, 36);
  MobaSetup repeated = grouped;
  repeated.kv_heads = 4;
  const std::vector<int> order{0, 0, 1, 1};
  const auto repeat = [&](const Values& values) {
    return with_heads(values, 2, grouped.dim, order);
  };
  const auto a = run_moba<float>(grouped, numbers);
  const auto b =
      run_moba<float>(repeated, {numbers.q, repeat(numbers.k), repeat(numbers.v), numbers.dout});
  EXPECT_EQ(a.out, b.out);
  EXPECT_EQ(a.dq, b.dq);
  const auto summed = [&](const Values& values) {
    Values first = with_heads(values, 4, grouped.dim, {0, 2});
    const Values second = with_heads(values, 4, grouped.dim, {1, 3});
    std::transform(first.begin(), first.end(), second.begin(), first.begin(), std::plus<>());
    return first;
  };
  EXPECT_LE(distance(doubles(a.dk), summed(doubles(b.dk))), 1e-6);
  EXPECT_LE(distance(doubles(a.dv), summed(doubles(b.dv))), 1e-6);
}

TEST(Moba, OffsetsChangedInPlaceBetweenCallsAreSeen) {
  MobaSetup setup = small_setup();
  const MobaNumbers numbers = random_numbers(setup, 37);
  std::vector<std::int64_t> cu{0, 21, 34};
  AttentionProblem problem = problem_of(setup, DType::kFloat32, cu, cu);
  const auto q = elements<float>(numbers.q);
  const auto k = elements<float>(numbers.k);
  const auto v = elements<float>(numbers.v);
  std::vector<float> out(q.size());
  std::vector<float> lse(2 * 34);
  MobaSelection selection;
  const auto call = [&] {
    return moba_forward(
        problem,
        setup.options,
        {{q.data()}, {k.data()}, {v.data()}},
        {},
        {{out.data()}, lse.data()},
        selection,
        {});
  };
  ASSERT_TRUE(call().ok());
  cu[1] = 10;  // the same memory, other sequences
  ASSERT_TRUE(call().ok());
  setup.query_lengths = {10, 24};
  EXPECT_EQ(out, run_moba<float>(setup, numbers).out);
}

}  // namespace
}  // namespace muster::kernels::test
