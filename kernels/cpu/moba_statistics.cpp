#include "cpu/moba_statistics.h"

#include <algorithm>
#include <cmath>

namespace muster::kernels {

namespace {

struct Norms {
  double largest_square{0};
  std::int64_t nonfinite{0};
};

// Of all rows of each head.
std::vector<Norms> row_norms(
    const MobaPlan& plan, const MobaTensor& tensor, std::int64_t tokens, std::int64_t heads) {
  std::vector<Norms> result(static_cast<std::size_t>(heads));
  run_moba_tasks(plan, heads, [&](std::int64_t head) {
    MobaRows rows = tensor.rows(0, head);
    rows.count = tokens;
    Norms& own = result[static_cast<std::size_t>(head)];
    moba_tables().gate.norms(rows, plan.dim, &own.largest_square, &own.nonfinite);
  });
  return result;
}

// scale * max |q| * max |k|, upwards by what the rounding of a sum of `dim` products can add.
void write_norm_bound(
    const MobaPlan& plan, const MobaTensor& q, const MobaTensor& k, std::span<float> bound) {
  const std::vector<Norms> of_q = row_norms(plan, q, plan.total_q, plan.heads);
  const std::vector<Norms> of_k = row_norms(plan, k, plan.total_k, plan.kv_heads);
  const double rounding = 1 + static_cast<double>(plan.dim + 8) * 0x1p-24;
  for (std::int64_t h = 0; h < plan.heads; ++h) {
    const Norms& a = of_q[static_cast<std::size_t>(h)];
    const Norms& b = of_k[static_cast<std::size_t>(h / plan.group)];
    const double value =
        plan.scale * std::sqrt(a.largest_square) * std::sqrt(b.largest_square) * rounding;
    const bool bounded = a.nonfinite == 0 && b.nonfinite == 0;
    bound[static_cast<std::size_t>(h)] =
        bounded ? static_cast<float>(value) : std::numeric_limits<float>::infinity();
  }
}

// Queries of a dense sequence that see a block.
std::int64_t seers(const MobaPlan& plan, const MobaSequence& sequence, std::int64_t block) {
  const std::int64_t first =
      block * plan.options.block - (sequence.keys - sequence.queries);  // query at its first key
  return plan.causal ? std::clamp<std::int64_t>(sequence.queries - first, 0, sequence.queries)
                     : sequence.queries;
}

// Queries whose current block this is.
std::int64_t residents(const MobaPlan& plan, const MobaSequence& sequence, std::int64_t block) {
  if (!plan.causal) {
    return 0;
  }
  const bool last = block + 1 == sequence.blocks;
  return seers(plan, sequence, block) - (last ? 0 : seers(plan, sequence, block + 1));
}

// count[block] += queries of a head that chose it, the current block included; adds the choices of
// past blocks, and of block 0 among them.
void count_blocks(
    const MobaSelection::State& state,
    const MobaSequence& sequence,
    std::int64_t head,
    std::int64_t* counts,
    std::int64_t (&past)[2]) {
  const MobaPlan& plan = state.plan;
  for (std::int64_t b = 0; b < sequence.blocks; ++b) {
    const std::int64_t current = residents(plan, sequence, b);
    const std::int64_t chosen =
        sequence.dense
            ? seers(plan, sequence, b) - current
            : static_cast<std::int64_t>(state.list(sequence, plan.choice_of(head), b).size());
    if (counts != nullptr) {
      counts[b] += chosen + current;
    }
    past[0] += chosen;
    past[1] += b == 0 ? chosen : 0;
  }
}

void write_counts(const MobaSelection::State& state, const MobaStatistics& statistics) {
  const MobaPlan& plan = state.plan;
  std::fill(statistics.block_counts.begin(), statistics.block_counts.end(), 0);
  for (std::int64_t h = 0; h < plan.heads; ++h) {
    std::int64_t past[2] = {0, 0};
    std::int64_t* counts = statistics.block_counts.empty()
                               ? nullptr
                               : statistics.block_counts.data() + h * plan.max_blocks;
    for (const MobaSequence& sequence : plan.sequences) {
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
         !statistics.gate_margin.empty();
}

void write_statistics(
    const MobaTensor& q,
    const MobaTensor& k,
    const MobaSelection::State& state,
    const MobaReport& report,
    const MobaStatistics& statistics) {
  const MobaPlan& plan = state.plan;
  const auto set = [](const auto& from, const auto& to) {
    std::copy_n(from.begin(), std::min(from.size(), to.size()), to.begin());
  };
  set(report.max_logit, statistics.selected_max_logit);
  set(report.nonfinite_rows, statistics.nonfinite_rows);
  const bool gated = !report.gate.top.empty();
  for (std::size_t h = 0; h < static_cast<std::size_t>(plan.heads); ++h) {
    if (!statistics.gate_bound.empty()) {
      statistics.gate_bound[h] = gated ? static_cast<float>(plan.scale) * report.gate.top[h]
                                       : -std::numeric_limits<float>::infinity();
    }
    if (!statistics.nonfinite_scores.empty()) {
      statistics.nonfinite_scores[h] = gated ? report.gate.nonfinite[h] : 0;
    }
    if (!statistics.gate_margin.empty()) {
      const bool any = gated && report.gate.margin_rows[h] > 0;
      statistics.gate_margin[h] =
          any ? report.gate.margin_sum[h] / static_cast<double>(report.gate.margin_rows[h])
              : std::numeric_limits<double>::quiet_NaN();
    }
  }
  if (!statistics.norm_bound.empty()) {
    write_norm_bound(plan, q, k, statistics.norm_bound);
  }
  if (!statistics.block_counts.empty() || !statistics.sink_share.empty()) {
    write_counts(state, statistics);
  }
}

void count_nonfinite_keys(
    const MobaPlan& plan, const MobaTensor& k, std::span<std::int64_t> nonfinite) {
  const std::vector<Norms> norms = row_norms(plan, k, plan.total_k, plan.kv_heads);
  for (std::size_t h = 0; h < norms.size(); ++h) {
    nonfinite[h] = norms[h].nonfinite;
  }
}

}  // namespace muster::kernels
