// SPDX-License-Identifier: Apache-2.0
#include "kernels/moba/cpu/gate.h"

#include "kernels/moba/cpu/scratch.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace muster::kernels {

namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr std::int64_t kTaskRows = 512;
constexpr std::int64_t kTaskBlocks = 16;

struct Task {
  const MobaSequence* sequence;
  std::int64_t choice;
  std::int64_t begin;
  std::int64_t end;
};

// Results of one task, per head of its choice.
struct Report {
  std::vector<float> top;
  std::vector<std::int64_t> nonfinite;
  double margin_sum{0};
  std::int64_t margin_rows{0};
};

// Tiles of queries of one task against all blocks that they may choose.
class Gate {
 public:
  Gate(const MobaCall& call, const AttentionTensor& q, const float* means, bool report)
      : call_(call),
        q_(q),
        means_(means),
        report_(report),
        heads_(call.options.share_in_group ? call.group() : 1),
        stride_(moba_row_stride<float>(call.head_dim)),
        wanted_(call.scored_blocks()),
        slots_(wanted_ + (report ? 1 : 0)) {
    using Arena = MobaArena<float>;
    const std::int64_t tile = kMobaTile * kMobaTileStride;
    const std::int64_t queries = heads_ * call.head_dim * kMobaTileStride;
    const std::int64_t best = slots_ * kMobaTileStride;
    const std::int64_t size = Arena::rounded(kMobaTile * stride_) + Arena::rounded(queries) +
                              2 * tile + 2 * Arena::rounded(best) + (2 + 2 * heads_) * kMobaTile;
    Arena arena(moba_scratch<float>(size), size);
    rows_ = arena.take(kMobaTile * stride_);
    queries_ = arena.take(queries);
    scores_ = arena.take(tile);
    head_scores_ = arena.take(tile);
    best_ = {slots_, arena.take(best), arena.take(best)};
    limits_ = arena.take(kMobaTile);
    candidates_ = arena.take(kMobaTile);
    top_ = arena.take(heads_ * kMobaTile);
    nonfinite_ = arena.take(heads_ * kMobaTile);
  }

  void run(const Task& task, MobaSelection::State& state, Report& report) {
    if (wanted_ == 0 && !report_) {
      for (std::int64_t row = task.begin; row < task.end; ++row) {
        write_row(*task.sequence, task.choice, row, 0, state);
      }
      return;
    }
    for (std::int64_t row = task.begin; row < task.end; row += kMobaTile) {
      run_tile(task, row, std::min(kMobaTile, task.end - row), state, report);
    }
  }

 private:
  void run_tile(
      const Task& task,
      std::int64_t row,
      std::int64_t count,
      MobaSelection::State& state,
      Report& report) {
    std::int64_t blocks = 0;
    for (std::int64_t i = 0; i < kMobaTile; ++i) {
      const std::int64_t all = i < count ? call_.candidates(*task.sequence, row + i) : 0;
      const std::int64_t scored =
          call_.options.force_neighbour ? std::max<std::int64_t>(all - 1, 0) : all;
      candidates_[i] = static_cast<float>(all);
      limits_[i] = static_cast<float>(scored);
      blocks = std::max(blocks, all);
    }
    std::fill_n(best_.scores, slots_ * kMobaTileStride, kMinusInfinity);
    std::fill_n(best_.blocks, slots_ * kMobaTileStride, -1.0F);
    std::fill_n(top_, heads_ * kMobaTile, kMinusInfinity);
    std::fill_n(nonfinite_, heads_ * kMobaTile, 0.0F);
    if (blocks > 0) {
      load_queries(task, row, count);
      for (std::int64_t first = 0; first < blocks; first += kMobaTile) {
        score(task, first, std::min(kMobaTile, blocks - first));
      }
    }
    for (std::int64_t i = 0; i < count; ++i) {
      write_row(*task.sequence, task.choice, row + i, i, state);
      add_margin(i, report);
    }
    for (std::int64_t h = 0; report_ && h < heads_; ++h) {
      for (std::int64_t i = 0; i < count; ++i) {
        const auto head = static_cast<std::size_t>(h);
        report.top[head] = std::max(report.top[head], top_[h * kMobaTile + i]);
        report.nonfinite[head] += static_cast<std::int64_t>(nonfinite_[h * kMobaTile + i]);
      }
    }
  }

  void load_queries(const Task& task, std::int64_t row, std::int64_t count) {
    const MobaTable<float>& table = moba_table<float>();
    for (std::int64_t h = 0; h < heads_; ++h) {
      MobaRows rows = moba_rows(q_, task.sequence->q_begin, task.choice * heads_ + h);
      rows.first = row;
      rows.count = count;
      table.gather(rows, call_.head_dim, rows_, stride_);
      table.transpose(
          rows_, stride_, count, call_.head_dim, queries_ + h * call_.head_dim * kMobaTileStride);
    }
  }

  void score(const Task& task, std::int64_t first, std::int64_t count) {
    const MobaTable<float>& table = moba_table<float>();
    const std::int64_t kv_head = task.choice * heads_ / call_.group();
    const float* means =
        means_ +
        (kv_head * call_.total_blocks + task.sequence->first_block + first) * call_.head_dim;
    const auto multiply = [&](std::int64_t h, bool add, float* to) {
      const float* queries = queries_ + h * call_.head_dim * kMobaTileStride;
      table.scores(means, call_.head_dim, count, call_.head_dim, queries, add, to);
    };
    for (std::int64_t h = 0; h < heads_; ++h) {
      multiply(h, h > 0, scores_);
      if (report_) {
        const MobaScoreStatistics result{top_ + h * kMobaTile, nonfinite_ + h * kMobaTile};
        const float* own = scores_;
        if (heads_ > 1) {
          multiply(h, false, head_scores_);
          own = head_scores_;
        }
        moba_tables().gate.statistics(own, count, first, candidates_, result);
      }
    }
    moba_tables().gate.select(scores_, count, first, limits_, best_);
  }

  void write_row(
      const MobaSequence& sequence,
      std::int64_t choice,
      std::int64_t row,
      std::int64_t lane,
      MobaSelection::State& state) const {
    const auto picks = state.picks_of(sequence, choice, row);
    std::size_t count = 0;
    for (std::int64_t s = 0; s < wanted_ && count < picks.size(); ++s) {
      const float block = best_.blocks[s * kMobaTileStride + lane];
      if (block >= 0) {
        picks[count++] = static_cast<std::int32_t>(block);
      }
    }
    const std::int64_t current = call_.current_block(sequence, row);
    if (call_.options.force_neighbour && current > 0 && count < picks.size()) {
      picks[count++] = static_cast<std::int32_t>(current - 1);
    }
    std::sort(picks.begin(), picks.begin() + static_cast<std::ptrdiff_t>(count));
    std::fill(picks.begin() + static_cast<std::ptrdiff_t>(count), picks.end(), -1);
  }

  void add_margin(std::int64_t lane, Report& report) const {
    if (!report_ || wanted_ == 0) {
      return;
    }
    const std::int64_t next = wanted_ * kMobaTileStride + lane;
    const float margin = best_.scores[next - kMobaTileStride] - best_.scores[next];
    if (best_.blocks[next] >= 0 && std::isfinite(margin)) {
      report.margin_sum += static_cast<double>(margin);
      ++report.margin_rows;
    }
  }

  const MobaCall& call_;
  const AttentionTensor& q_;
  const float* means_;
  bool report_;
  std::int64_t heads_;
  std::int64_t stride_;
  std::int64_t wanted_;
  std::int64_t slots_;
  float* rows_;
  float* queries_;
  float* scores_;
  float* head_scores_;
  MobaBest best_;
  float* limits_;      // blocks that a lane may choose by score
  float* candidates_;  // and those that it might attend to
  float* top_;
  float* nonfinite_;
};

std::vector<Task> gate_tasks(const MobaCall& call) {
  std::vector<Task> tasks;
  for (const MobaSequence& sequence : call.cut_sequences) {
    for (std::int64_t choice = 0; !sequence.dense && choice < call.choices(); ++choice) {
      for (std::int64_t row = 0; row < sequence.queries; row += kTaskRows) {
        tasks.push_back({&sequence, choice, row, std::min(row + kTaskRows, sequence.queries)});
      }
    }
  }
  return tasks;
}

}  // namespace

void make_block_means(const MobaCall& call, const AttentionTensor& k, float* means) {
  struct Block {
    std::int64_t key;
    std::int64_t count;
  };

  std::vector<Block> blocks;
  for (const MobaSequence& sequence : call.cut_sequences) {
    for (std::int64_t b = 0; b < sequence.blocks; ++b) {
      const std::int64_t begin = b * call.options.block;
      blocks.push_back(
          {sequence.k_begin + begin, std::min(call.options.block, sequence.keys - begin)});
    }
  }
  const std::int64_t pieces = (call.total_blocks + kTaskBlocks - 1) / kTaskBlocks;
  run_moba_tasks(call, call.kv_heads * pieces, [&](std::int64_t task) {
    const std::int64_t head = task / pieces;
    const std::int64_t begin = task % pieces * kTaskBlocks;
    const std::int64_t end = std::min(begin + kTaskBlocks, call.total_blocks);
    for (std::int64_t b = begin; b < end; ++b) {
      const Block& block = blocks[static_cast<std::size_t>(b)];
      MobaRows rows = moba_rows(k, block.key, head);
      rows.count = block.count;
      float* mean = means + (head * call.total_blocks + b) * call.head_dim;
      moba_tables().gate.mean(rows, call.head_dim, mean);
    }
  });
}

void choose_blocks(
    const AttentionTensor& q,
    const float* means,
    MobaSelection::State& state,
    MobaGateReport* report) {
  const MobaCall& call = state.call;
  const std::vector<Task> tasks = gate_tasks(call);
  const std::int64_t heads = call.options.share_in_group ? call.group() : 1;
  std::vector<Report> reports(tasks.size());
  run_moba_tasks(call, static_cast<std::int64_t>(tasks.size()), [&](std::int64_t number) {
    const auto index = static_cast<std::size_t>(number);
    reports[index].top.assign(static_cast<std::size_t>(heads), kMinusInfinity);
    reports[index].nonfinite.assign(static_cast<std::size_t>(heads), 0);
    Gate(call, q, means, report != nullptr).run(tasks[index], state, reports[index]);
  });
  if (report == nullptr) {
    return;
  }
  const auto count = static_cast<std::size_t>(call.heads);
  report->top.assign(count, kMinusInfinity);
  report->nonfinite.assign(count, 0);
  report->margin_sum.assign(count, 0);
  report->margin_rows.assign(count, 0);
  for (std::size_t t = 0; t < tasks.size(); ++t) {
    for (std::int64_t h = 0; h < heads; ++h) {
      const auto head = static_cast<std::size_t>(tasks[t].choice * heads + h);
      const auto own = static_cast<std::size_t>(h);
      report->top[head] = std::max(report->top[head], reports[t].top[own]);
      report->nonfinite[head] += reports[t].nonfinite[own];
      report->margin_sum[head] += reports[t].margin_sum;
      report->margin_rows[head] += reports[t].margin_rows;
    }
  }
}

}  // namespace muster::kernels
