// SPDX-License-Identifier: Apache-2.0
// check_plan: recomputes the invariants of a plan from its counts, without the planner's code.
#include "parallel/src/experts/plan/work.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <set>

namespace muster::parallel {

namespace {

using Rows = std::int64_t;

template <typename... Parts>
Status violated(const Parts&... parts) {
  return internal_error("plan: ", parts...);
}

class PlanCheck {
 public:
  PlanCheck(const EpPlan& plan, const EpBalance& balance)
      : plan_(plan),
        balance_(balance),
        ranks_(plan.shape.ranks),
        experts_(plan.shape.experts),
        local_(plan.shape.local_experts()),
        slots_(plan.shape.slot_count()),
        groups_(plan.shape.group_count()) {}

  Status run() {
    MUSTER_RETURN_IF_ERROR(check(plan_.shape, balance_));
    MUSTER_RETURN_IF_ERROR(sizes());
    MUSTER_RETURN_IF_ERROR(counts());
    MUSTER_RETURN_IF_ERROR(conservation());
    MUSTER_RETURN_IF_ERROR(loads());
    MUSTER_RETURN_IF_ERROR(homes());
    for (int rank = 0; rank < ranks_; ++rank) {
      MUSTER_RETURN_IF_ERROR(slots(rank));
      MUSTER_RETURN_IF_ERROR(groups(rank));
      MUSTER_RETURN_IF_ERROR(offsets(rank));
    }
    MUSTER_RETURN_IF_ERROR(statistics());
    MUSTER_RETURN_IF_ERROR(destinations());
    if (plan_.hash != ep_plan_hash(plan_)) {
      return violated("the hash is not that of the tables");
    }
    return {};
  }

 private:
  [[nodiscard]] Rows rows(int rank, int expert) const {
    return plan_.rows[at(rank) * at(experts_) + at(expert)];
  }

  [[nodiscard]] int group(int rank, int expert) const {
    return plan_.groups[at(rank) * at(experts_) + at(expert)];
  }

  [[nodiscard]] int slot_expert(int rank, int slot) const {
    return plan_.slot_experts[at(rank) * at(slots_) + at(slot)];
  }

  [[nodiscard]] std::size_t group_at(int rank, int group) const {
    return at(rank) * at(groups_) + at(group);
  }

  [[nodiscard]] bool at_home(int rank, int expert) const { return expert / local_ == rank; }

  [[nodiscard]] Rows load(int rank) const {
    const Rows* const first = plan_.rows.data() + std::ptrdiff_t{rank} * experts_;
    return std::accumulate(first, first + experts_, Rows{0});
  }

  [[nodiscard]] Rows load_before(int rank) const {
    return std::accumulate(
        totals_.begin() + std::ptrdiff_t{rank} * local_,
        totals_.begin() + std::ptrdiff_t{rank + 1} * local_,
        Rows{0});
  }

  [[nodiscard]] Rows padded(Rows rows) const {
    const Rows padding = plan_.shape.padding;
    return rows % padding == 0 ? rows : (rows / padding + 1) * padding;
  }

  [[nodiscard]] Status sizes() const {
    const std::size_t table = at(ranks_) * at(experts_);
    const std::size_t per_group = at(ranks_) * at(groups_);
    const bool fits = plan_.counts.size() == table && plan_.rows.size() == table &&
                      plan_.groups.size() == table && plan_.begins.size() == per_group &&
                      plan_.ends.size() == per_group && plan_.group_rows.size() == per_group &&
                      plan_.slot_experts.size() == at(ranks_) * at(slots_);
    if (!fits) {
      return violated("the size of a table does not match the shape");
    }
    if (plan_.receive_rows != ep_receive_rows(plan_.shape, balance_)) {
      return violated("receive_rows ", plan_.receive_rows, " is not that of shape and balance");
    }
    return {};
  }

  Status counts() {
    totals_.assign(at(experts_), 0);
    for (int rank = 0; rank < ranks_; ++rank) {
      Rows sum = 0;
      for (int e = 0; e < experts_; ++e) {
        const std::int32_t count = plan_.counts[at(rank) * at(experts_) + at(e)];
        if (count < 0) {
          return violated("rank ", rank, " counts ", count, " rows for expert ", e);
        }
        totals_[at(e)] += count;
        sum += count;
      }
      if (sum % plan_.shape.top_k != 0 || sum > plan_.shape.tokens_max * plan_.shape.top_k) {
        return violated("rank ", rank, " counts ", sum, " rows");
      }
      all_rows_ += sum;
    }
    return {};
  }

  [[nodiscard]] Status conservation() const {
    for (int e = 0; e < experts_; ++e) {
      Rows sum = 0;
      for (int rank = 0; rank < ranks_; ++rank) {
        if (rows(rank, e) < 0) {
          return violated("rank ", rank, " computes ", rows(rank, e), " rows of expert ", e);
        }
        sum += rows(rank, e);
      }
      if (sum != totals_[at(e)]) {
        return violated("expert ", e, " has ", totals_[at(e)], " rows, ", sum, " are computed");
      }
    }
    return {};
  }

  // Largest remainders, by sorting.
  void capacities() {
    std::vector<Rows> weights(at(ranks_), 1);
    if (!balance_.speeds.empty()) {
      const double most = *std::max_element(balance_.speeds.begin(), balance_.speeds.end());
      std::transform(
          balance_.speeds.begin(), balance_.speeds.end(), weights.begin(), [&](double speed) {
            return std::llround(speed / most * static_cast<double>(kEpWeightOne));
          });
    }
    const Rows sum = std::accumulate(weights.begin(), weights.end(), Rows{0});
    std::vector<int> order(at(ranks_));
    std::iota(order.begin(), order.end(), 0);
    const auto remainder = [&](int rank) { return all_rows_ * weights[at(rank)] % sum; };
    std::stable_sort(
        order.begin(), order.end(), [&](int a, int b) { return remainder(a) > remainder(b); });
    capacities_.resize(at(ranks_));
    Rows rest = all_rows_;
    for (int rank = 0; rank < ranks_; ++rank) {
      capacities_[at(rank)] = all_rows_ * weights[at(rank)] / sum;
      rest -= capacities_[at(rank)];
    }
    for (Rows i = 0; i < rest; ++i) {
      ++capacities_[at(order[at(i)])];
    }
  }

  Status loads() {
    capacities();
    for (int rank = 0; rank < ranks_; ++rank) {
      const Rows computed = load(rank);
      const Rows capacity = capacities_[at(rank)];
      if (balance_.mode == EpBalanceMode::kNone && computed != load_before(rank)) {
        return violated(
            "rank ", rank, " computes ", computed, " rows, its experts have ", load_before(rank));
      }
      if (balance_.mode == EpBalanceMode::kExact && computed != capacity) {
        return violated("rank ", rank, " computes ", computed, " rows, its capacity is ", capacity);
      }
      if (balance_.mode == EpBalanceMode::kTolerant &&
          computed - capacity > capacity * ep_tolerance_ppm(balance_) / kEpToleranceOne) {
        return violated(
            "rank ",
            rank,
            " computes ",
            computed,
            " rows, more than its capacity ",
            capacity,
            " and ",
            balance_.tolerance,
            " of it");
      }
    }
    return {};
  }

  [[nodiscard]] Status homes() const {
    for (int rank = 0; rank < ranks_; ++rank) {
      std::set<int> homes;
      for (int e = 0; e < experts_; ++e) {
        if (rows(rank, e) > 0 && !at_home(rank, e)) {
          homes.insert(e / local_);
        }
      }
      if (static_cast<int>(homes.size()) > balance_.homes_max) {
        return violated("rank ", rank, " receives from ", homes.size(), " homes");
      }
    }
    return {};
  }

  [[nodiscard]] Status slots(int rank) const {
    for (int slot = 0; slot < slots_; ++slot) {
      const int expert = slot_expert(rank, slot);
      const int before = slot == 0 ? -1 : slot_expert(rank, slot - 1);
      if (expert < -1 || expert >= experts_) {
        return violated("rank ", rank, ", slot ", slot, " holds expert ", expert);
      }
      if (expert >= 0 && ((slot > 0 && before < 0) || expert <= before)) {
        return violated("slots of rank ", rank, " do not ascend at slot ", slot);
      }
      if (expert >= 0 && (at_home(rank, expert) || rows(rank, expert) == 0)) {
        return violated("rank ", rank, " holds expert ", expert, " in a slot without need");
      }
    }
    return {};
  }

  // Groups of experts, and the experts without a slot.
  [[nodiscard]] Status groups(int rank) const {
    const bool compact = plan_.shape.compact;
    const int first_slot = groups_ - slots_;
    bool overflow = false;
    std::pair<Rows, int> largest_overflow{0, 0};
    std::pair<Rows, int> smallest_slot{INT64_MAX, 0};
    for (int e = 0; e < experts_; ++e) {
      const int group = this->group(rank, e);
      if (at_home(rank, e)) {
        if (group != (compact ? e - rank * local_ : e)) {
          return violated("rank ", rank, " has its expert ", e, " in group ", group);
        }
      } else if (rows(rank, e) == 0) {
        if (group != -1) {
          return violated("rank ", rank, " has expert ", e, " in group ", group, " without rows");
        }
      } else if (group >= first_slot && group < groups_) {
        if (slot_expert(rank, group - first_slot) != e) {
          return violated("rank ", rank, ", group ", group, " is not the slot of expert ", e);
        }
        smallest_slot = std::min(smallest_slot, {rows(rank, e), e});
      } else if (!compact && group == e) {
        overflow = true;
        largest_overflow = std::max(largest_overflow, {rows(rank, e), e});
      } else {
        return violated("rank ", rank, " has expert ", e, " in group ", group);
      }
    }
    if (overflow && slots_ > 0 &&
        (slot_expert(rank, slots_ - 1) < 0 || smallest_slot < largest_overflow)) {
      return violated(
          "rank ",
          rank,
          " leaves expert ",
          largest_overflow.second,
          " without a slot and expert ",
          smallest_slot.second,
          " has one");
    }
    return {};
  }

  [[nodiscard]] Status offsets(int rank) const {
    std::vector<Rows> real(at(groups_), 0);
    for (int e = 0; e < experts_; ++e) {
      if (rows(rank, e) > 0) {
        real[at(group(rank, e))] = rows(rank, e);
      }
    }
    Rows offset = 0;
    for (int g = 0; g < groups_; ++g) {
      const std::size_t i = group_at(rank, g);
      if (plan_.group_rows[i] != real[at(g)] || plan_.begins[i] != offset ||
          plan_.ends[i] != offset + padded(real[at(g)])) {
        return violated(
            "rank ",
            rank,
            ", group ",
            g,
            " is [",
            plan_.begins[i],
            ", ",
            plan_.ends[i],
            ") with ",
            plan_.group_rows[i],
            " rows, should begin at ",
            offset,
            " with ",
            real[at(g)]);
      }
      offset = plan_.ends[i];
    }
    if (offset > plan_.receive_rows || offset != ep_row_count(plan_, rank)) {
      return violated(
          "rank ", rank, " has ", offset, " rows, receive_rows is ", plan_.receive_rows);
    }
    return {};
  }

  [[nodiscard]] Status statistics() const {
    EpPlanStatistics found;
    found.rows = all_rows_;
    std::vector<Rows> out(at(ranks_), 0);
    for (int rank = 0; rank < ranks_; ++rank) {
      Rows in = 0;
      for (int slot = 0; slot < slots_; ++slot) {
        if (const int expert = slot_expert(rank, slot); expert >= 0) {
          ++in;
          ++out[at(expert / local_)];
        }
      }
      found.copies += in;
      found.copies_in_max = std::max(found.copies_in_max, in);
      Rows remote = 0;
      for (int e = 0; e < experts_; ++e) {
        if (!at_home(rank, e)) {
          found.rows_moved += rows(rank, e);
          remote += rows(rank, e) > 0 ? 1 : 0;
        }
      }
      found.overflow_groups += remote - in;
      found.surplus += std::max<Rows>(0, load_before(rank) - capacities_[at(rank)]);
      found.pad_rows += ep_row_count(plan_, rank) - load(rank);
    }
    found.copies_out_max = *std::max_element(out.begin(), out.end());
    const EpPlanStatistics& said = plan_.statistics;
    const std::array<std::array<Rows, 2>, 8> pairs{
        {{found.rows, said.rows},
         {found.copies, said.copies},
         {found.copies_in_max, said.copies_in_max},
         {found.copies_out_max, said.copies_out_max},
         {found.rows_moved, said.rows_moved},
         {found.surplus, said.surplus},
         {found.overflow_groups, said.overflow_groups},
         {found.pad_rows, said.pad_rows}}};
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      if (pairs[i][0] != pairs[i][1]) {
        return violated("statistic ", i, " is ", pairs[i][1], ", should be ", pairs[i][0]);
      }
    }
    return {};
  }

  // Destinations of one rank: in a group's real rows, distinct, and the first row of a token on
  // each rank is the one that is sent.
  [[nodiscard]] Status destinations() const {
    const auto top_k = at(plan_.shape.top_k);
    if (plan_.destinations.size() != at(plan_.tokens) * top_k) {
      return violated(plan_.destinations.size(), " destinations for ", plan_.tokens, " tokens");
    }
    std::vector<Rows> places;
    for (std::size_t token = 0; token < at(plan_.tokens); ++token) {
      std::set<Rows> seen;
      for (std::size_t k = 0; k < top_k; ++k) {
        const Rows destination = plan_.destinations[token * top_k + k];
        const Rows place = destination < 0 ? -destination - 1 : destination;
        const Rows rank = place / plan_.receive_rows;
        if (rank >= ranks_ || !is_row(static_cast<int>(rank), place % plan_.receive_rows)) {
          return violated("token ", token, ", choice ", k, " goes to no row: ", destination);
        }
        if (seen.insert(rank).second != (destination >= 0)) {
          return violated(
              "token ",
              token,
              ", choice ",
              k,
              ": first row at rank ",
              rank,
              " and sent do not agree");
        }
        places.push_back(place);
      }
    }
    std::sort(places.begin(), places.end());
    if (const auto twice = std::adjacent_find(places.begin(), places.end());
        twice != places.end()) {
      return violated(
          "row ",
          *twice % plan_.receive_rows,
          " of rank ",
          *twice / plan_.receive_rows,
          " is used twice");
    }
    return {};
  }

  [[nodiscard]] bool is_row(int rank, Rows row) const {
    const auto first = plan_.ends.begin() + static_cast<std::ptrdiff_t>(group_at(rank, 0));
    const auto end = std::upper_bound(first, first + groups_, row);
    if (end == first + groups_) {
      return false;
    }
    const auto i = static_cast<std::size_t>(end - plan_.ends.begin());
    return row - plan_.begins[i] < plan_.group_rows[i];
  }

  const EpPlan& plan_;
  const EpBalance& balance_;
  int ranks_;
  int experts_;
  int local_;
  int slots_;
  int groups_;
  Rows all_rows_{0};
  std::vector<Rows> totals_;
  std::vector<Rows> capacities_;
};

}  // namespace

Status check_plan(const EpPlan& plan, const EpBalance& balance) {
  return PlanCheck{plan, balance}.run();
}

}  // namespace muster::parallel
