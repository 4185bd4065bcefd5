// SPDX-License-Identifier: Apache-2.0
// Block attention against the fp64 oracle with explicit masks, and the rules of its choices.
#include "tests/unit/kernels/moba/oracle.h"

#include <algorithm>

namespace muster::kernels::test {
namespace {

MobaSetup setup_of(
    std::vector<std::int64_t> lengths, std::int64_t block, int top_k, int heads = 2, int dim = 16) {
  MobaSetup setup;
  setup.query_lengths = std::move(lengths);
  setup.options.block = block;
  setup.options.top_k = top_k;
  setup.heads = heads;
  setup.kv_heads = heads;
  setup.dim = dim;
  return setup;
}

// One sequence of a packed tensor [tokens, heads, dim].
Values rows_of(const Values& values, std::int64_t begin, std::int64_t end, std::int64_t width) {
  return {values.begin() + begin * width, values.begin() + end * width};
}

TEST(Moba, AgreesWithTheOracleInEveryType) {
  const MobaSetup setup = setup_of({150, 77}, 16, 3);
  EXPECT_EQ(moba_error(setup, 1, DType::kFloat32), "");
  EXPECT_EQ(moba_error(setup, 2, DType::kBFloat16), "");
  EXPECT_EQ(moba_error(setup, 3, DType::kFloat64), "");
}

TEST(Moba, AgreesWithTheOracleForBlocksThatAreNoMultipleOfAnything) {
  for (const std::int64_t block : {1, 3, 7, 13, 65, 100}) {
    const MobaSetup setup = setup_of({133}, block, 3, 1, 24);
    EXPECT_EQ(moba_error(setup, 4, DType::kFloat32), "") << setup;
  }
}

TEST(Moba, AgreesWithTheOracleForHeadDimensionsThatFillNoRegister) {
  for (const int dim : {8, 9, 17, 40, 80, 130, 256}) {
    const MobaSetup setup = setup_of({90}, 16, 3, 1, dim);
    EXPECT_EQ(moba_error(setup, 5, DType::kFloat32), "") << setup;
    EXPECT_EQ(moba_error(setup, 6, DType::kBFloat16), "") << setup;
  }
}

TEST(Moba, AgreesWithTheOracleAtTheEdgesOfBlocks) {
  // One token, a block less, exactly and more, top_k blocks exactly and one token more.
  for (const std::int64_t length : {1, 7, 8, 9, 24, 25, 26}) {
    const MobaSetup setup = setup_of({length}, 8, 3);
    EXPECT_EQ(moba_error(setup, 7, DType::kFloat32), "") << setup;
  }
}

TEST(Moba, EmptySequencesAnywhereInAPackAreLegal) {
  EXPECT_EQ(moba_error(setup_of({0, 50, 0, 0, 9, 40, 0}, 8, 2), 8, DType::kFloat32), "");
  const MobaSetup empty = setup_of({0, 0, 0}, 8, 2);
  EXPECT_EQ(moba_error(empty, 9, DType::kFloat32), "");
}

TEST(Moba, AgreesWithTheOracleAcrossWindowsAndRangesOfLongSequences) {
  MobaSetup setup = setup_of({4300}, 600, 3, 1, 8);
  setup.threads = 2;
  EXPECT_EQ(moba_error(setup, 10, DType::kFloat32), "");
}

TEST(Moba, GroupsOfQueryHeadsReadTheirKeyHead) {
  MobaSetup setup = setup_of({100, 30}, 8, 3, 6);
  setup.kv_heads = 2;
  EXPECT_EQ(moba_error(setup, 11, DType::kFloat32), "");
  setup.kv_heads = 1;
  EXPECT_EQ(moba_error(setup, 12, DType::kFloat32), "");
}

TEST(Moba, AGroupThatChoosesTogetherUsesTheSumOfItsScores) {
  MobaSetup setup = setup_of({100}, 8, 3, 4);
  setup.kv_heads = 2;
  setup.options.share_in_group = true;
  EXPECT_EQ(moba_error(setup, 13, DType::kFloat32), "");
  const auto run = run_moba<float>(setup, random_numbers(setup, 13));
  const Choices choices = run.choices(setup);
  EXPECT_EQ(choices[0], choices[1]);
  EXPECT_EQ(choices[2], choices[3]);
  EXPECT_NE(choices[0], choices[2]);
}

TEST(Moba, AForcedNeighbourIsAlwaysChosen) {
  MobaSetup setup = setup_of({120}, 8, 3);
  setup.options.force_neighbour = true;
  EXPECT_EQ(moba_error(setup, 14, DType::kFloat32), "");
  const auto run = run_moba<float>(setup, random_numbers(setup, 14));
  for (std::int64_t row = 8; row < 120; ++row) {
    const auto blocks = run.selection.blocks_of(0, row);
    const auto current = static_cast<std::int32_t>(row / 8);
    EXPECT_TRUE(std::binary_search(blocks.begin(), blocks.end(), current - 1)) << row;
    EXPECT_LE(blocks.size(), 3U);
  }
  setup.options.top_k = 2;  // the current block and the neighbour: nothing is left to the gate
  EXPECT_EQ(moba_error(setup, 15, DType::kFloat32), "");
}

TEST(Moba, WithoutAMaskAllBlocksAreCandidatesAndTheShortOneHasItsOwnMean) {
  MobaSetup setup = setup_of({60, 21}, 8, 2);
  setup.causal = false;
  EXPECT_EQ(moba_error(setup, 16, DType::kFloat32), "");
  setup.query_lengths = {10, 80};
  setup.key_lengths = {75, 30};
  EXPECT_EQ(moba_error(setup, 17, DType::kFloat32), "");
}

TEST(Moba, SoftcapBoundsLogitsInBothDirections) {
  MobaSetup setup = setup_of({90}, 8, 3);
  setup.softcap = 1.5;
  EXPECT_EQ(moba_error(setup, 18, DType::kFloat32), "");
  EXPECT_EQ(moba_error(setup, 19, DType::kFloat64), "");
}

TEST(Moba, ScaleChangesWeightsButNotChoices) {
  MobaSetup setup = setup_of({90}, 8, 3);
  const MobaNumbers numbers = random_numbers(setup, 20);
  const auto plain = run_moba<float>(setup, numbers);
  setup.scale = 0.01;
  EXPECT_EQ(moba_error(setup, 20, DType::kFloat32), "");
  const auto scaled = run_moba<float>(setup, numbers);
  EXPECT_EQ(plain.choices(setup), scaled.choices(setup));
  EXPECT_NE(plain.out, scaled.out);
}

// Full attention of the same tensors.
template <typename T>
MobaRun<T> run_full(const MobaSetup& setup, const MobaNumbers& numbers) {
  const auto cu_q = setup.cu_q();
  const auto cu_k = setup.cu_k();
  const AttentionProblem problem = problem_of(setup, type_of<T>(), cu_q, cu_k);
  const auto q = elements<T>(numbers.q);
  const auto k = elements<T>(numbers.k);
  const auto v = elements<T>(numbers.v);
  const auto dout = elements<T>(numbers.dout);
  MobaRun<T> run;
  run.out.resize(q.size());
  run.dq.resize(q.size());
  run.dk.resize(k.size());
  run.dv.resize(k.size());
  run.lse.resize(static_cast<std::size_t>(setup.heads * setup.total_q()));
  run.status = attention_forward(
      problem, {{q.data()}, {k.data()}, {v.data()}}, {{run.out.data()}, run.lse.data()});
  if (run.status.ok()) {
    run.status = attention_backward(
        problem,
        {{q.data()}, {k.data()}, {v.data()}},
        {{run.out.data()},
         run.lse.data(),
         {dout.data()},
         nullptr,
         {run.dq.data()},
         {run.dk.data()},
         {run.dv.data()}});
  }
  return run;
}

template <typename T>
void expect_same_bits(const MobaRun<T>& a, const MobaRun<T>& b) {
  EXPECT_EQ(a.out, b.out);
  EXPECT_EQ(a.lse, b.lse);
  EXPECT_EQ(a.dq, b.dq);
  EXPECT_EQ(a.dk, b.dk);
  EXPECT_EQ(a.dv, b.dv);
}

TEST(Moba, WithAllBlocksChosenIsFullAttentionBitForBit) {
  for (const std::int64_t block : {8, 32, 100}) {  // divides the length, does not, is longer
    for (const bool causal : {true, false}) {
      MobaSetup setup = setup_of({96, 0, 41}, block, static_cast<int>(96 / block + 1), 4);
      setup.kv_heads = 2;
      setup.causal = causal;
      const MobaNumbers numbers = random_numbers(setup, 28);
      expect_same_bits(run_moba<float>(setup, numbers), run_full<float>(setup, numbers));
      expect_same_bits(
          run_moba<std::uint16_t>(setup, numbers), run_full<std::uint16_t>(setup, numbers));
    }
  }
}

TEST(Moba, DenseSequencesOfAMixedPackAreFullAttentionBitForBit) {
  const MobaSetup setup = setup_of({20, 150, 24, 3, 100, 17}, 8, 3);
  const MobaNumbers numbers = random_numbers(setup, 29);
  const auto run = run_moba<float>(setup, numbers);
  const auto full = run_full<float>(setup, numbers);
  const std::int64_t width = std::int64_t{setup.heads} * setup.dim;
  for (const auto& [begin, end] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 20}, {170, 197}, {297, 314}}) {
    for (const auto member :
         {&MobaRun<float>::out, &MobaRun<float>::dq, &MobaRun<float>::dk, &MobaRun<float>::dv}) {
      EXPECT_EQ(
          rows_of(doubles(run.*member), begin, end, width),
          rows_of(doubles(full.*member), begin, end, width));
    }
    EXPECT_EQ(
        run.lse[static_cast<std::size_t>(314 + begin)],
        full.lse[static_cast<std::size_t>(314 + begin)]);
  }
  EXPECT_EQ(moba_error(setup, 29, DType::kFloat32), "");
}

// The sparse kernels on choices of every visible block, which the dispatch would not give them.
TEST(Moba, QueriesThatChoseEveryBlockMatchFullAttention) {
  const MobaSetup setup = setup_of({600}, 100, 5, 2, 64);  // six blocks: the last one has a choice
  const MobaNumbers numbers = random_numbers(setup, 30);
  const auto run = run_moba<float>(setup, numbers);
  const auto full = run_full<float>(setup, numbers);
  const std::int64_t width = std::int64_t{setup.heads} * setup.dim;
  // 8 u (1 + |logit|) |v| with logits below 8 and values below 5.
  EXPECT_LE(
      distance(rows_of(doubles(run.out), 0, 500, width), rows_of(doubles(full.out), 0, 500, width)),
      5e-6);
  EXPECT_LE(
      distance(rows_of(doubles(run.dq), 0, 500, width), rows_of(doubles(full.dq), 0, 500, width)),
      5e-6);
}

TEST(Moba, TopOneIsBlockDiagonalAndNotFullAttention) {
  const MobaSetup setup = setup_of({70}, 16, 1);
  EXPECT_EQ(moba_error(setup, 21, DType::kFloat32), "");
  const MobaNumbers numbers = random_numbers(setup, 21);
  const auto packed = run_moba<float>(setup, numbers);
  // The same tokens as sequences of one block each.
  const MobaSetup cut = setup_of({16, 16, 16, 16, 6}, 16, 2);
  const auto alone = run_moba<float>(cut, numbers);
  EXPECT_LE(distance(packed.out, alone.out), 1e-6);
  MobaSetup full = setup;
  full.options.top_k = 5;
  EXPECT_GT(distance(packed.out, run_moba<float>(full, numbers).out), 1e-2);
}

TEST(Moba, TopKCountsTheCurrentBlock) {
  const MobaSetup setup = setup_of({100}, 8, 3, 1);
  const auto run = run_moba<float>(setup, random_numbers(setup, 22));
  for (std::int64_t row = 0; row < 100; ++row) {
    const auto blocks = run.selection.blocks_of(0, row);
    EXPECT_EQ(blocks.size(), static_cast<std::size_t>(std::min<std::int64_t>(3, row / 8 + 1)));
    EXPECT_EQ(blocks.back(), row / 8);
  }
}

TEST(Moba, ChoicesAreThoseOfAnFp64Gate) {
  const MobaSetup setup = setup_of({600}, 16, 4, 2, 64);
  const MobaNumbers numbers = rounded_to<std::uint16_t>(random_numbers(setup, 23));
  const auto run = run_moba<std::uint16_t>(setup, numbers);
  EXPECT_EQ(run.choices(setup), oracle_choices(setup, numbers));
}

TEST(Moba, TiesGoToTheLargerBlock) {
  MobaSetup setup = setup_of({160}, 8, 3, 1, 8);
  MobaNumbers numbers = random_numbers(setup, 24);
  // Small integers: sums and means of 8 are exact, so equal scores are equal bit for bit.
  std::int64_t i = 0;
  for (double& x : numbers.q) {
    x = static_cast<double>(++i * 7 % 3) - 1;
  }
  for (double& x : numbers.k) {
    x = static_cast<double>(++i * 5 % 3) - 1;
  }
  const Choices expected = oracle_choices(setup, numbers);
  for (const int threads : {1, 2, 3}) {
    setup.threads = threads;
    EXPECT_EQ(run_moba<float>(setup, numbers).choices(setup), expected);
    EXPECT_EQ(run_moba<std::uint16_t>(setup, numbers).choices(setup), expected);
    EXPECT_EQ(run_moba<double>(setup, numbers).choices(setup), expected);
  }
  // All scores equal: the most recent past block.
  std::fill(numbers.k.begin(), numbers.k.end(), 1);
  const auto run = run_moba<float>(setup, numbers);
  EXPECT_EQ(run.selection.blocks_of(0, 159), (std::vector<std::int32_t>{17, 18, 19}));
}

TEST(Moba, ASequenceGivesTheSameBitsAloneAndPacked) {
  const std::vector<std::int64_t> lengths{70, 0, 133, 16};
  MobaSetup setup = setup_of(lengths, 16, 3);
  const MobaNumbers numbers = random_numbers(setup, 25);
  const auto packed = run_moba<float>(setup, numbers);
  ASSERT_TRUE(packed.status.ok()) << packed.status.to_string();
  const std::int64_t width = std::int64_t{setup.heads} * setup.dim;
  std::int64_t begin = 0;
  for (const std::int64_t length : lengths) {
    const MobaSetup own = setup_of({length}, 16, 3);
    const std::int64_t end = begin + length;
    const MobaNumbers part{
        rows_of(numbers.q, begin, end, width),
        rows_of(numbers.k, begin, end, width),
        rows_of(numbers.v, begin, end, width),
        rows_of(numbers.dout, begin, end, width)};
    const auto alone = run_moba<float>(own, part);
    EXPECT_EQ(doubles(alone.out), rows_of(doubles(packed.out), begin, end, width));
    EXPECT_EQ(doubles(alone.dq), rows_of(doubles(packed.dq), begin, end, width));
    EXPECT_EQ(doubles(alone.dk), rows_of(doubles(packed.dk), begin, end, width));
    EXPECT_EQ(doubles(alone.dv), rows_of(doubles(packed.dv), begin, end, width));
    begin = end;
  }
}

TEST(Moba, PrefillInChunksAndDecodingGiveTheBitsOfOnePrefill) {
  const MobaSetup whole = setup_of({150}, 16, 3);
  MobaNumbers numbers = random_numbers(whole, 26);
  numbers.dout.clear();
  const auto once = run_moba<float>(whole, numbers);
  const std::int64_t width = std::int64_t{whole.heads} * whole.dim;
  std::int64_t begin = 0;
  for (const std::int64_t end : {37, 64, 65, 130, 149, 150}) {
    MobaSetup chunk = whole;
    chunk.query_lengths.assign(1, end - begin);
    chunk.key_lengths.assign(1, end);
    const MobaNumbers part{
        rows_of(numbers.q, begin, end, width),
        rows_of(numbers.k, 0, end, width),
        rows_of(numbers.v, 0, end, width),
        {}};
    // Means kept beside the cache; those of complete blocks never change.
    const auto cu_q = chunk.cu_q();
    const auto cu_k = chunk.cu_k();
    const auto k = elements<float>(part.k);
    std::vector<float> means(static_cast<std::size_t>(
        chunk.kv_heads * moba_block_count(cu_k, chunk.options.block) * chunk.dim));
    const AttentionProblem problem = problem_of(chunk, DType::kFloat32, cu_q, cu_k);
    ASSERT_TRUE(moba_block_means(problem, chunk.options, {k.data()}, means, {}).ok());
    const auto run = run_moba<float>(chunk, part, {}, means);
    ASSERT_TRUE(run.status.ok()) << run.status.to_string();
    if (moba_block_count(cu_k, chunk.options.block) > chunk.options.top_k) {
      EXPECT_EQ(doubles(run.out), rows_of(doubles(once.out), begin, end, width)) << end;
    } else {  // the dense kernel's order of sums
      EXPECT_LE(distance(doubles(run.out), rows_of(doubles(once.out), begin, end, width)), 1e-5);
    }
    for (std::int64_t row = 0; row < end - begin; ++row) {
      EXPECT_EQ(run.selection.blocks_of(1, row), once.selection.blocks_of(1, begin + row));
    }
    begin = end;
  }
}

// A step appends a key: only the mean of the last block is computed, from its own keys.
TEST(Moba, DecodingKeepsTheMeansOfCompleteBlocks) {
  const MobaSetup whole = setup_of({70}, 8, 3, 1);
  MobaNumbers numbers = random_numbers(whole, 103);
  numbers.dout.clear();
  const auto once = run_moba<float>(whole, numbers);
  const auto k = elements<float>(numbers.k);
  std::vector<float> means;
  for (std::int64_t keys = 1; keys <= 70; ++keys) {
    const std::int64_t first = (keys - 1) / 8 * 8;
    const std::vector<std::int64_t> last_block{0, keys - first};
    const AttentionProblem problem = problem_of(whole, DType::kFloat32, last_block, last_block);
    means.resize(static_cast<std::size_t>((keys + 7) / 8 * 16));
    const auto mean = std::span(means).last(16);
    ASSERT_TRUE(moba_block_means(problem, whole.options, {k.data() + first * 16}, mean, {}).ok());
    MobaSetup step = whole;
    step.query_lengths.assign(1, 1);
    step.key_lengths.assign(1, keys);
    step.options.whole_length = 70;
    const MobaNumbers part{
        rows_of(numbers.q, keys - 1, keys, 16),
        rows_of(numbers.k, 0, keys, 16),
        rows_of(numbers.v, 0, keys, 16),
        {}};
    const auto run = run_moba<float>(step, part, {}, means);
    ASSERT_TRUE(run.status.ok()) << run.status.to_string();
    EXPECT_EQ(doubles(run.out), rows_of(doubles(once.out), keys - 1, keys, 16)) << keys;
  }
}

TEST(Moba, QueriesBeforeTheFirstKeySeeNothing) {
  MobaSetup setup = setup_of({90, 70}, 8, 3);
  setup.key_lengths = {60, 70};
  EXPECT_EQ(moba_error(setup, 27, DType::kFloat32), "");
  const auto run = run_moba<float>(setup, random_numbers(setup, 27));
  EXPECT_EQ(run.out.front(), 0.0F);
  EXPECT_EQ(run.lse.front(), -std::numeric_limits<float>::infinity());
  EXPECT_EQ(run.dq.front(), 0.0F);
}

}  // namespace
}  // namespace muster::kernels::test
