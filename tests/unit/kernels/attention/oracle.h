// SPDX-License-Identifier: Apache-2.0
// Exact attention in double, with explicit masks and whole rows of weights: slow and plain. What
// all attention kernels are measured against.
#pragma once

#include "tests/unit/kernels/numbers.h"

#include <cstdint>
#include <functional>
#include <vector>

namespace muster::kernels::test {

// Tensors are contiguous: q, out, dout [total_q, heads, head_dim], k and v [total_k, kv_heads,
// head_dim], lse and dlse [heads, total_q].
struct OracleProblem {
  std::int64_t heads{1};
  std::int64_t kv_heads{1};
  std::int64_t head_dim{8};
  std::vector<std::int64_t> cu_q{0};
  std::vector<std::int64_t> cu_k{0};
  bool causal{true};
  double scale{1};
  double softcap{0};
  // Added to the scaled logit of (head, query and key of their sequence). Null adds nothing.
  std::function<double(std::int64_t, std::int64_t, std::int64_t)> bias;
  // A further mask of (sequence, head, query, key). Null disables it.
  std::function<bool(std::int64_t, std::int64_t, std::int64_t, std::int64_t)> visible;
};

struct OracleForward {
  Values out;
  Values lse;        // -inf where nothing is visible
  Values max_logit;  // [heads], before softcap; -inf where nothing is visible
  double size{0};    // max |v|: what errors of `out` are relative to
  double logit_size{
      0};  // largest scale * sum |q| |k| + |bias|: what errors of logits are relative to
};

struct OracleBackward {
  Values dq;
  Values dk;
  Values dv;
  // Largest sums of the magnitudes of the terms of an element: what its errors are relative to.
  double dq_size{0};
  double dk_size{0};
  double dv_size{0};
};

OracleForward oracle_forward(
    const OracleProblem& problem, const Values& q, const Values& k, const Values& v);

// dlse empty: none.
OracleBackward oracle_backward(
    const OracleProblem& problem,
    const Values& q,
    const Values& k,
    const Values& v,
    const Values& dout,
    const Values& dlse);

}  // namespace muster::kernels::test
