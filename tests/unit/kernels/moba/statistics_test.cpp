// SPDX-License-Identifier: Apache-2.0
// Statistics of block attention, its gradient coverage under a loss mask, and invalid arguments.
#include "tests/unit/kernels/moba/oracle.h"

#include <algorithm>
#include <cmath>

namespace muster::kernels::test {
namespace {

MobaSetup shared_keys_setup(std::vector<std::int64_t> lengths, std::int64_t block, int top_k) {
  MobaSetup setup;
  setup.query_lengths = std::move(lengths);
  setup.options = {block, top_k};
  setup.heads = 2;
  setup.kv_heads = 1;
  return setup;
}

TEST(MobaStatistics, TheMaximumIsExactOverAttendedPairs) {
  for (const int dim : {64, 128}) {  // the scale is applied once
    MobaSetup setup = shared_keys_setup({200, 30, 0}, 16, 3);
    setup.dim = dim;
    const MobaNumbers numbers = random_numbers(setup, 61);
    StatisticsStorage storage(setup);
    const auto run = run_moba<float>(setup, numbers, storage.spans());
    const OracleResult expected = oracle_attention(setup, numbers, run.choices(setup));
    for (std::size_t h = 0; h < 2; ++h) {
      EXPECT_NEAR(storage.selected_max_logit[h], expected.max_logit[h], 2e-6);
    }
  }
}

TEST(MobaStatistics, TheMaximumOfNegativeLogitsIsNegativeAndOfNothingMinusInfinity) {
  MobaSetup setup = shared_keys_setup({40}, 8, 2);
  MobaNumbers numbers = random_numbers(setup, 62);
  std::fill(numbers.q.begin(), numbers.q.end(), 1);
  std::fill(numbers.k.begin(), numbers.k.end(), -1);
  StatisticsStorage storage(setup);
  ASSERT_TRUE(run_moba<float>(setup, numbers, storage.spans()).status.ok());
  EXPECT_EQ(storage.selected_max_logit[0], -4);
  const MobaSetup empty = shared_keys_setup({0}, 8, 2);
  StatisticsStorage nothing(empty);
  ASSERT_TRUE(run_moba<float>(empty, random_numbers(empty, 62), nothing.spans()).status.ok());
  EXPECT_EQ(nothing.selected_max_logit[0], -std::numeric_limits<float>::infinity());
  EXPECT_EQ(nothing.nonfinite_rows[0], 0);
}

TEST(MobaStatistics, TheMaximumIsTakenBeforeSoftcap) {
  MobaSetup setup = shared_keys_setup({100}, 8, 3);
  const MobaNumbers numbers = random_numbers(setup, 63);
  StatisticsStorage plain(setup);
  ASSERT_TRUE(run_moba<float>(setup, numbers, plain.spans()).status.ok());
  setup.softcap = 0.5;
  StatisticsStorage capped(setup);
  ASSERT_TRUE(run_moba<float>(setup, numbers, capped.spans()).status.ok());
  EXPECT_EQ(plain.selected_max_logit, capped.selected_max_logit);
}

TEST(MobaStatistics, GateBoundAndSelectedMaximumAndNormBoundAreOrdered) {
  const MobaSetup setup = shared_keys_setup({300}, 16, 3);
  const MobaNumbers numbers = random_numbers(setup, 64);
  StatisticsStorage storage(setup);
  ASSERT_TRUE(run_moba<float>(setup, numbers, storage.spans()).status.ok());
  MobaSetup full = setup;
  full.options.top_k = 100;
  const OracleResult all = oracle_attention(full, numbers, oracle_choices(full, numbers));
  for (std::size_t h = 0; h < 2; ++h) {
    EXPECT_LE(storage.gate_bound[h], all.max_logit[h] + 1e-5);
    EXPECT_LE(storage.selected_max_logit[h], all.max_logit[h] + 1e-5);
    EXPECT_GE(storage.norm_bound[h], all.max_logit[h]);
    EXPECT_TRUE(std::isfinite(storage.gate_bound[h]));
  }
  // Keys all the same: the mean is the key, the bound is the maximum of past blocks.
  MobaNumbers same = numbers;
  for (std::size_t i = 0; i < same.k.size(); ++i) {
    same.k[i] = same.k[i % 16];
  }
  ASSERT_TRUE(run_moba<float>(setup, same, storage.spans()).status.ok());
  EXPECT_NEAR(storage.gate_bound[0], storage.selected_max_logit[0], 1.0);
}

TEST(MobaStatistics, CountsSinkShareAndMarginAreThoseOfTheChoices) {
  const MobaSetup setup = shared_keys_setup({130, 20, 95}, 8, 3);  // the second one is dense
  const MobaNumbers numbers = random_numbers(setup, 65);
  StatisticsStorage storage(setup);
  const auto run = run_moba<float>(setup, numbers, storage.spans());
  const Choices choices = run.choices(setup);
  const std::size_t most = 17;  // blocks of the longest sequence
  for (std::size_t h = 0; h < 2; ++h) {
    std::vector<std::int64_t> counts(most, 0);
    double past = 0;
    double sink = 0;
    for (std::size_t token = 0; token < choices[h].size(); ++token) {
      const auto& blocks = choices[h][token];
      for (const std::int32_t block : blocks) {
        ++counts[static_cast<std::size_t>(block)];
        past += block == blocks.back() ? 0 : 1;
        sink += block == 0 && block != blocks.back() ? 1 : 0;
      }
    }
    EXPECT_TRUE(std::equal(
        counts.begin(),
        counts.end(),
        storage.block_counts.begin() + static_cast<std::ptrdiff_t>(h * most)));
    EXPECT_DOUBLE_EQ(storage.sink_share[h], sink / past);
    double margin = 0;
    double rows = 0;
    for (const std::size_t sequence : {std::size_t{0}, std::size_t{2}}) {
      const std::int64_t begin = sequence == 0 ? 0 : 150;
      for (std::int64_t row = 24; row < setup.query_lengths[sequence]; ++row) {
        Values scores;
        for (std::int64_t b = 0; b < row / 8; ++b) {
          scores.push_back(oracle_score(setup, numbers, static_cast<int>(h), sequence, row, b));
        }
        std::sort(scores.rbegin(), scores.rend());
        static_cast<void>(begin);
        margin += scores[1] - scores[2];
        ++rows;
      }
    }
    EXPECT_NEAR(storage.gate_margin[h], margin / rows, 1e-5);
  }
}

TEST(MobaStatistics, TheBoundOfAHeadIsItsOwnAlsoIfItsGroupSharesAChoice) {
  MobaSetup setup = shared_keys_setup({130, 95}, 8, 3);
  const MobaNumbers numbers = random_numbers(setup, 65);
  StatisticsStorage alone(setup);
  ASSERT_TRUE(run_moba<float>(setup, numbers, alone.spans()).status.ok());
  setup.options.share_in_group = true;
  StatisticsStorage shared(setup);
  ASSERT_TRUE(run_moba<float>(setup, numbers, shared.spans()).status.ok());
  EXPECT_EQ(shared.gate_bound, alone.gate_bound);
  EXPECT_NE(alone.gate_bound[0], alone.gate_bound[1]);
}

TEST(MobaStatistics, OneRowWithMoreCandidatesThanChoicesIsEnoughForAMargin) {
  const MobaSetup setup =
      shared_keys_setup({25}, 8, 3);  // row 24 has three past blocks for two choices
  StatisticsStorage storage(setup);
  ASSERT_TRUE(run_moba<float>(setup, random_numbers(setup, 66), storage.spans()).status.ok());
  EXPECT_EQ(storage.gate_margin_rows[0], 1);
  EXPECT_GT(storage.gate_margin[0], 0);
}

TEST(MobaStatistics, WithoutAGateThereIsNoMarginAndNoGateBound) {
  const MobaSetup setup = shared_keys_setup({20}, 8, 3);
  StatisticsStorage storage(setup);
  ASSERT_TRUE(run_moba<float>(setup, random_numbers(setup, 66), storage.spans()).status.ok());
  EXPECT_TRUE(std::isnan(storage.gate_margin[0]));
  EXPECT_EQ(storage.gate_bound[0], -std::numeric_limits<float>::infinity());
  EXPECT_EQ(storage.nonfinite_scores[0], 0);
  EXPECT_EQ(storage.block_counts, (std::vector<std::int64_t>{20, 12, 4, 20, 12, 4}));
}

TEST(MobaStatistics, AskingForThemChangesNoResult) {
  const MobaSetup setup = shared_keys_setup({130, 20}, 8, 3);
  const MobaNumbers numbers = random_numbers(setup, 67);
  StatisticsStorage storage(setup);
  const auto with = run_moba<float>(setup, numbers, storage.spans());
  const auto without = run_moba<float>(setup, numbers);
  EXPECT_EQ(with.out, without.out);
  EXPECT_EQ(with.choices(setup), without.choices(setup));
}

TEST(MobaMeans, AreThoseOfEachBlockAndCountKeysThatAreNoNumbers) {
  const MobaSetup setup = shared_keys_setup({20, 0, 9}, 8, 2);
  MobaNumbers numbers = random_numbers(setup, 68);
  numbers.k[3 * 16 + 2] = std::numeric_limits<double>::infinity();
  const auto cu = setup.cu_q();
  EXPECT_EQ(moba_block_count(cu, 8), 5);
  const auto k = elements<float>(numbers.k);
  std::vector<float> means(5 * 16);
  std::vector<std::int64_t> nonfinite(1, -1);
  const AttentionProblem problem = problem_of(setup, DType::kFloat32, cu, cu);
  ASSERT_TRUE(moba_block_means(problem, setup.options, {k.data()}, means, nonfinite).ok());
  EXPECT_EQ(nonfinite[0], 1);
  EXPECT_TRUE(std::isinf(means[2]));
  double sum = 0;
  for (std::size_t token = 16; token < 20; ++token) {
    sum += static_cast<double>(k[token * 16 + 5]);
  }
  EXPECT_NEAR(means[2 * 16 + 5], sum / 4, 1e-7);
  EXPECT_EQ(means[4 * 16 + 7], k[28 * 16 + 7]);  // a block of one key
}

TEST(MobaGradientCoverage, CountsTheBlocksThatTokensWithALossAttendTo) {
  MobaSetup setup = shared_keys_setup({400, 24}, 8, 3);
  MobaNumbers numbers = random_numbers(setup, 69);
  std::fill(numbers.dout.begin(), numbers.dout.end(), 0);
  const std::vector<std::size_t> loss_tokens{100, 250, 399, 410};
  for (const std::size_t token : loss_tokens) {
    numbers.dout[token * 32 + 20] = 1e-20;
  }
  const auto run = run_moba<float>(setup, numbers);
  const auto cu = setup.cu_q();
  const auto dout = elements<float>(numbers.dout);
  const AttentionProblem problem = problem_of(setup, DType::kFloat32, cu, cu);
  const GradientCoverage coverage = moba_gradient_coverage(problem, run.selection, {dout.data()});
  EXPECT_EQ(coverage.queries, 424);
  EXPECT_EQ(coverage.queries_reached, 4);
  std::vector<char> blocks(53, 0);
  const Choices choices = run.choices(setup);
  for (const std::size_t token : loss_tokens) {
    for (std::size_t h = 0; h < 2; ++h) {
      for (const std::int32_t block : choices[h][token]) {
        blocks[static_cast<std::size_t>(block) + (token >= 400 ? 50 : 0)] = 1;
      }
    }
  }
  EXPECT_EQ(coverage.blocks, 53);
  EXPECT_EQ(coverage.blocks_reached, std::count(blocks.begin(), blocks.end(), 1));
}

TEST(MobaGradientCoverage, AZeroOfBf16IsNoGradientWhateverItsSign) {
  const MobaSetup setup = shared_keys_setup({40}, 8, 3);
  const auto run = run_moba<float>(setup, random_numbers(setup, 71));
  std::vector<std::uint16_t> dout(40 * 32, 0x8000U);
  dout[7 * 32 + 31] = 0x8001U;  // the smallest one, of the second head
  const auto cu = setup.cu_q();
  const AttentionProblem problem = problem_of(setup, DType::kBFloat16, cu, cu);
  const auto coverage = moba_gradient_coverage(problem, run.selection, {dout.data()});
  EXPECT_EQ(coverage.queries_reached, 1);
  EXPECT_EQ(coverage.blocks_reached, 1);
}

TEST(MobaGradientCoverage, FallsWithASparseLossMaskAndIsFullUnderFullAttention) {
  MobaSetup setup = shared_keys_setup({3200}, 16, 3);
  MobaNumbers numbers = random_numbers(setup, 70);
  const auto cu = setup.cu_q();
  const AttentionProblem problem = problem_of(setup, DType::kFloat32, cu, cu);
  const auto share = [&](std::size_t every, int top_k) {
    MobaSetup used = setup;
    used.options.top_k = top_k;
    MobaNumbers forward{numbers.q, numbers.k, numbers.v, {}};
    const auto run = run_moba<float>(used, forward);
    std::vector<float> dout(numbers.q.size(), 0);
    for (std::size_t token = every - 1; token < 3200; token += every) {
      std::fill_n(dout.begin() + static_cast<std::ptrdiff_t>(token * 32), 32, 1.0F);
    }
    const auto found = moba_gradient_coverage(problem, run.selection, {dout.data()});
    return static_cast<double>(found.blocks_reached) / static_cast<double>(found.blocks);
  };
  const double sparse = share(100, 3);
  // 32 tokens of two heads: their own blocks and two past ones each, out of 200.
  EXPECT_LT(sparse, 0.6);
  EXPECT_GT(sparse, 32.0 / 200);
  EXPECT_EQ(share(1, 3), 1);
  EXPECT_EQ(share(100, 200), 1);  // every block is chosen: the last token reaches all
}

TEST(MobaFlops, AreThoseOfThePairsThatAreComputed) {
  MobaSetup setup = shared_keys_setup({64}, 8, 3);
  const auto cu = setup.cu_q();
  const AttentionProblem problem = problem_of(setup, DType::kFloat32, cu, cu);
  // Blocks 0 and 1 of queries have 0 and 8 past keys, the other six 16; 36 own pairs each.
  const double pairs = 8 * 36 + 8 * 8 + 6 * 8 * 16;
  const double scores = 8 * (0 + 1 + 2 + 3 + 4 + 5 + 6 + 7);
  EXPECT_DOUBLE_EQ(moba_flops(problem, setup.options, true), 10 * 32 * pairs);
  EXPECT_DOUBLE_EQ(moba_flops(problem, setup.options, false), 32 * (4 * pairs + 2 * scores));
  MobaOptions all{8, 8};
  EXPECT_DOUBLE_EQ(moba_flops(problem, all, true), attention_flops(problem, true));
  EXPECT_DOUBLE_EQ(moba_flops(problem, all, false), attention_flops(problem, false));
}

// ---- bad arguments ------------------------------------------------------------------------------

struct StatisticsCall {
  MobaSetup setup = shared_keys_setup({40}, 8, 2);
  MobaNumbers numbers = random_numbers(setup, 71);
  std::vector<std::int64_t> cu_q = setup.cu_q();
  std::vector<std::int64_t> cu_k = setup.cu_q();
  std::vector<float> q = elements<float>(numbers.q);
  std::vector<float> k = elements<float>(numbers.k);
  std::vector<float> out = std::vector<float>(q.size(), 5);
  std::vector<float> lse = std::vector<float>(80, 5);
  AttentionProblem problem = problem_of(setup, DType::kFloat32, cu_q, cu_k);
  MobaOptions options = setup.options;
  AttentionInput q_input{q.data()};
  AttentionInput k_input{k.data()};
  AttentionOutput output{out.data()};
  void* lse_data = lse.data();
  std::vector<float> means;
  MobaStatistics statistics;
  MobaSelection selection;

  Status run() {
    return moba_forward(
        problem,
        options,
        {q_input, k_input, k_input},
        means,
        {output, lse_data},
        selection,
        statistics);
  }

  // The call fails with a message that has `words` in it, and writes nothing.
  void expect_refusal(const std::string& words) {
    const Status status = run();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.to_string().find(words), std::string::npos) << status.to_string();
    EXPECT_TRUE(std::all_of(out.begin(), out.end(), [](float x) { return x == 5; }));
    EXPECT_TRUE(std::all_of(lse.begin(), lse.end(), [](float x) { return x == 5; }));
  }
};

TEST(MobaArguments, OfSizesThatCannotBeAreNamed) {
  const auto refuse = [](const char* words, const std::function<void(StatisticsCall&)>& spoil) {
    StatisticsCall call;
    spoil(call);
    call.expect_refusal(words);
  };
  refuse("heads", [](StatisticsCall& c) { c.problem.heads = 0; });
  refuse("kv_heads", [](StatisticsCall& c) { c.problem.kv_heads = 3; });
  refuse("kv_heads", [](StatisticsCall& c) { c.problem.kv_heads = -1; });
  refuse("head_dim", [](StatisticsCall& c) { c.problem.head_dim = 7; });
  refuse("head_dim", [](StatisticsCall& c) { c.problem.head_dim = 257; });
  refuse("scale", [](StatisticsCall& c) { c.problem.scale = std::nan(""); });
  refuse("softcap", [](StatisticsCall& c) { c.problem.softcap = -1; });
  refuse("threads", [](StatisticsCall& c) { c.problem.threads = 0; });
  refuse("threads", [](StatisticsCall& c) { c.problem.threads = 1 << 20; });
  refuse("bias must be null", [](StatisticsCall& c) { c.problem.bias = c.q.data(); });
  refuse("block", [](StatisticsCall& c) { c.options.block = 0; });
  refuse("top_k", [](StatisticsCall& c) { c.options.top_k = 0; });
  refuse("whole_length", [](StatisticsCall& c) { c.options.whole_length = -1; });
  refuse("whole_length", [](StatisticsCall& c) {
    c.options.whole_length = 80;
    c.problem.causal = false;
  });
  refuse("force_neighbour", [](StatisticsCall& c) {
    c.options.force_neighbour = true;
    c.problem.causal = false;
  });
}

TEST(MobaArguments, OfOffsetsAndTensorsThatCannotBeAreNamed) {
  const auto refuse = [](const char* words, const std::function<void(StatisticsCall&)>& spoil) {
    StatisticsCall call;
    spoil(call);
    call.expect_refusal(words);
  };
  refuse("cu_q", [](StatisticsCall& c) { c.problem.cu_q = {}; });
  refuse("cu_q", [](StatisticsCall& c) { c.cu_q[0] = 1; });
  refuse("cu_q[1]", [](StatisticsCall& c) { c.cu_q[1] = -1; });
  refuse("cu_k", [](StatisticsCall& c) {
    c.cu_k.push_back(50);
    c.problem.cu_k = c.cu_k;
  });
  refuse("2^31", [](StatisticsCall& c) { c.cu_q[1] = c.cu_k[1] = std::int64_t{1} << 33; });
  refuse("q must not be null", [](StatisticsCall& c) { c.q_input.data = nullptr; });
  refuse("k must not be null", [](StatisticsCall& c) { c.k_input.data = nullptr; });
  refuse("out must not be null", [](StatisticsCall& c) { c.output.data = nullptr; });
  refuse("lse", [](StatisticsCall& c) { c.lse_data = nullptr; });
  refuse("token_stride", [](StatisticsCall& c) { c.q_input.token_stride = 15; });
  refuse("token_stride", [](StatisticsCall& c) { c.q_input.token_stride = -32; });
  refuse("overlap", [](StatisticsCall& c) { c.output.token_stride = 17; });
  refuse("aligned", [](StatisticsCall& c) {
    c.q_input.data = static_cast<const char*>(c.q_input.data) + 2;
  });
  refuse("overflow", [](StatisticsCall& c) { c.q_input.token_stride = INT64_MAX / 4; });
  refuse("overflow", [](StatisticsCall& c) { c.q_input.head_stride = INT64_MAX / 4; });
  refuse(
      "q must have room for 40 tokens, got 39", [](StatisticsCall& c) { c.q_input.tokens = 39; });
  refuse(
      "k must have room for 40 tokens, got 39", [](StatisticsCall& c) { c.k_input.tokens = 39; });
  refuse(
      "out must have room for 40 tokens, got 39", [](StatisticsCall& c) { c.output.tokens = 39; });
  refuse("lse must be aligned", [](StatisticsCall& c) {
    c.lse_data = static_cast<char*>(c.lse_data) + 1;
  });
  refuse("means", [](StatisticsCall& c) { c.means.resize(3); });
  refuse(
      "gate_bound", [](StatisticsCall& c) { c.statistics.gate_bound = std::span(c.k).first(3); });
}

TEST(MobaArguments, RowsOfDifferentHeadsOfAnInputMayShareMemory) {
  StatisticsCall call;
  call.q_input.token_stride = 17;
  call.q_input.head_stride = 16;
  EXPECT_TRUE(call.run().ok());
}

TEST(MobaArguments, ABlockOfAnySizeIsOneBlock) {
  for (const std::int64_t block : {std::int64_t{41}, std::int64_t{1} << 40, INT64_MAX}) {
    StatisticsCall call;
    call.options.block = block;
    call.options.top_k = 1;
    EXPECT_TRUE(call.run().ok()) << block;
    EXPECT_EQ(call.selection.blocks_of(1, 39), (std::vector<std::int32_t>{0}));
    EXPECT_EQ(moba_block_count(call.cu_k, block), 1);
  }
}

TEST(MobaArguments, ASelectionOfAnotherProblemIsRefused) {
  StatisticsCall call;
  ASSERT_TRUE(call.run().ok());
  std::vector<float> dq(call.q.size(), 5);
  std::vector<float> dk(call.k.size(), 5);
  const auto backward = [&](const MobaSelection& selection, const MobaOptions& options) {
    return moba_backward(
        call.problem,
        options,
        {{call.q.data()}, {call.k.data()}, {call.k.data()}},
        {{call.out.data()},
         call.lse.data(),
         {call.q.data()},
         nullptr,
         {dq.data()},
         {dk.data()},
         {dk.data()}},
        selection);
  };
  const Status empty = backward(MobaSelection(), call.options);
  EXPECT_NE(empty.to_string().find("selection"), std::string::npos) << empty.to_string();
  const Status other = backward(call.selection, {16, 2});
  EXPECT_NE(other.to_string().find("selection"), std::string::npos) << other.to_string();
  call.cu_q[1] = call.cu_k[1] = 39;
  EXPECT_FALSE(backward(call.selection, call.options).ok());
  EXPECT_TRUE(std::all_of(dq.begin(), dq.end(), [](float x) { return x == 5; }));
}

}  // namespace
}  // namespace muster::kernels::test
