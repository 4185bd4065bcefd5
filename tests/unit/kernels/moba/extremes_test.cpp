// SPDX-License-Identifier: Apache-2.0
// Block attention at the edges: numbers that are none in the backward pass, logits near the largest
// float, memory beyond the last sequence, memory next to the tensors, chunks of a longer sequence.
#include "tests/support/floats.h"
#include "tests/unit/kernels/attention/memory.h"
#include "tests/unit/kernels/moba/oracle.h"

#include <algorithm>
#include <cmath>

namespace muster::kernels::test {
namespace {

using muster::test::kNan;

MobaSetup extreme_setup(std::vector<std::int64_t> lengths, std::int64_t block, int top_k) {
  MobaSetup setup;
  setup.query_lengths = std::move(lengths);
  setup.options = {block, top_k};
  return setup;
}

bool attends(const MobaSelection& selection, std::int64_t row, std::int64_t key, int block) {
  const auto blocks = selection.blocks_of(0, row);
  const auto of_key = static_cast<std::int32_t>(key / block);
  return key <= row && std::binary_search(blocks.begin(), blocks.end(), of_key);
}

bool all_of_row(const std::vector<float>& values, std::int64_t row, bool (*is)(float)) {
  return std::all_of(values.begin() + row * 16, values.begin() + (row + 1) * 16, is);
}

bool is_nan(float x) {
  return std::isnan(x);
}

TEST(MobaNan, OfAnOutputGradientReachesOnlyTheKeysItsRowAttendsTo) {
  const MobaSetup setup = extreme_setup({150}, 8, 3);
  const MobaNumbers numbers = random_numbers(setup, 91);
  const auto clean = run_moba<float>(setup, numbers);
  for (const std::int64_t poisoned : {0, 70, 101, 149}) {
    SCOPED_TRACE(poisoned);
    MobaNumbers other = numbers;
    other.dout[static_cast<std::size_t>(poisoned * 16 + 3)] = kNan;
    const auto run = run_moba<float>(setup, other);
    EXPECT_EQ(run.out, clean.out);
    for (std::int64_t token = 0; token < 150; ++token) {
      EXPECT_EQ(all_of_row(run.dq, token, is_nan), token == poisoned) << token;
      const bool reached = attends(run.selection, poisoned, token, 8);
      for (std::int64_t i = token * 16; i < (token + 1) * 16; ++i) {
        const auto at = static_cast<std::size_t>(i);
        ASSERT_TRUE(token == poisoned || run.dq[at] == clean.dq[at]) << token;
        ASSERT_TRUE(reached ? std::isnan(run.dk[at]) : run.dk[at] == clean.dk[at]) << token;
        ASSERT_TRUE(reached || run.dv[at] == clean.dv[at]) << token;
      }
    }
  }
}

// Rows that attend to a NaN have NaN gradients and may spoil those of all keys that they attend to;
// everything else equals the result of the oracle for the same choices.
TEST(MobaNan, InAKeyOrValueReachesOnlyGradientsOfRowsThatSeeItAndOfTheirKeys) {
  const MobaSetup setup = extreme_setup({150}, 8, 3);
  const MobaNumbers numbers = random_numbers(setup, 92);
  for (const bool in_key : {true, false}) {
    SCOPED_TRACE(in_key ? "key" : "value");
    MobaNumbers other = numbers;
    (in_key ? other.k : other.v)[100 * 16 + 5] = kNan;
    const auto run = run_moba<float>(setup, other);
    const OracleResult expected = oracle_attention(setup, numbers, run.choices(setup));
    std::vector<bool> sees(150);
    std::vector<bool> spoiled(150);
    for (std::int64_t row = 0; row < 150; ++row) {
      sees[static_cast<std::size_t>(row)] = attends(run.selection, row, 100, 8);
      for (std::int64_t key = 0; key <= row && sees[static_cast<std::size_t>(row)]; ++key) {
        const auto at = static_cast<std::size_t>(key);
        spoiled[at] = spoiled[at] || attends(run.selection, row, key, 8);
      }
    }
    EXPECT_GE(std::count(sees.begin(), sees.end(), true), 4);
    EXPECT_GE(std::count(spoiled.begin(), spoiled.end(), false), 20);
    for (std::size_t token = 0; token < 150; ++token) {
      EXPECT_EQ(all_of_row(run.dq, static_cast<std::int64_t>(token), is_nan), sees[token]) << token;
      for (std::size_t i = token * 16; i < (token + 1) * 16; ++i) {
        if (!sees[token]) {
          ASSERT_NEAR(run.dq[i], expected.dq[i], 2e-5) << token;
        }
        if (!spoiled[token]) {
          ASSERT_NEAR(run.dk[i], expected.dk[i], 2e-5) << token;
          ASSERT_NEAR(run.dv[i], expected.dv[i], 2e-5) << token;
        }
      }
    }
  }
}

TEST(MobaNan, DoesNotStayInWorkingMemory) {
  MobaSetup poison = extreme_setup({300}, 40, 3);
  poison.dim = 40;
  MobaNumbers nans = random_numbers(poison, 93);
  for (Values* values : {&nans.q, &nans.k, &nans.v, &nans.dout}) {
    std::fill(values->begin(), values->end(), kNan);
  }
  ASSERT_TRUE(run_moba<float>(poison, nans).status.ok());
  MobaSetup setup = extreme_setup({45, 0, 97}, 7, 3);
  setup.dim = 20;
  EXPECT_EQ(moba_error(setup, 94, DType::kFloat32), "");
  setup.heads = 3;
  EXPECT_EQ(moba_error(setup, 95, DType::kFloat32), "");
}

// Keys of -inf where queries are positive: whole blocks, parts of blocks, all that a row sees.
TEST(MobaInfinity, MinusInfiniteLogitsHideTheirKeys) {
  const MobaSetup setup = extreme_setup({100}, 8, 3);
  MobaNumbers numbers = random_numbers(setup, 102);
  for (std::size_t token = 0; token < 100; ++token) {
    numbers.q[token * 16] = 1;
  }
  MobaNumbers hidden = numbers;
  const auto is_hidden = [](std::int64_t key) { return key < 10 || (key >= 40 && key < 44); };
  for (std::int64_t key = 0; key < 100; ++key) {
    if (is_hidden(key)) {
      hidden.k[static_cast<std::size_t>(key * 16)] = -std::numeric_limits<double>::infinity();
    }
  }
  hidden.dout.clear();
  StatisticsStorage storage(setup);
  const auto run = run_moba<float>(setup, hidden, storage.spans());
  for (std::int64_t row = 0; row < 10; ++row) {
    EXPECT_EQ(run.lse[static_cast<std::size_t>(row)], -std::numeric_limits<float>::infinity());
    EXPECT_TRUE(all_of_row(run.out, row, [](float x) { return x == 0; })) << row;
  }
  const OracleResult expected = oracle_attention(setup, hidden, run.choices(setup));
  for (std::size_t i = 10 * 16; i < run.out.size(); ++i) {
    ASSERT_NEAR(run.out[i], expected.out[i], 2e-5) << i / 16;
  }
  EXPECT_EQ(storage.nonfinite_rows[0], 0);
  // Scores of blocks 0, 1 and 5 are -inf: numbers like others, chosen last, and counted.
  EXPECT_EQ(storage.nonfinite_scores[0], (100 - 8) + (100 - 16) + (100 - 48));
  const auto blocks = run.selection.blocks_of(0, 60);
  EXPECT_FALSE(std::binary_search(blocks.begin(), blocks.end(), 5));
}

// Logits of +-3e38: their difference overflows, their weights are 1 and 0.
template <typename T>
void expect_largest_logits_are_finite() {
  MobaSetup setup = extreme_setup({60}, 8, 3);
  setup.scale = 1;
  MobaNumbers numbers = random_numbers(setup, 96);
  std::fill(numbers.q.begin(), numbers.q.end(), 0);
  std::fill(numbers.k.begin(), numbers.k.end(), 0);
  for (double& x : numbers.dout) {
    x /= 64;  // dq is a sum of slopes times keys, and would itself be too large for a float
  }
  for (std::size_t token = 0; token < 60; ++token) {
    numbers.q[token * 16] = 1;
    numbers.k[token * 16] = token % 3 == 0 ? 3e38 : token % 3 == 1 ? -3e38 : 1;
  }
  StatisticsStorage storage(setup);
  const auto run = run_moba<T>(setup, numbers, storage.spans());
  for (const auto& values : {doubles(run.out), doubles(run.dq), doubles(run.dk), doubles(run.dv)}) {
    EXPECT_TRUE(
        std::all_of(values.begin(), values.end(), [](double x) { return std::isfinite(x); }));
  }
  EXPECT_EQ(storage.nonfinite_rows[0], 0);
  EXPECT_NEAR(storage.selected_max_logit[0], 3e38, 2e36);  // rounded to bf16 there
  // Row 7 sees block 0: the mean of the values of keys 0, 3 and 6.
  const Values v = doubles(elements<T>(numbers.v));
  EXPECT_NEAR(to_double(run.out[7 * 16 + 2]), (v[2] + v[3 * 16 + 2] + v[6 * 16 + 2]) / 3, 1e-2);
}

TEST(Moba, LogitsNearTheLargestFloatStayFinite) {
  expect_largest_logits_are_finite<float>();
  expect_largest_logits_are_finite<std::uint16_t>();
}

TEST(MobaMemory, RowsBeyondTheLastSequenceAreNotReadAndNotWritten) {
  MobaSetup setup = extreme_setup({80, 30}, 8, 3);
  MobaNumbers numbers = random_numbers(setup, 97);
  for (Values* values : {&numbers.q, &numbers.k, &numbers.v, &numbers.dout}) {
    std::fill(values->begin() + 80 * 16, values->end(), 1e30);
  }
  const auto q = elements<float>(numbers.q);
  const auto k = elements<float>(numbers.k);
  const auto v = elements<float>(numbers.v);
  const auto dout = elements<float>(numbers.dout);
  std::vector<float> out(q.size(), 77);
  std::vector<float> dq(q.size(), 77);
  std::vector<float> dk(q.size(), 77);
  std::vector<float> dv(q.size(), 77);
  std::vector<float> lse(80);
  setup.query_lengths = {80};
  const auto cu = setup.cu_q();
  const AttentionProblem problem = problem_of(setup, DType::kFloat32, cu, cu);
  StatisticsStorage storage(setup);
  MobaSelection selection;
  const Status forward = moba_forward(
      problem,
      setup.options,
      {{q.data()}, {k.data()}, {v.data()}},
      {},
      {{out.data()}, lse.data()},
      selection,
      storage.spans());
  ASSERT_TRUE(forward.ok()) << forward.to_string();
  const Status backward = moba_backward(
      problem,
      setup.options,
      {{q.data()}, {k.data()}, {v.data()}},
      {{out.data()}, lse.data(), {dout.data()}, nullptr, {dq.data()}, {dk.data()}, {dv.data()}},
      selection);
  ASSERT_TRUE(backward.ok()) << backward.to_string();
  EXPECT_LT(storage.selected_max_logit[0], 100);
  EXPECT_LT(storage.norm_bound[0], 100);
  EXPECT_LT(storage.gate_bound[0], 100);
  for (const auto* values : {&out, &dq, &dk, &dv}) {
    EXPECT_TRUE(std::all_of(
        values->begin(), values->begin() + 80 * 16, [](float x) { return std::abs(x) < 70; }));
    EXPECT_TRUE(
        std::all_of(values->begin() + 80 * 16, values->end(), [](float x) { return x == 77; }));
  }
}

// The gate of all blocks would take 128 MiB here, copies of q for each of 7 past blocks 56, masked
// scores 1 GiB: a call has no room for any of it.
TEST(MobaMemory, ACallTakesNoMoreThanListsAndPackedBlocksNextToItsTensors) {
  MobaSetup setup = extreme_setup({16384}, 64, 8);
  setup.heads = setup.kv_heads = 8;
  setup.dim = 16;
  const auto cu = setup.cu_q();
  const AttentionProblem problem = problem_of(setup, DType::kFloat32, cu, cu);
  const auto size = static_cast<std::size_t>(setup.total_q() * setup.heads * setup.dim);
  const auto q = elements<float>(normal_values(98, static_cast<std::int64_t>(size)));
  std::vector<float> out(size);
  std::vector<float> lse(static_cast<std::size_t>(setup.total_q() * setup.heads));
  MobaSelection selection;
  Status status;
  const std::int64_t bytes = peak_growth([&] {
    status = moba_forward(
        problem,
        setup.options,
        {{q.data()}, {q.data()}, {q.data()}},
        {},
        {{out.data()}, lse.data()},
        selection,
        {});
  });
  ASSERT_TRUE(status.ok()) << status.to_string();
  if (bytes < 0) {
    GTEST_SKIP() << "no peak of resident memory here";
  }
  // Lists: 7 past blocks of 4 bytes, by query and by block. Means: 128 KiB. The rest: a window of
  // 4096 rows and a block.
  const std::int64_t lists = 2 * 7 * 4 * setup.total_q() * setup.heads;
  EXPECT_LT(bytes, lists + (std::int64_t{8} << 20));
}

TEST(Moba, ChunksOfALongerSequenceHaveItsBitsFromTheFirstOn) {
  const MobaSetup whole = extreme_setup({150}, 16, 4);
  MobaNumbers numbers = random_numbers(whole, 99);
  numbers.dout.clear();
  numbers.k[3 * 16] = kNan;  // block 0: no later query may choose it, in chunks as in the whole
  const auto once = run_moba<float>(whole, numbers);
  const auto rows = [](const Values& values, std::int64_t begin, std::int64_t end) {
    return Values(values.begin() + begin * 16, values.begin() + end * 16);
  };
  std::int64_t begin = 0;
  for (const std::int64_t end : {10, 37, 64, 65, 130, 149, 150}) {
    MobaSetup chunk = whole;
    chunk.query_lengths.assign(1, end - begin);
    chunk.key_lengths.assign(1, end);
    chunk.options.whole_length = 150;
    const auto run = run_moba<float>(
        chunk, {rows(numbers.q, begin, end), rows(numbers.k, 0, end), rows(numbers.v, 0, end), {}});
    ASSERT_TRUE(run.status.ok()) << run.status.to_string();
    for (std::int64_t row = begin; row < end; ++row) {
      EXPECT_EQ(run.selection.blocks_of(0, row - begin), once.selection.blocks_of(0, row)) << row;
      EXPECT_EQ(
          std::memcmp(
              &run.out[static_cast<std::size_t>((row - begin) * 16)],
              &once.out[static_cast<std::size_t>(row * 16)],
              64),
          0)
          << row;
    }
    begin = end;
  }
}

TEST(Moba, PermutedSequencesPermuteResults) {
  const MobaSetup setup = extreme_setup({40, 7, 93}, 8, 3);
  const MobaSetup moved = extreme_setup({93, 40, 7}, 8, 3);
  const MobaNumbers numbers = random_numbers(setup, 100);
  const auto permuted = [](const Values& values) {
    Values result(values.begin() + 47 * 16, values.end());
    result.insert(result.end(), values.begin(), values.begin() + 47 * 16);
    return result;
  };
  const auto a = run_moba<float>(setup, numbers);
  const auto b = run_moba<float>(
      moved,
      {permuted(numbers.q), permuted(numbers.k), permuted(numbers.v), permuted(numbers.dout)});
  EXPECT_EQ(doubles(b.out), permuted(doubles(a.out)));
  EXPECT_EQ(doubles(b.dq), permuted(doubles(a.dq)));
  EXPECT_EQ(doubles(b.dk), permuted(doubles(a.dk)));
  EXPECT_EQ(doubles(b.dv), permuted(doubles(a.dv)));
}

// As the log sum of a part: what a part of the blocks gave instead of the global output.
TEST(MobaGradient, TheOutputOfAPartOfTheBlocksGivesWrongGradients) {
  const MobaSetup setup = extreme_setup({60}, 8, 3);
  MobaSetup diagonal = setup;
  diagonal.options.top_k = 1;
  const MobaNumbers numbers = random_numbers(setup, 101);
  const auto run = run_moba<double>(setup, numbers);
  const auto part = run_moba<double>(diagonal, numbers);
  const auto cu = setup.cu_q();
  const AttentionProblem problem = problem_of(setup, DType::kFloat64, cu, cu);
  for (const bool local : {false, true}) {
    Values dq(run.dq.size());
    Values dk(run.dk.size());
    Values dv(run.dv.size());
    ASSERT_TRUE(moba_backward(
                    problem,
                    setup.options,
                    {{numbers.q.data()}, {numbers.k.data()}, {numbers.v.data()}},
                    {{local ? part.out.data() : run.out.data()},
                     run.lse.data(),
                     {numbers.dout.data()},
                     nullptr,
                     {dq.data()},
                     {dk.data()},
                     {dv.data()}},
                    run.selection)
                    .ok());
    EXPECT_EQ(distance(dq, run.dq) > 1e-2, local);
    EXPECT_EQ(distance(dk, run.dk) > 1e-2, local);
  }
}

}  // namespace
}  // namespace muster::kernels::test
