// SPDX-License-Identifier: Apache-2.0
// Block attention the plain way, in fp64 with explicit masks, and a harness that runs the kernels
// on the same problem in any type.
#pragma once

#include "tests/unit/kernels/attention/fence.h"
#include "tests/unit/kernels/numbers.h"

#include <muster/kernels/moba.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <vector>

namespace muster::kernels::test {

// Sizes and options of one call; owns its offsets.
struct MobaSetup {
  std::vector<std::int64_t> query_lengths;
  std::vector<std::int64_t> key_lengths;  // empty: as the queries
  int heads{1};
  int kv_heads{1};
  int dim{16};
  MobaOptions options{};
  bool causal{true};
  double scale{0};
  double softcap{0};
  int threads{1};
  bool fence_at_end{true};  // of the tensors: the side with the inaccessible page

  [[nodiscard]] std::vector<std::int64_t> cu_q() const;
  [[nodiscard]] std::vector<std::int64_t> cu_k() const;

  [[nodiscard]] std::int64_t total_q() const { return cu_q().back(); }

  [[nodiscard]] std::int64_t total_k() const { return cu_k().back(); }

  [[nodiscard]] double used_scale() const;
};

std::ostream& operator<<(std::ostream& out, const MobaSetup& setup);

// Ascending blocks per query, [heads][total_q].
using Choices = std::vector<std::vector<std::vector<std::int32_t>>>;

struct MobaNumbers {
  Values q;
  Values k;
  Values v;
  Values dout;
};

MobaNumbers random_numbers(const MobaSetup& setup, std::uint64_t seed, double scale = 1);

// q . mean of block, of a query of one sequence, summed over the group where it chooses together.
double oracle_score(
    const MobaSetup& setup,
    const MobaNumbers& numbers,
    int head,
    std::size_t sequence,
    std::int64_t row,
    std::int64_t block);

Choices oracle_choices(const MobaSetup& setup, const MobaNumbers& numbers);

// Empty where `choices` obeys the rules: the right number of blocks, the current one among them, no
// block left out that scores more than `slack` above one that was chosen.
std::string choice_error(
    const MobaSetup& setup, const MobaNumbers& numbers, const Choices& choices, double slack);

struct OracleResult {
  Values out;
  Values lse;        // [heads, total_q]
  Values max_logit;  // [heads]
  Values dq;
  Values dk;
  Values dv;
};

// Softmax over the keys that `choices` leave visible, and gradients for dout.
OracleResult oracle_attention(
    const MobaSetup& setup, const MobaNumbers& numbers, const Choices& choices);

// ---- the kernels ----------------------------------------------------------------------------

template <typename T>
T to_element(double value) {
  return element_of<T>(value);
}

template <typename T>
double to_double(T value) {
  return value_of(value);
}

template <typename T>
std::vector<T> elements(const Values& values) {
  std::vector<T> result;
  result.reserve(values.size());
  for (const double value : values) {
    result.push_back(to_element<T>(value));
  }
  return result;
}

template <typename T>
Values doubles(const std::vector<T>& values) {
  Values result;
  result.reserve(values.size());
  for (const T value : values) {
    result.push_back(to_double(value));
  }
  return result;
}

template <typename T>
struct LseOf {
  using Type = float;
};

template <>
struct LseOf<double> {
  using Type = double;
};

template <typename T>
DType type_of() {
  return sizeof(T) == 8 ? DType::kFloat64 : sizeof(T) == 4 ? DType::kFloat32 : DType::kBFloat16;
}

struct StatisticsStorage {
  std::vector<float> selected_max_logit;
  std::vector<float> gate_bound;
  std::vector<float> norm_bound;
  std::vector<std::int64_t> nonfinite_rows;
  std::vector<std::int64_t> nonfinite_scores;
  std::vector<std::int64_t> block_counts;
  std::vector<double> sink_share;
  std::vector<double> gate_margin;
  std::vector<std::int64_t> gate_margin_rows;

  explicit StatisticsStorage(const MobaSetup& setup);
  MobaStatistics spans();
};

template <typename T>
struct MobaRun {
  Status status;
  std::vector<T> out;
  std::vector<typename LseOf<T>::Type> lse;
  MobaSelection selection;
  std::vector<T> dq;
  std::vector<T> dk;
  std::vector<T> dv;

  [[nodiscard]] Choices choices(const MobaSetup& setup) const {
    Choices result(static_cast<std::size_t>(setup.heads));
    for (int head = 0; head < setup.heads; ++head) {
      for (std::int64_t row = 0; row < setup.total_q(); ++row) {
        result[static_cast<std::size_t>(head)].push_back(selection.blocks_of(head, row));
      }
    }
    return result;
  }
};

inline AttentionProblem problem_of(
    const MobaSetup& setup,
    DType type,
    const std::vector<std::int64_t>& cu_q,
    const std::vector<std::int64_t>& cu_k) {
  AttentionProblem problem;
  problem.type = type;
  problem.heads = setup.heads;
  problem.kv_heads = setup.kv_heads;
  problem.head_dim = setup.dim;
  problem.cu_q = cu_q;
  problem.cu_k = cu_k;
  problem.causal = setup.causal;
  problem.scale = setup.scale;
  problem.softcap = setup.softcap;
  problem.threads = setup.threads;
  return problem;
}

// Forward, and backward where `numbers` have dout, in tensors fenced by inaccessible pages.
// Outputs begin as 1e30, so that missing writes show.
template <typename T>
MobaRun<T> run_moba(
    const MobaSetup& setup,
    const MobaNumbers& numbers,
    const MobaStatistics& statistics = {},
    std::span<const float> means = {}) {
  const auto cu_q = setup.cu_q();
  const auto cu_k = setup.cu_k();
  const AttentionProblem problem = problem_of(setup, type_of<T>(), cu_q, cu_k);
  const bool at_end = setup.fence_at_end;
  const auto input = [at_end](const Values& values) {
    auto result = std::make_unique<Fenced<T>>(values.size(), T{}, at_end);
    result->set(values);
    return result;
  };
  const auto q = input(numbers.q);
  const auto k = input(numbers.k);
  const auto v = input(numbers.v);
  const auto dout = input(numbers.dout);
  Fenced<T> out(q->size(), to_element<T>(1e30), at_end);
  Fenced<typename LseOf<T>::Type> lse(
      static_cast<std::size_t>(setup.heads * setup.total_q()), 1e30F, at_end);
  MobaRun<T> run;
  run.status = moba_forward(
      problem,
      setup.options,
      {{q->data()}, {k->data()}, {v->data()}},
      means,
      {{out.data()}, lse.data()},
      run.selection,
      statistics);
  run.out = out.copy();
  run.lse = lse.copy();
  if (!run.status.ok() || dout->size() != q->size()) {
    return run;
  }
  Fenced<T> dq(q->size(), to_element<T>(1e30), at_end);
  Fenced<T> dk(k->size(), to_element<T>(1e30), at_end);
  Fenced<T> dv(k->size(), to_element<T>(1e30), at_end);
  run.status = moba_backward(
      problem,
      setup.options,
      {{q->data()}, {k->data()}, {v->data()}},
      {{out.data()}, lse.data(), {dout->data()}, nullptr, {dq.data()}, {dk.data()}, {dv.data()}},
      run.selection);
  run.dq = dq.copy();
  run.dk = dk.copy();
  run.dv = dv.copy();
  return run;
}

// Inputs of the kernels: the numbers rounded to T.
template <typename T>
MobaNumbers rounded_to(const MobaNumbers& numbers) {
  return {
      doubles(elements<T>(numbers.q)),
      doubles(elements<T>(numbers.k)),
      doubles(elements<T>(numbers.v)),
      doubles(elements<T>(numbers.dout))};
}

// Empty where a run in T agrees with the oracle (choices by rule, then attention over the same
// choices); else what differs.
std::string moba_error(const MobaSetup& setup, std::uint64_t seed, DType type);

}  // namespace muster::kernels::test
