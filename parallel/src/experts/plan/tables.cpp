// SPDX-License-Identifier: Apache-2.0
// Count sums, and part C: the tables of every rank from the moves. The loops over [R, E] and
// [R, groups] take most of a plan's time; this file is compiled so that they become vector code.
#include "parallel/src/experts/plan/work.h"

#include <algorithm>
#include <cstring>

namespace muster::parallel {

namespace {

using Rows = std::int64_t;

struct CountRow {
  Rows sum{0};
  std::int32_t signs{0};  // negative if a count is
};

// Adds one rank's counts to the totals.
CountRow add_counts(const std::int32_t* __restrict counts, Rows* __restrict totals, int experts) {
  Rows sum = 0;
  std::int32_t signs = 0;
  for (int e = 0; e < experts; ++e) {
    totals[e] += counts[e];
    sum += counts[e];
    signs |= counts[e];
  }
  return {sum, signs};
}

Status bad_counts(
    const EpShape& shape, int rank, std::span<const std::int32_t> counts, const CountRow& row) {
  const std::string of = "expert parallelism: counts of rank " + std::to_string(rank);
  if (row.signs < 0) {
    const auto first =
        std::find_if(counts.begin(), counts.end(), [](std::int32_t count) { return count < 0; });
    return invalid_argument(
        of, " must not be negative, got ", *first, " rows for expert ", first - counts.begin());
  }
  if (row.sum % shape.top_k != 0) {
    return invalid_argument(of, " sum to ", row.sum, ", not a multiple of top_k ", shape.top_k);
  }
  return invalid_argument(
      of,
      " sum to ",
      row.sum,
      ", more than tokens_max ",
      shape.tokens_max,
      " times top_k ",
      shape.top_k);
}

// Writes the tables of one rank in the order of its groups.
class RankTables {
 public:
  RankTables(const EpPlanWork& work, EpPlan& plan, int rank)
      : work_(work),
        begins_(plan.begins.data() + std::ptrdiff_t{rank} * work.groups),
        ends_(plan.ends.data() + std::ptrdiff_t{rank} * work.groups),
        rows_(plan.group_rows.data() + std::ptrdiff_t{rank} * work.groups) {}

  void place(int group, Rows rows) {
    skip_to(group);
    begins_[group] = offset_;
    offset_ += work_.padding.ceil_multiple(rows);
    ends_[group] = offset_;
    rows_[group] = rows;
    next_ = group + 1;
  }

  // Writes groups [first, first + count).
  void place_all(int first, const Rows* rows, int count) {
    skip_to(first);
    Rows offset = offset_;
    Rows* __restrict begins = begins_ + first;
    Rows* __restrict ends = ends_ + first;
    Rows* __restrict group_rows = rows_ + first;
    for (int i = 0; i < count; ++i) {
      const Rows real = rows[i];
      begins[i] = offset;
      offset += work_.padding.ceil_multiple(real);
      ends[i] = offset;
      group_rows[i] = real;
    }
    offset_ = offset;
    next_ = first + count;
  }

  // Rows of the rank, padding included.
  Rows finish() {
    skip_to(work_.groups);
    return offset_;
  }

 private:
  // Groups up to `group` are empty: they begin and end here.
  void skip_to(int group) {
    const auto count = group - next_;
    std::fill_n(begins_ + next_, count, offset_);
    std::fill_n(ends_ + next_, count, offset_);
    std::fill_n(rows_ + next_, count, Rows{0});
  }

  const EpPlanWork& work_;
  Rows* begins_;
  Rows* ends_;
  Rows* rows_;
  Rows offset_{0};
  int next_{0};
};

bool by_expert(const EpMove& a, const EpMove& b) {
  return a.expert < b.expert;
}

// Splits the rank's moves into work.remote: those with a slot first, then overflow, both ascending
// by expert. Returns how many have a slot.
int choose_slots(EpPlanWork& work, int rank) {
  work.remote.clear();
  for (int move = work.first_move[at(rank)]; move >= 0; move = work.moves[at(move)].next) {
    work.remote.push_back(work.moves[at(move)]);
  }
  const auto begin = work.remote.begin();
  const int count = std::min(work.slots, static_cast<int>(work.remote.size()));
  if (count < static_cast<int>(work.remote.size())) {
    std::sort(begin, work.remote.end(), [](const EpMove& a, const EpMove& b) {
      return a.rows > b.rows || (a.rows == b.rows && a.expert > b.expert);
    });
  }
  std::sort(begin, begin + count, by_expert);
  std::sort(begin + count, work.remote.end(), by_expert);
  return count;
}

void write_rank(EpPlanWork& work, EpPlan& plan, int rank) {
  const int m = work.local_experts;
  const int experts = work.shape.experts;
  const int home = rank * m;
  Rows* const rows = plan.rows.data() + std::ptrdiff_t{rank} * experts;
  std::int32_t* const groups = plan.groups.data() + std::ptrdiff_t{rank} * experts;
  std::int32_t* const slots = plan.slot_experts.data() + std::ptrdiff_t{rank} * work.slots;
  std::fill_n(rows, experts, Rows{0});
  std::copy_n(work.retained.data() + home, m, rows + home);
  std::fill_n(groups, experts, -1);
  const int own_group = work.shape.compact ? 0 : home;
  for (int e = 0; e < m; ++e) {
    groups[home + e] = own_group + e;
  }
  std::fill_n(slots, work.slots, -1);

  const int used = choose_slots(work, rank);
  const int moves = static_cast<int>(work.remote.size());
  RankTables tables{work, plan, rank};
  int next = used;  // overflow groups are expert ids, some before home and some after
  const auto overflow_until = [&](int expert) {
    for (; next < moves && work.remote[at(next)].expert < expert; ++next) {
      const EpMove& move = work.remote[at(next)];
      rows[move.expert] = move.rows;
      groups[move.expert] = move.expert;
      tables.place(move.expert, move.rows);
    }
  };
  overflow_until(home);
  tables.place_all(own_group, rows + home, m);
  overflow_until(experts);
  const int first_slot = work.groups - work.slots;
  for (int slot = 0; slot < used; ++slot) {
    const EpMove& move = work.remote[at(slot)];
    rows[move.expert] = move.rows;
    groups[move.expert] = first_slot + slot;
    slots[slot] = move.expert;
    tables.place(first_slot + slot, move.rows);
    ++work.sent_to[at(move.expert / m)];
  }
  EpPlanStatistics& statistics = plan.statistics;
  statistics.pad_rows += tables.finish();
  statistics.copies += used;
  statistics.copies_in_max = std::max<Rows>(statistics.copies_in_max, used);
  statistics.overflow_groups += moves - used;
}

}  // namespace

Status sum_counts(EpPlanWork& work, std::span<const std::int32_t> counts) {
  const EpShape& shape = work.shape;
  const std::size_t size = at(shape.ranks) * at(shape.experts);
  if (counts.size() != size) {
    return invalid_argument(
        "expert parallelism: counts must be ranks * experts = ", size, ", got ", counts.size());
  }
  std::fill(work.totals.begin(), work.totals.end(), 0);
  work.rows = 0;
  const Rows most = shape.tokens_max * shape.top_k;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    const std::int32_t* const row = counts.data() + std::ptrdiff_t{rank} * shape.experts;
    const CountRow sum = add_counts(row, work.totals.data(), shape.experts);
    if (sum.signs < 0 || sum.sum > most || sum.sum % shape.top_k != 0) {
      return bad_counts(
          shape, rank, counts.subspan(at(rank) * at(shape.experts), at(shape.experts)), sum);
    }
    work.rows += sum.sum;
  }
  for (int rank = 0; rank < shape.ranks; ++rank) {
    const Rows* const home = work.totals.data() + std::ptrdiff_t{rank} * work.local_experts;
    Rows load = 0;
    for (int e = 0; e < work.local_experts; ++e) {
      load += home[e];
    }
    work.loads[at(rank)] = load;
  }
  return {};
}

namespace {

// max / mean of `ranks` or experts that share `sum`; 1 if the sum is zero.
double imbalance(Rows most, Rows sum, int count) {
  return sum == 0 ? 1 : static_cast<double>(most) * count / static_cast<double>(sum);
}

void finish_statistics(const EpPlanWork& work, EpPlanStatistics& statistics) {
  statistics.rows = work.rows;
  statistics.quota_steps = work.quota_steps;
  statistics.copies_out_max = *std::max_element(work.sent_to.begin(), work.sent_to.end());
  Rows heaviest_before = 0;
  Rows heaviest_after = 0;
  for (std::size_t rank = 0; rank < work.loads.size(); ++rank) {
    const Rows load = work.loads[rank];
    heaviest_before = std::max(heaviest_before, load);
    heaviest_after = std::max(heaviest_after, load + work.received[rank] - work.exported[rank]);
    statistics.surplus += std::max<Rows>(0, load - work.capacities[rank]);
    statistics.rows_moved += work.received[rank];
  }
  const Rows largest = *std::max_element(work.totals.begin(), work.totals.end());
  statistics.max_violation =
      work.rows == 0 ? 0 : imbalance(largest, work.rows, work.shape.experts) - 1;
  statistics.rank_imbalance = imbalance(heaviest_before, work.rows, work.shape.ranks);
  statistics.rank_imbalance_after = imbalance(heaviest_after, work.rows, work.shape.ranks);
}

}  // namespace

void write_tables(EpPlanWork& work, std::span<const std::int32_t> counts, EpPlan& plan) {
  std::copy(counts.begin(), counts.end(), plan.counts.begin());
  std::fill(work.sent_to.begin(), work.sent_to.end(), 0);
  std::fill(work.received.begin(), work.received.end(), 0);
  std::fill(work.exported.begin(), work.exported.end(), 0);
  for (const EpQuota& quota : work.quotas) {
    work.exported[at(quota.home)] += quota.rows;
    work.received[at(quota.rank)] += quota.rows;
  }
  plan.statistics = {};
  for (int rank = 0; rank < work.shape.ranks; ++rank) {
    write_rank(work, plan, rank);
  }
  plan.statistics.pad_rows -= work.rows;  // pad_rows counted them with the real ones
  finish_statistics(work, plan.statistics);
}

}  // namespace muster::parallel
