// SPDX-License-Identifier: Apache-2.0
// Block attention in parts: the gate alone, then attention over ranges of keys.
#include "tests/unit/kernels/moba/oracle.h"

#include <algorithm>
#include <cmath>

namespace muster::kernels::test {
namespace {

constexpr double kUnit = 0x1p-24;

MobaSetup part_setup(
    std::int64_t queries, std::int64_t keys, std::int64_t block, int top_k, int dim = 16) {
  MobaSetup setup;
  setup.query_lengths = {queries};
  setup.key_lengths = {keys};
  setup.options = {block, top_k};
  setup.heads = 4;
  setup.kv_heads = 2;
  setup.dim = dim;
  return setup;
}

// The tensors of a call as the kernels take them.
struct PartCall {
  PartCall(const MobaSetup& of, std::uint64_t seed)
      : setup(of),
        numbers(random_numbers(of, seed)),
        cu_q(of.cu_q()),
        cu_k(of.cu_k()),
        q(elements<float>(numbers.q)),
        k(elements<float>(numbers.k)),
        v(elements<float>(numbers.v)),
        dout(elements<float>(numbers.dout)),
        problem(problem_of(setup, DType::kFloat32, cu_q, cu_k)),
        means(static_cast<std::size_t>(
            setup.kv_heads * moba_block_count(cu_k, setup.options.block) * setup.dim)) {
    EXPECT_TRUE(moba_block_means(problem, setup.options, {k.data()}, means, {}).ok());
    out.assign(q.size(), 0);
    lse.assign(
        static_cast<std::size_t>(setup.heads * setup.total_q()),
        -std::numeric_limits<float>::infinity());
    dq.assign(q.size(), 0);
    dk.assign(k.size(), 0);
    dv.assign(k.size(), 0);
  }

  Status choose() { return moba_choose(problem, setup.options, {q.data()}, means, selection, {}); }

  [[nodiscard]] std::size_t key_at(std::int64_t key) const {
    return static_cast<std::size_t>(key * setup.kv_heads * setup.dim);
  }

  // Merges the keys [begin, end) into out and lse.
  void attend(std::int64_t begin, std::int64_t end, const MobaPartStatistics& statistics = {}) {
    std::vector<float> part(q.size(), 1e30F);
    std::vector<float> part_lse(lse.size(), 1e30F);
    const Status status = moba_attend_range(
        problem,
        setup.options,
        {begin, end},
        {{q.data()}, {k.data() + key_at(begin)}, {v.data() + key_at(begin)}},
        selection,
        {{part.data()}, part_lse.data()},
        statistics);
    ASSERT_TRUE(status.ok()) << status.to_string();
    merge_partial_attention(
        setup.total_q(),
        setup.heads,
        setup.dim,
        out.data(),
        lse.data(),
        part.data(),
        part_lse.data());
  }

  void attend_backward(std::int64_t begin, std::int64_t end) {
    std::vector<float> part(q.size(), 1e30F);
    const Status status = moba_attend_range_backward(
        problem,
        setup.options,
        {begin, end},
        {{q.data()}, {k.data() + key_at(begin)}, {v.data() + key_at(begin)}},
        {{out.data()},
         lse.data(),
         {dout.data()},
         nullptr,
         {part.data()},
         {dk.data() + key_at(begin)},
         {dv.data() + key_at(begin)}},
        selection);
    ASSERT_TRUE(status.ok()) << status.to_string();
    std::transform(dq.begin(), dq.end(), part.begin(), dq.begin(), std::plus<>());
  }

  MobaSetup setup;
  MobaNumbers numbers;
  std::vector<std::int64_t> cu_q;
  std::vector<std::int64_t> cu_k;
  std::vector<float> q;
  std::vector<float> k;
  std::vector<float> v;
  std::vector<float> dout;
  AttentionProblem problem;
  std::vector<float> means;
  MobaSelection selection;
  std::vector<float> out;
  std::vector<float> lse;
  std::vector<float> dq;
  std::vector<float> dk;
  std::vector<float> dv;
};

// Ranges that end inside blocks, at their ends, and where there is nothing.
void expect_parts_are_the_whole(const MobaSetup& setup, const std::vector<std::int64_t>& cuts) {
  SCOPED_TRACE(testing::Message() << setup);
  PartCall call(setup, 81);
  const auto whole = run_moba<float>(setup, call.numbers);
  ASSERT_TRUE(whole.status.ok()) << whole.status.to_string();
  ASSERT_TRUE(call.choose().ok());
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    call.attend(cuts[i], cuts[i + 1]);
  }
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    call.attend_backward(cuts[i], cuts[i + 1]);
  }
  for (std::int64_t row = 0; row < setup.total_q(); ++row) {
    EXPECT_EQ(call.selection.blocks_of(3, row), whole.selection.blocks_of(3, row));
  }
  // 8 u (1 + |S|) of the largest value, logits below 9; a gradient is a sum of such terms.
  const double limit = 80 * kUnit;
  EXPECT_LE(distance(call.out, whole.out), limit);
  for (std::size_t i = 0; i < call.lse.size(); ++i) {
    EXPECT_TRUE(
        call.lse[i] == whole.lse[i] ||
        std::abs(static_cast<double>(call.lse[i] - whole.lse[i])) <= limit);
  }
  EXPECT_LE(distance(call.dq, whole.dq), 2 * limit);
  EXPECT_LE(distance(call.dk, whole.dk), 2 * limit);
  EXPECT_LE(distance(call.dv, whole.dv), 2 * limit);
}

TEST(MobaPart, RangesOfKeysMergedAreTheWhole) {
  expect_parts_are_the_whole(part_setup(150, 150, 16, 3), {0, 150});
  expect_parts_are_the_whole(part_setup(150, 150, 16, 3), {0, 5, 5, 16, 33, 100, 149, 150});
  expect_parts_are_the_whole(part_setup(40, 150, 16, 3), {0, 70, 120, 150});
  expect_parts_are_the_whole(part_setup(90, 60, 8, 2), {0, 21, 60});
  MobaSetup setup = part_setup(70, 100, 16, 2);
  setup.causal = false;
  expect_parts_are_the_whole(setup, {0, 40, 100});
  setup.softcap = 2;
  expect_parts_are_the_whole(setup, {0, 48, 50, 100});
  setup = part_setup(150, 150, 16, 3);
  setup.options.share_in_group = true;
  expect_parts_are_the_whole(setup, {0, 55, 150});
  setup.options.share_in_group = false;
  setup.options.force_neighbour = true;
  setup.threads = 3;
  expect_parts_are_the_whole(setup, {0, 55, 150});
}

TEST(MobaPart, RangesOfALongSequenceShareTheWorkAmongRangesOfDq) {
  MobaSetup setup = part_setup(4200, 4200, 64, 3, 8);
  setup.heads = setup.kv_heads = 1;
  setup.threads = 2;
  expect_parts_are_the_whole(setup, {0, 1000, 1001, 3333, 4200});
}

// The sparse kernels where every block is chosen, which moba_forward gives to the dense ones: the
// sequence is said to be longer than it is.
TEST(MobaPart, SparseKernelsOnAllBlocksAreFullAttention) {
  for (const std::int64_t block : {30, 32, 47}) {  // divides 150, does not
    MobaSetup setup = part_setup(150, 150, block, 5, 64);
    setup.options.whole_length = 6 * block;
    MobaSetup dense = setup;
    dense.options.whole_length = 0;
    const MobaNumbers numbers = random_numbers(setup, 82);
    const auto sparse = run_moba<float>(setup, numbers);
    const auto full = run_moba<float>(dense, numbers);
    EXPECT_EQ(sparse.choices(setup), full.choices(dense));
    EXPECT_NE(sparse.dk, full.dk) << "both went through the same kernel";
    const double limit = 80 * kUnit;
    EXPECT_LE(distance(sparse.out, full.out), limit);
    EXPECT_LE(distance(sparse.lse, full.lse), limit);
    EXPECT_LE(distance(sparse.dq, full.dq), 2 * limit);
    EXPECT_LE(distance(sparse.dk, full.dk), 2 * limit);
    EXPECT_LE(distance(sparse.dv, full.dv), 2 * limit);
    // bf16: sums are fp32 in both, weights are rounded in one of them.
    const auto half = run_moba<std::uint16_t>(setup, numbers);
    const auto full_half = run_moba<std::uint16_t>(dense, numbers);
    EXPECT_LE(distance(doubles(half.out), doubles(full_half.out)), 0x1p-7);
    EXPECT_LE(distance(doubles(half.dq), doubles(full_half.dq)), 0x1p-6);
    EXPECT_LE(distance(doubles(half.dk), doubles(full_half.dk)), 0x1p-6);
    EXPECT_LE(distance(doubles(half.dv), doubles(full_half.dv)), 0x1p-6);
  }
}

TEST(MobaPart, StatisticsOfRangesAreThoseOfTheWhole) {
  const MobaSetup setup = part_setup(150, 150, 16, 3);
  PartCall call(setup, 83);
  call.k[call.key_at(70)] = std::numeric_limits<float>::quiet_NaN();
  call.v[call.key_at(10) + 20] = std::numeric_limits<float>::infinity();
  ASSERT_TRUE(moba_block_means(call.problem, setup.options, {call.k.data()}, call.means, {}).ok());
  StatisticsStorage whole(setup);
  MobaSelection selection;
  ASSERT_TRUE(moba_forward(
                  call.problem,
                  setup.options,
                  {{call.q.data()}, {call.k.data()}, {call.v.data()}},
                  {},
                  {{call.out.data()}, call.lse.data()},
                  selection,
                  whole.spans())
                  .ok());
  StatisticsStorage gate(setup);
  MobaStatistics wanted = gate.spans();
  wanted.selected_max_logit = wanted.norm_bound = {};
  wanted.nonfinite_rows = {};
  ASSERT_TRUE(
      moba_choose(call.problem, setup.options, {call.q.data()}, call.means, call.selection, wanted)
          .ok());
  EXPECT_EQ(gate.gate_bound, whole.gate_bound);
  EXPECT_EQ(gate.gate_margin, whole.gate_margin);
  EXPECT_EQ(gate.gate_margin_rows, whole.gate_margin_rows);
  EXPECT_EQ(gate.nonfinite_scores, whole.nonfinite_scores);
  EXPECT_EQ(gate.block_counts, whole.block_counts);
  EXPECT_EQ(gate.sink_share, whole.sink_share);
  std::vector<float> max_logit(4, -std::numeric_limits<float>::infinity());
  std::vector<std::uint8_t> rows(4 * 150, 0);
  std::fill(call.lse.begin(), call.lse.end(), -std::numeric_limits<float>::infinity());
  for (const auto& [begin, end] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 60}, {60, 75}, {75, 150}}) {
    call.attend(begin, end, {max_logit, rows});
  }
  EXPECT_EQ(max_logit, whole.selected_max_logit);
  for (std::size_t h = 0; h < 4; ++h) {
    const auto first = rows.begin() + static_cast<std::ptrdiff_t>(h * 150);
    EXPECT_EQ(std::count(first, first + 150, 1), whole.nonfinite_rows[h]) << h;
    EXPECT_GT(whole.nonfinite_rows[h], 0);
  }
}

TEST(MobaPart, CallsThatBreakARuleAreNamed) {
  const auto attend = [](PartCall& call, MobaKeyRange range) {
    return moba_attend_range(
               call.problem,
               call.setup.options,
               range,
               {{call.q.data()}, {call.k.data()}, {call.v.data()}},
               call.selection,
               {{call.out.data()}, call.lse.data()},
               {})
        .to_string();
  };
  const auto names = [](const std::string& text, const char* what) {
    return text.find(what) != std::string::npos;
  };
  PartCall call(part_setup(150, 150, 16, 3), 84);
  EXPECT_PRED2(names, attend(call, {0, 150}), "selection must be the one that the forward call");
  ASSERT_TRUE(call.choose().ok());
  EXPECT_PRED2(names, attend(call, {0, 151}), "got [0, 151)");
  EXPECT_PRED2(names, attend(call, {-1, 3}), "got [-1, 3)");
  EXPECT_PRED2(names, attend(call, {9, 3}), "got [9, 3)");
  call.problem.type = DType::kBFloat16;
  EXPECT_PRED2(names, attend(call, {0, 150}), "type must be fp32 or fp64");
  PartCall dense(part_setup(40, 40, 16, 3), 84);
  ASSERT_TRUE(dense.choose().ok());
  EXPECT_PRED2(names, attend(dense, {0, 40}), "more than top_k blocks");
  EXPECT_TRUE(std::all_of(call.out.begin(), call.out.end(), [](float x) { return x == 0; }));
  StatisticsStorage storage(call.setup);
  const Status status = moba_choose(
      dense.problem,
      dense.setup.options,
      {dense.q.data()},
      dense.means,
      dense.selection,
      {.selected_max_logit = storage.selected_max_logit,
       .gate_bound = {},
       .norm_bound = {},
       .nonfinite_rows = {},
       .nonfinite_scores = {},
       .block_counts = {},
       .sink_share = {},
       .gate_margin = {},
       .gate_margin_rows = {}});
  EXPECT_PRED2(names, status.to_string(), "selected_max_logit, norm_bound and nonfinite_rows");
}

}  // namespace
}  // namespace muster::kernels::test
