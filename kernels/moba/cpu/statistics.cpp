// SPDX-License-Identifier: Apache-2.0
#include "kernels/moba/cpu/statistics.h"

#include "kernels/attention/cpu/check.h"

#include <algorithm>
#include <cmath>

namespace muster::kernels {

namespace {

struct Norms {
  double largest_square{0};
  std::int64_t nonfinite{0};
};

// Norms over all rows of each head.
std::vector<Norms> row_norms(
    const MobaCall& call, const AttentionTensor& tensor, std::int64_t tokens, std::int64_t heads) {
  std::vector<Norms> result(static_cast<std::size_t>(heads));
  run_moba_tasks(call, heads, [&](std::int64_t head) {
    MobaRows rows = moba_rows(tensor, 0, head);
    rows.count = tokens;
    Norms& own = result[static_cast<std::size_t>(head)];
    moba_tables().gate.norms(rows, call.head_dim, &own.largest_square, &own.nonfinite);
  });
  return result;
}

// Largest squared norm of a row of each head, +inf where one is not finite.
std::vector<double> largest_squares(
    const MobaCall& call, const AttentionTensor& tensor, std::int64_t tokens, std::int64_t heads) {
  std::vector<double> result;
  for (const Norms& norms : row_norms(call, tensor, tokens, heads)) {
    result.push_back(
        norms.nonfinite == 0 ? norms.largest_square : std::numeric_limits<double>::infinity());
  }
  return result;
}

// scale * |q| * |k|, upwards by what the rounding of a sum of `dim` products can add.
float norm_bound(double scale, std::int64_t dim, double q_square, double k_square) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (q_square == kInfinity || k_square == kInfinity) {
    return std::numeric_limits<float>::infinity();
  }
  const double rounding = 1 + static_cast<double>(dim + 8) * 0x1p-24;
  return static_cast<float>(scale * std::sqrt(q_square) * std::sqrt(k_square) * rounding);
}

void write_norm_bound(
    const MobaCall& call,
    const AttentionTensor& q,
    const AttentionTensor& k,
    std::span<float> bound) {
  const auto of_q = largest_squares(call, q, call.total_q, call.heads);
  const auto of_k = largest_squares(call, k, call.total_k, call.kv_heads);
  for (std::int64_t h = 0; h < call.heads; ++h) {
    bound[static_cast<std::size_t>(h)] = norm_bound(
        call.scale,
        call.head_dim,
        of_q[static_cast<std::size_t>(h)],
        of_k[static_cast<std::size_t>(h / call.group())]);
  }
}

// Queries of a dense sequence that see a block.
std::int64_t seers(const MobaCall& call, const MobaSequence& sequence, std::int64_t block) {
  const std::int64_t first =
      block * call.options.block - (sequence.keys - sequence.queries);  // query at its first key
  return call.causal ? std::clamp<std::int64_t>(sequence.queries - first, 0, sequence.queries)
                     : sequence.queries;
}

// Queries whose current block this is.
std::int64_t residents(const MobaCall& call, const MobaSequence& sequence, std::int64_t block) {
  if (!call.causal) {
    return 0;
  }
  const bool last = block + 1 == sequence.blocks;
  return seers(call, sequence, block) - (last ? 0 : seers(call, sequence, block + 1));
}

// count[block] += queries of a head that chose it, the current block included; adds the choices of
// past blocks, and of block 0 among them.
void count_blocks(
    const MobaSelection::State& state,
    const MobaSequence& sequence,
    std::int64_t head,
    std::int64_t* counts,
    std::int64_t (&past)[2]) {
  const MobaCall& call = state.call;
  for (std::int64_t b = 0; b < sequence.blocks; ++b) {
    const std::int64_t current = residents(call, sequence, b);
    const std::int64_t chosen =
        sequence.dense
            ? seers(call, sequence, b) - current
            : static_cast<std::int64_t>(state.list(sequence, call.choice_of(head), b).size());
    if (counts != nullptr) {
      counts[b] += chosen + current;
    }
    past[0] += chosen;
    past[1] += b == 0 ? chosen : 0;
  }
}

void write_counts(const MobaSelection::State& state, const MobaStatistics& statistics) {
  const MobaCall& call = state.call;
  std::fill(statistics.block_counts.begin(), statistics.block_counts.end(), 0);
  for (std::int64_t h = 0; h < call.heads; ++h) {
    std::int64_t past[2] = {0, 0};
    std::int64_t* counts = statistics.block_counts.empty()
                               ? nullptr
                               : statistics.block_counts.data() + h * call.max_blocks;
    for (const MobaSequence& sequence : call.cut_sequences) {
      count_blocks(state, sequence, h, counts, past);
    }
    if (!statistics.sink_share.empty()) {
      statistics.sink_share[static_cast<std::size_t>(h)] =
          past[0] == 0 ? 0 : static_cast<double>(past[1]) / static_cast<double>(past[0]);
    }
  }
}

}  // namespace

bool wants_gate(const MobaStatistics& statistics) {
  return !statistics.gate_bound.empty() || !statistics.nonfinite_scores.empty() ||
         !statistics.gate_margin.empty() || !statistics.gate_margin_rows.empty();
}

void write_choice_statistics(
    const MobaSelection::State& state,
    const MobaGateReport& gate,
    const MobaStatistics& statistics) {
  const MobaCall& call = state.call;
  const bool gated = !gate.top.empty();
  for (std::size_t h = 0; h < static_cast<std::size_t>(call.heads); ++h) {
    const std::int64_t margin_rows = gated ? gate.margin_rows[h] : 0;
    if (!statistics.gate_bound.empty()) {
      statistics.gate_bound[h] = gated ? static_cast<float>(call.scale) * gate.top[h]
                                       : -std::numeric_limits<float>::infinity();
    }
    if (!statistics.nonfinite_scores.empty()) {
      statistics.nonfinite_scores[h] = gated ? gate.nonfinite[h] : 0;
    }
    if (!statistics.gate_margin.empty()) {
      statistics.gate_margin[h] = margin_rows > 0
                                      ? gate.margin_sum[h] / static_cast<double>(margin_rows)
                                      : std::numeric_limits<double>::quiet_NaN();
    }
    if (!statistics.gate_margin_rows.empty()) {
      statistics.gate_margin_rows[h] = margin_rows;
    }
  }
  if (!statistics.block_counts.empty() || !statistics.sink_share.empty()) {
    write_counts(state, statistics);
  }
}

void write_statistics(
    const AttentionTensor& q,
    const AttentionTensor& k,
    const MobaSelection::State& state,
    const MobaReport& report,
    const MobaStatistics& statistics) {
  const auto set = [](const auto& from, const auto& to) {
    std::copy_n(from.begin(), std::min(from.size(), to.size()), to.begin());
  };
  set(report.max_logit, statistics.selected_max_logit);
  set(report.nonfinite_rows, statistics.nonfinite_rows);
  write_choice_statistics(state, report.gate, statistics);
  if (!statistics.norm_bound.empty()) {
    write_norm_bound(state.call, q, k, statistics.norm_bound);
  }
}

void count_nonfinite_keys(
    const MobaCall& call, const AttentionTensor& k, std::span<std::int64_t> nonfinite) {
  const std::vector<Norms> norms = row_norms(call, k, call.total_k, call.kv_heads);
  for (std::size_t h = 0; h < norms.size(); ++h) {
    nonfinite[h] = norms[h].nonfinite;
  }
}

Status moba_largest_norms(
    const AttentionProblem& problem,
    AttentionInput q,
    AttentionInput k,
    std::span<double> q_squares,
    std::span<double> k_squares) {
  MUSTER_ASSIGN_OR_RETURN(const MobaCall call, moba_call(problem, {}));
  MUSTER_ASSIGN_OR_RETURN(const AttentionTensor queries, query_tensor(call, "q", q));
  MUSTER_ASSIGN_OR_RETURN(const AttentionTensor keys, key_tensor(call, "k", k, call.total_k));
  if (static_cast<std::int64_t>(q_squares.size()) != call.heads ||
      static_cast<std::int64_t>(k_squares.size()) != call.kv_heads) {
    return invalid_argument(
        "q_squares and k_squares must have ",
        call.heads,
        " and ",
        call.kv_heads,
        " elements, got ",
        q_squares.size(),
        " and ",
        k_squares.size());
  }
  const auto of_q = largest_squares(call, queries, call.total_q, call.heads);
  const auto of_k = largest_squares(call, keys, call.total_k, call.kv_heads);
  std::copy(of_q.begin(), of_q.end(), q_squares.begin());
  std::copy(of_k.begin(), of_k.end(), k_squares.begin());
  return {};
}

float moba_norm_bound(const AttentionProblem& problem, double q_square, double k_square) {
  const double scale =
      problem.scale == 0 ? 1 / std::sqrt(static_cast<double>(problem.head_dim)) : problem.scale;
  return norm_bound(scale, problem.head_dim, q_square, k_square);
}

}  // namespace muster::kernels
