// SPDX-License-Identifier: Apache-2.0
// A call of an operator on the queries of one segment.
#pragma once

#include <muster/kernels/attention.h>

#include <array>
#include <cstdint>

namespace muster::parallel {

// The problem of `queries` rows against `keys` keys of one sequence; refers to itself.
class PairProblem {
 public:
  PairProblem(
      const kernels::AttentionProblem& of, std::int64_t queries, std::int64_t keys, bool causal)
      : cu_q_{0, queries}, cu_k_{0, keys}, problem_(of) {
    problem_.cu_q = cu_q_;
    problem_.cu_k = cu_k_;
    problem_.causal = causal;
  }

  ~PairProblem() = default;
  PairProblem(const PairProblem&) = delete;
  PairProblem& operator=(const PairProblem&) = delete;
  PairProblem(PairProblem&&) = delete;
  PairProblem& operator=(PairProblem&&) = delete;

  [[nodiscard]] const kernels::AttentionProblem& get() const { return problem_; }

 private:
  std::array<std::int64_t, 2> cu_q_;
  std::array<std::int64_t, 2> cu_k_;
  kernels::AttentionProblem problem_;
};

}  // namespace muster::parallel
