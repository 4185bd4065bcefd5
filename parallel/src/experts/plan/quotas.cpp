// SPDX-License-Identifier: Apache-2.0
// Parts A and B: numbers of rows that leave a home, their ranks and their experts.
#include "parallel/src/experts/plan/work.h"

#include <algorithm>

namespace muster::parallel {

namespace {

int argmax(const std::vector<std::int64_t>& values) {
  return static_cast<int>(std::max_element(values.begin(), values.end()) - values.begin());
}

int argmin(const std::vector<std::int64_t>& values) {
  return static_cast<int>(std::min_element(values.begin(), values.end()) - values.begin());
}

// Largest remainders: floor(rows * weight / sum), and one more for the ranks with the largest
// remainders, the lower rank first. With equal weights floor(rows / R) + [r < rows mod R].
void apportion(EpPlanWork& work) {
  std::vector<std::int64_t>& cut = work.excess;  // scratch until quotas are found
  std::int64_t rest = work.rows;
  for (std::size_t rank = 0; rank < work.capacities.size(); ++rank) {
    const std::int64_t product = work.rows * work.weights[rank];
    work.capacities[rank] = product / work.weight_sum;
    cut[rank] = product % work.weight_sum;
    rest -= work.capacities[rank];
  }
  for (; rest > 0; --rest) {
    const int rank = argmax(cut);
    ++work.capacities[at(rank)];
    cut[at(rank)] = -1;
  }
}

void add_quota(EpPlanWork& work, int home, int rank, std::int64_t rows) {
  work.quotas.push_back({home, rank, rows});
  work.own[at(home)] -= rows;
  ++work.homes[at(rank)];
  ++work.quota_steps;
}

// Finds the home above capacity that has the most rows.
int richest_home(const EpPlanWork& work) {
  int best = -1;
  for (int rank = 0; rank < work.shape.ranks; ++rank) {
    if (work.excess[at(rank)] > 0 && (best < 0 || work.own[at(rank)] > work.own[at(best)])) {
      best = rank;
    }
  }
  return best;
}

Status too_few_homes(const EpPlanWork& work, int rank, std::int64_t needed) {
  return failed_precondition(
      "expert parallelism: rank ",
      rank,
      " has room for ",
      needed,
      " more rows and no single home can fill it (homes_max ",
      work.balance.homes_max,
      "): raise homes_max, or even out the speeds");
}

// The exact plan. A home may drop below its capacity and become a receiver later, so that one home
// can fill a receiver. If capacities differ, a home may be too small for that; then the home with
// the most rows is taken, and a second one only if homes_max allows it.
Status find_exact(EpPlanWork& work) {
  work.quotas.clear();
  work.quota_steps = 0;
  std::copy(work.loads.begin(), work.loads.end(), work.own.begin());
  std::fill(work.homes.begin(), work.homes.end(), 0);
  for (std::size_t rank = 0; rank < work.excess.size(); ++rank) {
    work.excess[rank] = work.loads[rank] - work.capacities[rank];
  }
  while (true) {
    int home = argmax(work.excess);
    if (work.excess[at(home)] <= 0) {
      return {};
    }
    const int rank = argmin(work.excess);
    const std::int64_t needed = -work.excess[at(rank)];
    if (work.own[at(home)] < needed) {
      home = richest_home(work);
      if (work.own[at(home)] < needed && work.homes[at(rank)] + 1 >= work.balance.homes_max) {
        return too_few_homes(work, rank, needed);
      }
    }
    const std::int64_t rows = std::min(needed, work.own[at(home)]);
    add_quota(work, home, rank, rows);
    work.excess[at(home)] -= rows;
    work.excess[at(rank)] += rows;
  }
}

// Ranks above (1 + tolerance) capacity send their surplus to the emptiest rank. Returns false if
// receivers, each of which takes from one home only, run out.
bool find_tolerant(EpPlanWork& work) {
  work.quotas.clear();
  work.quota_steps = 0;
  std::copy(work.loads.begin(), work.loads.end(), work.own.begin());
  std::fill(work.homes.begin(), work.homes.end(), 0);
  for (std::size_t rank = 0; rank < work.excess.size(); ++rank) {
    const std::int64_t capacity = work.capacities[rank];
    work.excess[rank] =
        work.loads[rank] - capacity - capacity * work.tolerance_ppm / kEpToleranceOne;
  }
  while (true) {
    const int home = argmax(work.excess);
    if (work.excess[at(home)] <= 0) {
      return true;
    }
    const int rank = argmin(work.excess);
    const std::int64_t rows = std::min(work.excess[at(home)], -work.excess[at(rank)]);
    if (rows <= 0) {
      return false;
    }
    add_quota(work, home, rank, rows);
    work.excess[at(home)] -= rows;
    work.excess[at(rank)] = 0;  // it has its home
  }
}

// Finds the largest quota, on ties that of the lower rank.
EpQuota& largest(std::vector<EpQuota>& quotas) {
  return *std::max_element(quotas.begin(), quotas.end(), [](const EpQuota& a, const EpQuota& b) {
    return a.rows < b.rows || (a.rows == b.rows && a.rank > b.rank);
  });
}

void split_home(EpPlanWork& work, int home) {
  std::int64_t* const remaining = work.retained.data() + std::ptrdiff_t{home} * work.local_experts;
  while (true) {
    EpQuota& quota = largest(work.exports);
    if (quota.rows == 0) {
      return;
    }
    const auto expert =
        static_cast<int>(std::max_element(remaining, remaining + work.local_experts) - remaining);
    const std::int64_t rows = std::min(quota.rows, remaining[expert]);
    remaining[expert] -= rows;
    quota.rows -= rows;
    work.moves.push_back(
        {quota.rank, home * work.local_experts + expert, rows, work.first_move[at(quota.rank)]});
    work.first_move[at(quota.rank)] = static_cast<int>(work.moves.size()) - 1;
  }
}

}  // namespace

Status find_quotas(EpPlanWork& work) {
  if (work.balance.mode == EpBalanceMode::kNone) {
    work.quotas.clear();
    work.quota_steps = 0;
    apportion(work);
    return {};
  }
  apportion(work);
  if (work.balance.mode == EpBalanceMode::kTolerant && find_tolerant(work)) {
    return {};
  }
  return find_exact(work);
}

void split_quotas(EpPlanWork& work) {
  work.moves.clear();
  std::copy(work.totals.begin(), work.totals.end(), work.retained.begin());
  std::fill(work.first_move.begin(), work.first_move.end(), -1);
  if (work.quotas.empty()) {
    return;
  }
  for (int home = 0; home < work.shape.ranks; ++home) {
    work.exports.clear();
    std::copy_if(
        work.quotas.begin(),
        work.quotas.end(),
        std::back_inserter(work.exports),
        [home](const EpQuota& quota) { return quota.home == home; });
    if (!work.exports.empty()) {
      split_home(work, home);
    }
  }
}

}  // namespace muster::parallel
