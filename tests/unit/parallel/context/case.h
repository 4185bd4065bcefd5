// SPDX-License-Identifier: Apache-2.0
// One attention layer over packed sequences, on one rank and spread over ranks that are threads.
#pragma once

#include "tests/support/counting_communicator.h"
#include "tests/support/deadlines.h"
#include "tests/unit/kernels/attention/fence.h"
#include "tests/unit/kernels/numbers.h"

#include <muster/comm/backends.h>
#include <muster/parallel/context.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace muster::parallel::test {

using namespace kernels::test;  // Numbers and memory, as the tests of the kernels have them.

struct ContextCase {
  std::vector<std::int64_t> lengths{64};
  int heads{2};
  int kv_heads{2};
  int dim{8};
  bool causal{true};
  double softcap{0};
  int ranks{2};
  ShardOrder order{ShardOrder::kContiguous};
  ContextForm form{ContextForm::kAllGather};
  std::optional<kernels::MobaOptions> moba{};
  std::uint64_t seed{1};
  double spread{1};

  [[nodiscard]] std::string name() const {
    std::string text = "lengths";
    for (const auto n : lengths) {
      text += ' ' + std::to_string(n);
    }
    text += ", ranks " + std::to_string(ranks) +
            (order == ShardOrder::kZigzag ? ", zigzag" : ", contiguous") +
            (form == ContextForm::kRing ? ", ring" : ", all-gather") + ", heads " +
            std::to_string(heads) + " of " + std::to_string(kv_heads) +
            (causal ? ", causal" : ", all");
    if (moba) {
      text += ", block " + std::to_string(moba->block) + ", top " + std::to_string(moba->top_k);
    }
    return text + ", seed " + std::to_string(seed);
  }
};

using Floats = std::vector<float>;

struct ContextNumbers {
  explicit ContextNumbers(const ContextCase& c) : cu{0} {
    for (const auto n : c.lengths) {
      cu.push_back(cu.back() + n);
    }
    const std::int64_t queries = cu.back() * c.heads * c.dim;
    const std::int64_t keys = cu.back() * c.kv_heads * c.dim;
    q = cast<float>(normal_values(c.seed, queries, c.spread));
    k = cast<float>(normal_values(c.seed + 1, keys, c.spread));
    v = cast<float>(normal_values(c.seed + 2, keys));
    dout = cast<float>(normal_values(c.seed + 3, queries));
  }

  std::vector<std::int64_t> cu;
  Floats q;
  Floats k;
  Floats v;
  Floats dout;
};

// Statistics of block attention; all begin as something that no call reports.
struct ContextMobaNumbers {
  ContextMobaNumbers() = default;

  explicit ContextMobaNumbers(const ContextCase& c)
      : max_logit(static_cast<std::size_t>(c.heads), 77),
        gate_bound(max_logit),
        norm_bound(max_logit),
        nonfinite_rows(max_logit.size(), 77),
        nonfinite_scores(nonfinite_rows),
        margin_rows(nonfinite_rows),
        sink_share(max_logit.size(), 77),
        margin(sink_share) {
    std::int64_t blocks = 0;
    for (const auto n : c.lengths) {
      blocks = c.moba ? std::max(blocks, (n + c.moba->block - 1) / c.moba->block) : 0;
    }
    block_counts.assign(max_logit.size() * static_cast<std::size_t>(blocks), 77);
  }

  kernels::MobaStatistics spans() {
    return {
        max_logit,
        gate_bound,
        norm_bound,
        nonfinite_rows,
        nonfinite_scores,
        block_counts,
        sink_share,
        margin,
        margin_rows};
  }

  Floats max_logit;
  Floats gate_bound;
  Floats norm_bound;
  std::vector<std::int64_t> nonfinite_rows;
  std::vector<std::int64_t> nonfinite_scores;
  std::vector<std::int64_t> margin_rows;
  std::vector<std::int64_t> block_counts;
  std::vector<double> sink_share;
  std::vector<double> margin;
};

// In order of the pack; lse [heads, rows]; blocks [heads][rows].
struct ContextResult {
  Status status;
  Floats out;
  Floats lse;
  Floats dq;
  Floats dk;
  Floats dv;
  Floats max_logit;
  std::vector<std::int64_t> nonfinite_rows;
  ContextMobaNumbers moba;
  std::vector<std::vector<std::vector<std::int32_t>>> blocks;
  std::vector<ContextTraffic> forward_traffic;  // by rank
  std::vector<ContextTraffic> backward_traffic;
  std::vector<std::int64_t> moved_bytes;  // by rank, as its communicator saw it
};

inline kernels::AttentionProblem problem_of(const ContextCase& c) {
  kernels::AttentionProblem problem;
  problem.heads = c.heads;
  problem.kv_heads = c.kv_heads;
  problem.head_dim = c.dim;
  problem.causal = c.causal;
  problem.softcap = c.softcap;
  return problem;
}

inline ContextResult empty_result(const ContextCase& c, const ContextNumbers& n) {
  const auto heads = static_cast<std::size_t>(c.heads);
  const auto rows = static_cast<std::size_t>(n.cu.back());
  const auto ranks = static_cast<std::size_t>(c.ranks);
  ContextResult r;
  for (Floats* like_q : {&r.out, &r.dq}) {
    like_q->assign(n.q.size(), 77);
  }
  for (Floats* like_k : {&r.dk, &r.dv}) {
    like_k->assign(n.k.size(), 77);
  }
  r.lse.assign(heads * rows, 77);
  r.max_logit.assign(heads, 77);
  r.nonfinite_rows.assign(heads, 77);
  r.moba = ContextMobaNumbers(c);
  r.blocks.assign(heads, std::vector<std::vector<std::int32_t>>(rows));
  r.forward_traffic.resize(ranks);
  r.backward_traffic.resize(ranks);
  r.moved_bytes.assign(ranks, 0);
  return r;
}

// The operators on the whole pack.
ContextResult run_alone(const ContextCase& c, const ContextNumbers& n);

// The same, spread over c.ranks; the status is the first failure in order of rank.
ContextResult run_spread(const ContextCase& c, const ContextNumbers& n);

// What the shard of `world`'s rank has that differs from `one`, the same case on one rank; "" where
// nothing does but roundings. For ranks that are processes.
std::string shard_error(
    const ContextCase& c,
    const ContextNumbers& n,
    const ContextResult& one,
    comm::Communicator& world);

using muster::test::soon;

inline void run_ranks(int size, const std::function<void(comm::Communicator&)>& body) {
  const auto group = comm::make_local_group(size);
  std::vector<std::thread> threads;
  for (const auto& communicator : group) {
    threads.emplace_back([&body, &world = *communicator] { body(world); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

// Rows of a shard out of [rows of the pack, row], and back.
inline Floats take_rows(
    const Floats& all, const std::vector<std::int64_t>& rows, std::int64_t row) {
  Floats shard;
  for (const std::int64_t at : rows) {
    shard.insert(shard.end(), all.begin() + at * row, all.begin() + (at + 1) * row);
  }
  return shard;
}

inline void put_rows(
    const Floats& shard, const std::vector<std::int64_t>& rows, std::int64_t row, Floats& all) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::copy_n(
        shard.begin() + static_cast<std::ptrdiff_t>(i) * row, row, all.begin() + rows[i] * row);
  }
}

inline constexpr double kUnit = 0x1p-24;  // half an ulp of 1.0F

// Of those that are finite: a row or head that sees nothing has -inf.
inline double largest(const Floats& values) {
  double result = 0;
  for (const float value : values) {
    if (std::isfinite(value)) {
      result = std::max(result, std::abs(static_cast<double>(value)));
    }
  }
  return result;
}

}  // namespace muster::parallel::test
