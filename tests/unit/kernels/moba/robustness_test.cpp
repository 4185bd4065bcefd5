// SPDX-License-Identifier: Apache-2.0
// Block attention with hostile inputs: which values may influence which results, NaN and infinity,
// extreme logits, and memory next to the tensors.
#include "tests/support/floats.h"
#include "tests/unit/kernels/moba/oracle.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>

namespace muster::kernels::test {
namespace {

using muster::test::kNan;

MobaSetup robustness_setup(std::int64_t length, std::int64_t block, int top_k, int heads = 1) {
  MobaSetup setup;
  setup.query_lengths = {length};
  setup.options = {block, top_k};
  setup.heads = heads;
  setup.kv_heads = heads;
  return setup;
}

// Elements of token `row` of head 0 of one head.
auto row_of(Values& values, std::int64_t row, int dim = 16) {
  return values.begin() + row * dim;
}

bool all_finite(
    const std::vector<float>& values, std::int64_t begin, std::int64_t end, int dim = 16) {
  return std::all_of(values.begin() + begin * dim, values.begin() + end * dim, [](float x) {
    return std::isfinite(x);
  });
}

bool all_nan(const std::vector<float>& values, std::int64_t row, int dim = 16) {
  return std::all_of(values.begin() + row * dim, values.begin() + (row + 1) * dim, [](float x) {
    return std::isnan(x);
  });
}

TEST(MobaCausality, LaterTokensChangeNoBitOfEarlierOnes) {
  const MobaSetup setup = robustness_setup(150, 16, 3);
  const MobaNumbers numbers = random_numbers(setup, 41);
  const auto before = run_moba<float>(setup, numbers);
  for (const std::int64_t changed : {149, 148, 100, 97, 96, 95, 17}) {
    MobaNumbers other = numbers;
    for (Values* values : {&other.q, &other.k, &other.v}) {
      std::for_each(row_of(*values, changed), values->end(), [](double& x) { x = 3 - x; });
    }
    const auto after = run_moba<float>(setup, other);
    EXPECT_TRUE(
        std::equal(before.out.begin(), before.out.begin() + changed * 16, after.out.begin()))
        << changed;
    EXPECT_NE(before.out, after.out);
  }
}

TEST(Moba, PermutingPastBlocksLeavesLaterQueriesAlone) {
  const MobaSetup setup = robustness_setup(96, 16, 3);
  const MobaNumbers numbers = random_numbers(setup, 42);
  MobaNumbers moved = numbers;
  const std::vector<std::int64_t> order{3, 0, 2, 1, 4, 5};
  for (std::size_t b = 0; b < order.size(); ++b) {
    const auto to = static_cast<std::int64_t>(b) * 16;
    std::copy_n(numbers.k.begin() + order[b] * 256, 256, row_of(moved.k, to));
    std::copy_n(numbers.v.begin() + order[b] * 256, 256, row_of(moved.v, to));
  }
  const auto a = run_moba<float>(setup, numbers);
  const auto b = run_moba<float>(setup, moved);
  for (std::size_t i = 80 * 16; i < a.out.size(); ++i) {  // the order of sums differs
    EXPECT_NEAR(a.out[i], b.out[i], 2e-6);
  }
}

TEST(Moba, ABlockThatNobodyChoseHasNoInfluence) {
  MobaSetup setup = robustness_setup(96, 16, 2);
  MobaNumbers numbers = random_numbers(setup, 43);
  // Block 1 points away from all queries, block 0 towards them.
  for (double& x : numbers.q) {
    x = 1 + 0.01 * x;
  }
  std::for_each(row_of(numbers.k, 0), row_of(numbers.k, 16), [](double& x) { x = 2 + 0.1 * x; });
  std::for_each(row_of(numbers.k, 16), row_of(numbers.k, 32), [](double& x) { x = -2 + 0.1 * x; });
  const auto before = run_moba<float>(setup, numbers);
  MobaNumbers other = numbers;
  std::for_each(row_of(other.v, 16), row_of(other.v, 32), [](double& x) { x = 100 * x; });
  for (std::int64_t key = 16; key < 32; ++key) {  // noise of mean 0 on the keys
    std::for_each(row_of(other.k, key), row_of(other.k, key + 1), [key](double& x) {
      x += key % 2 == 0 ? 0.125 : -0.125;
    });
  }
  const auto after = run_moba<float>(setup, other);
  for (std::size_t i = 32 * 16; i < before.out.size(); ++i) {
    ASSERT_EQ(before.out[i], after.out[i]);
    ASSERT_EQ(before.dq[i], after.dq[i]);
  }
}

TEST(MobaNan, InAQueryPoisonsThatRowOnly) {
  const MobaSetup setup = robustness_setup(100, 8, 3);
  MobaNumbers numbers = random_numbers(setup, 44);
  const auto clean = run_moba<float>(setup, numbers);
  *row_of(numbers.q, 50) = kNan;
  StatisticsStorage storage(setup);
  const auto run = run_moba<float>(setup, numbers, storage.spans());
  EXPECT_TRUE(all_nan(run.out, 50));
  EXPECT_TRUE(std::isnan(run.lse[50]));
  EXPECT_TRUE(all_finite(run.out, 0, 50));
  EXPECT_TRUE(all_finite(run.out, 51, 100));
  EXPECT_TRUE(std::equal(run.out.begin(), run.out.begin() + 50 * 16, clean.out.begin()));
  EXPECT_EQ(storage.nonfinite_rows[0], 1);
  EXPECT_EQ(storage.nonfinite_scores[0], 6);  // row 50 is in block 6
  EXPECT_TRUE(std::isfinite(storage.selected_max_logit[0]));
}

TEST(MobaNan, InAKeyReachesTheRowsThatSeeItAndItsBlockIsNeverChosen) {
  const MobaSetup setup = robustness_setup(100, 8, 3);
  MobaNumbers numbers = random_numbers(setup, 45);
  *row_of(numbers.k, 20) = kNan;  // in block 2, rows 16 to 23
  StatisticsStorage storage(setup);
  const auto run = run_moba<float>(setup, numbers, storage.spans());
  EXPECT_TRUE(all_finite(run.out, 0, 20));
  for (std::int64_t row = 20; row < 24; ++row) {
    EXPECT_TRUE(all_nan(run.out, row)) << row;
  }
  EXPECT_TRUE(all_finite(run.out, 24, 100));
  for (std::int64_t row = 24; row < 100; ++row) {
    const auto blocks = run.selection.blocks_of(0, row);
    EXPECT_FALSE(std::binary_search(blocks.begin(), blocks.end(), 2)) << row;
    EXPECT_EQ(blocks.size(), 3U) << row;  // others take its place
  }
  EXPECT_EQ(storage.nonfinite_rows[0], 4);
  EXPECT_EQ(storage.nonfinite_scores[0], 100 - 24);
  EXPECT_TRUE(std::isfinite(storage.selected_max_logit[0]));
  EXPECT_TRUE(std::isinf(storage.norm_bound[0]));
}

TEST(MobaNan, InAValueReachesTheRowsThatSeeItAndNoOther) {
  const MobaSetup setup = robustness_setup(100, 8, 2);
  MobaNumbers numbers = random_numbers(setup, 46);
  *row_of(numbers.v, 20) = kNan;
  StatisticsStorage storage(setup);
  const auto run = run_moba<float>(setup, numbers, storage.spans());
  std::int64_t reached = 0;
  for (std::int64_t row = 0; row < 100; ++row) {
    const auto blocks = run.selection.blocks_of(0, row);
    const bool sees = row >= 20 && std::binary_search(blocks.begin(), blocks.end(), 2);
    EXPECT_EQ(std::isnan(run.out[static_cast<std::size_t>(row * 16)]), sees) << row;
    reached += sees ? 1 : 0;
  }
  EXPECT_EQ(storage.nonfinite_rows[0], reached);
  EXPECT_GT(reached, 4);
  EXPECT_LT(reached, 60);
}

TEST(MobaNan, AnOverflowOfTheDotProductIsCounted) {
  const MobaSetup setup = robustness_setup(40, 8, 2);
  MobaNumbers numbers = random_numbers(setup, 47);
  std::for_each(row_of(numbers.q, 30), row_of(numbers.q, 31), [](double& x) { x = 2e38; });
  std::for_each(row_of(numbers.k, 29), row_of(numbers.k, 30), [](double& x) { x = 2e38; });
  StatisticsStorage storage(setup);
  const auto run = run_moba<float>(setup, numbers, storage.spans());
  EXPECT_TRUE(all_nan(run.out, 30));
  EXPECT_GE(storage.nonfinite_rows[0], 1);
  EXPECT_TRUE(all_finite(run.out, 0, 29));
}

TEST(Moba, HugeLogitsStayFinite) {
  MobaSetup setup = robustness_setup(60, 8, 3);
  const MobaNumbers numbers = random_numbers(setup, 48, 60);  // logits of some 1e4
  EXPECT_EQ(
      choice_error(setup, numbers, run_moba<double>(setup, numbers).choices(setup), 1e-2), "");
  const auto run = run_moba<float>(setup, numbers);
  EXPECT_TRUE(all_finite(run.out, 0, 60));
  EXPECT_TRUE(all_finite(run.dq, 0, 60));
  EXPECT_GT(*std::max_element(run.lse.begin(), run.lse.end()), 1e4F);
  // Equal logits of 1e37 give uniform weights.
  MobaNumbers equal = numbers;
  std::fill(equal.q.begin(), equal.q.end(), 1e18);
  std::fill(equal.k.begin(), equal.k.end(), 1e18);
  const auto uniform = run_moba<float>(setup, equal);
  const Choices choices = uniform.choices(setup);
  for (const std::int64_t row : {0, 5, 59}) {
    double mean = 0;
    double count = 0;
    for (const std::int32_t block : choices[0][static_cast<std::size_t>(row)]) {
      for (std::int64_t key = block * 8; key < std::min<std::int64_t>(block * 8 + 8, row + 1);
           ++key) {
        mean += equal.v[static_cast<std::size_t>(key * 16)];
        ++count;
      }
    }
    EXPECT_NEAR(uniform.out[static_cast<std::size_t>(row * 16)], mean / count, 1e-5);
  }
}

TEST(Moba, AConstantOnAllLogitsOfARowShiftsItsLogSumOnly) {
  MobaSetup setup = robustness_setup(90, 8, 3);
  setup.scale = 1;
  MobaNumbers numbers = random_numbers(setup, 49, 0.5);
  for (std::size_t i = 15; i < numbers.q.size(); i += 16) {
    numbers.q[i] = 0;
    numbers.k[i] = 1;
  }
  const auto plain = run_moba<double>(setup, numbers);
  for (std::size_t i = 15; i < numbers.q.size(); i += 16) {
    numbers.q[i] = 7;
  }
  const auto shifted = run_moba<double>(setup, numbers);
  EXPECT_LE(distance(plain.out, shifted.out), 1e-13);
  for (std::size_t i = 0; i < plain.lse.size(); ++i) {
    EXPECT_NEAR(shifted.lse[i] - plain.lse[i], 7, 1e-12);
  }
}

TEST(Moba, AllQueriesOnOneBlockGiveTheRightResult) {
  MobaSetup setup = robustness_setup(500, 16, 2);
  MobaNumbers numbers = random_numbers(setup, 50);
  for (double& x : numbers.q) {
    x = std::abs(x);
  }
  std::for_each(row_of(numbers.k, 0), row_of(numbers.k, 16), [](double& x) { x = 2 + 0.1 * x; });
  StatisticsStorage storage(setup);
  const auto run = run_moba<float>(setup, numbers, storage.spans());
  EXPECT_EQ(storage.block_counts[0], 500);
  EXPECT_EQ(storage.sink_share[0], 1);
  const OracleResult expected = oracle_attention(setup, numbers, run.choices(setup));
  EXPECT_LE(distance(run.out, expected.out), 1e-5);
  EXPECT_LE(distance(run.dk, expected.dk), 1e-5);
  EXPECT_LE(distance(run.dv, expected.dv), 1e-5);
}

// run_moba fences every tensor of both passes, behind or before it.
TEST(MobaMemory, NothingNextToTheTensorsIsTouched) {
  for (const int dim : {8, 13, 16, 72}) {
    for (const bool at_end : {true, false}) {
      MobaSetup setup = robustness_setup(75, 8, 3, 2);
      setup.query_lengths = {75, 0, 9};
      setup.dim = dim;
      setup.fence_at_end = at_end;
      EXPECT_EQ(moba_error(setup, 51, DType::kFloat32), "") << setup;
      EXPECT_EQ(moba_error(setup, 51, DType::kBFloat16), "") << setup;
      EXPECT_EQ(moba_error(setup, 51, DType::kFloat64), "") << setup;
    }
  }
}

TEST(MobaMemory, StridesLeaveWhatLiesBetweenRowsAlone) {
  MobaSetup setup = robustness_setup(60, 8, 3, 2);
  MobaNumbers numbers = random_numbers(setup, 52);
  numbers.dout.clear();
  const auto expected = run_moba<float>(setup, numbers);
  // [tokens, q heads and then k and v heads, dim] as a fused projection leaves them.
  constexpr std::int64_t kWidth = 6 * 16;
  std::vector<float> fused(60 * kWidth, 1e30F);
  for (std::size_t token = 0; token < 60; ++token) {
    for (std::size_t c = 0; c < 32; ++c) {
      fused[token * kWidth + c] = static_cast<float>(numbers.q[token * 32 + c]);
      fused[token * kWidth + 32 + c] = static_cast<float>(numbers.k[token * 32 + c]);
      fused[token * kWidth + 64 + c] = static_cast<float>(numbers.v[token * 32 + c]);
    }
  }
  std::vector<float> out(60 * 40 + 7, -5);  // rows of 20 with 16 in use
  std::vector<float> lse(120);
  const auto cu = setup.cu_q();
  MobaSelection selection;
  const Status status = moba_forward(
      problem_of(setup, DType::kFloat32, cu, cu),
      setup.options,
      {{fused.data(), kWidth}, {fused.data() + 32, kWidth}, {fused.data() + 64, kWidth}},
      {},
      {{out.data(), 40, 20}, lse.data()},
      selection,
      {});
  ASSERT_TRUE(status.ok()) << status.to_string();
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::size_t token = i / 40;
    const std::size_t head = i % 40 / 20;
    const std::size_t c = i % 20;
    const bool used = token < 60 && c < 16;
    EXPECT_EQ(out[i], used ? expected.out[token * 32 + head * 16 + c] : -5) << i;
  }
}

TEST(MobaMemory, OffsetsBeyondTwoToThe31ElementsAreReached) {
  MobaSetup setup = robustness_setup(4, 1, 2);
  setup.dim = 8;
  MobaNumbers numbers = random_numbers(setup, 53);
  numbers.dout.clear();
  const auto expected = run_moba<float>(setup, numbers);
  constexpr std::int64_t kStride = std::int64_t{1} << 30;  // elements: token 3 is at 3 * 2^30
  constexpr std::size_t kBytes = (3 * static_cast<std::size_t>(kStride) + 64) * sizeof(float);
  void* mapped = mmap(
      nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) {
    GTEST_SKIP() << "no 12 GiB of address space";
  }
  auto* memory = static_cast<float*>(mapped);
  for (std::size_t token = 0; token < 4; ++token) {
    for (std::size_t c = 0; c < 8; ++c) {
      float* at = memory + token * static_cast<std::size_t>(kStride) + c;
      at[0] = static_cast<float>(numbers.q[token * 8 + c]);
      at[8] = static_cast<float>(numbers.k[token * 8 + c]);
      at[16] = static_cast<float>(numbers.v[token * 8 + c]);
    }
  }
  std::vector<float> lse(4);
  const auto cu = setup.cu_q();
  MobaSelection selection;
  const Status status = moba_forward(
      problem_of(setup, DType::kFloat32, cu, cu),
      setup.options,
      {{memory, kStride}, {memory + 8, kStride}, {memory + 16, kStride}},
      {},
      {{memory + 24, kStride}, lse.data()},
      selection,
      {});
  ASSERT_TRUE(status.ok()) << status.to_string();
  for (std::size_t token = 0; token < 4; ++token) {
    for (std::size_t c = 0; c < 8; ++c) {
      EXPECT_EQ(
          memory[token * static_cast<std::size_t>(kStride) + 24 + c], expected.out[token * 8 + c]);
    }
  }
  munmap(mapped, kBytes);
}

}  // namespace
}  // namespace muster::kernels::test
