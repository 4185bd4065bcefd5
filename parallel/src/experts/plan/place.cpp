// SPDX-License-Identifier: Apache-2.0
// Part D: maps this rank's choices to rows of ranks.
#include "parallel/src/experts/plan/work.h"

#include <algorithm>
#include <array>

namespace muster::parallel {

namespace {

Status check_call(const EpPlanWork& work, int rank, std::size_t choices, const EpPlan& plan) {
  const EpShape& shape = work.shape;
  if (plan.shape != shape || plan.receive_rows != work.receive_rows) {
    return invalid_argument(
        "expert parallelism: the plan was made for another shape than this planner's: construct "
        "it with the same EpShape and EpBalance");
  }
  if (rank < 0 || rank >= shape.ranks) {
    return invalid_argument("expert parallelism: rank ", rank, ", there are ", shape.ranks);
  }
  const std::size_t most = static_cast<std::size_t>(shape.tokens_max) * at(shape.top_k);
  if (choices % at(shape.top_k) != 0 || choices > most) {
    return invalid_argument(
        "expert parallelism: choices of rank ",
        rank,
        " must be top_k ",
        shape.top_k,
        " times at most tokens_max ",
        shape.tokens_max,
        ", got ",
        choices);
  }
  return {};
}

Status bad_choice(const EpPlanWork& work, int rank, std::span<const std::int32_t> choices) {
  const auto first = std::find_if(choices.begin(), choices.end(), [&](std::int32_t expert) {
    return expert < 0 || expert >= work.shape.experts;
  });
  const std::int64_t index = first - choices.begin();
  return invalid_argument(
      "expert parallelism: rank ",
      rank,
      ", token ",
      index / work.shape.top_k,
      ", choice ",
      index % work.shape.top_k,
      ": the expert must be 0..",
      work.shape.experts - 1,
      ", got ",
      *first);
}

// Counts the choices and compares with the rank's row of the plan.
Status check_choices(
    EpPlanWork& work, int rank, std::span<const std::int32_t> choices, const EpPlan& plan) {
  const auto experts = static_cast<std::uint32_t>(work.shape.experts);
  std::int32_t* const histogram = work.histogram.data();
  std::fill_n(histogram, experts, 0);
  for (const std::int32_t expert : choices) {
    if (static_cast<std::uint32_t>(expert) >= experts) [[unlikely]] {
      return bad_choice(work, rank, choices);
    }
    ++histogram[expert];
  }
  const std::int32_t* const counts = plan.counts.data() + std::ptrdiff_t{rank} * work.shape.experts;
  const auto [counted, planned] = std::mismatch(histogram, histogram + experts, counts);
  if (counted != histogram + experts) {
    return invalid_argument(
        "expert parallelism: rank ",
        rank,
        " chose expert ",
        counted - histogram,
        " ",
        *counted,
        " times, but its counts contain ",
        *planned,
        ": the plan was made for other choices");
  }
  return {};
}

// Points the cursor at row `index`. Rows of an expert are numbered by (rank, token, choice) and
// assigned in ascending order to the ranks that compute it.
void seek(const EpPlan& plan, int expert, std::int64_t index, EpCursor& cursor) {
  const int experts = plan.shape.experts;
  const int groups = plan.shape.group_count();
  const std::int64_t* rows = plan.rows.data() + expert;
  for (int rank = 0; rank < plan.shape.ranks; ++rank, rows += experts) {
    if (index < *rows) {
      const std::int32_t group = plan.groups[at(rank) * at(experts) + at(expert)];
      cursor.place =
          rank * plan.receive_rows + plan.begins[at(rank) * at(groups) + at(group)] + index;
      cursor.left = *rows - index;
      cursor.rank = rank;
      return;
    }
    index -= *rows;
  }
}

// Moves the cursor to the rows at the next rank.
void advance(const EpPlan& plan, int expert, EpCursor& cursor) {
  std::int64_t before = 0;
  for (int rank = 0; rank <= cursor.rank; ++rank) {
    before += plan.rows[at(rank) * at(plan.shape.experts) + at(expert)];
  }
  seek(plan, expert, before, cursor);
}

void point_cursors(EpPlanWork& work, int rank, const EpPlan& plan) {
  const int experts = work.shape.experts;
  std::vector<std::int64_t>& before = work.totals;  // rows of lower ranks
  std::fill(before.begin(), before.end(), 0);
  for (int lower = 0; lower < rank; ++lower) {
    const std::int32_t* const counts = plan.counts.data() + std::ptrdiff_t{lower} * experts;
    for (int e = 0; e < experts; ++e) {
      before[at(e)] += counts[e];
    }
  }
  for (int e = 0; e < experts; ++e) {
    if (work.histogram[at(e)] > 0) {
      seek(plan, e, before[at(e)], work.cursors[at(e)]);
    }
  }
}

// Set of ranks with a row of the token.
class Seen {
 public:
  // Returns true the first time.
  bool add(int rank) {
    std::uint64_t& word = words_[at(rank >> 6)];
    const std::uint64_t bit = std::uint64_t{1} << (static_cast<unsigned>(rank) & 63U);
    const bool first = (word & bit) == 0;
    word |= bit;
    return first;
  }

 private:
  std::array<std::uint64_t, kEpRanksMax / 64> words_{};
};

}  // namespace

Status place_choices(
    EpPlanWork& work, int rank, std::span<const std::int32_t> choices, EpPlan& plan) {
  MUSTER_RETURN_IF_ERROR(check_call(work, rank, choices.size(), plan));
  MUSTER_RETURN_IF_ERROR(check_choices(work, rank, choices, plan));
  point_cursors(work, rank, plan);
  const int top_k = work.shape.top_k;
  plan.rank = rank;
  plan.tokens = static_cast<std::int64_t>(choices.size()) / top_k;
  plan.destinations.resize(choices.size());
  EpCursor* const cursors = work.cursors.data();
  const std::int32_t* choice = choices.data();
  std::int64_t* destination = plan.destinations.data();
  for (std::int64_t token = 0; token < plan.tokens; ++token) {
    Seen seen;
    for (int k = 0; k < top_k; ++k) {
      const std::int32_t expert = *choice++;
      EpCursor& cursor = cursors[expert];
      if (cursor.left == 0) {
        advance(plan, expert, cursor);
      }
      *destination++ = seen.add(cursor.rank) ? cursor.place : -cursor.place - 1;
      ++cursor.place;
      --cursor.left;
    }
  }
  return {};
}

}  // namespace muster::parallel
