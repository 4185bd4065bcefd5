// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/parallel/experts/plan/case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <sstream>

namespace muster::parallel::testing {

namespace {

// Cumulative popularity of experts.
std::vector<double> popularity(const EpShape& shape, Routing routing, FastRandom& random) {
  std::vector<double> weights(at(shape.experts), 0);
  const int m = shape.local_experts();
  switch (routing) {
    case Routing::kUniform:
      std::fill(weights.begin(), weights.end(), 1.0);
      break;
    case Routing::kSkewed:
      for (double& weight : weights) {
        weight = std::exp(4 * (random.uniform() + random.uniform() - 1));
      }
      break;
    case Routing::kOneExpert:
      weights[at(random.below(shape.experts))] = 1;
      break;
    case Routing::kOneHome: {
      const int home = random.below(shape.ranks);
      std::fill_n(weights.begin() + std::ptrdiff_t{home} * m, m, 1.0);
      break;
    }
    case Routing::kFewExperts:
      for (int i = random.between(1, std::max(1, shape.experts / 3)); i > 0; --i) {
        weights[at(random.below(shape.experts))] += random.uniform() + 0.01;
      }
      break;
  }
  std::partial_sum(weights.begin(), weights.end(), weights.begin());
  return weights;
}

}  // namespace

Choices draw_choices(
    const EpShape& shape, const std::vector<int>& tokens, Routing routing, FastRandom& random) {
  const std::vector<double> cumulative = popularity(shape, routing, random);
  const auto draw = [&] {
    const double u = random.uniform() * cumulative.back();
    const auto expert = std::upper_bound(cumulative.begin(), cumulative.end(), u);
    return static_cast<std::int32_t>(
        std::min<std::ptrdiff_t>(expert - cumulative.begin(), shape.experts - 1));
  };
  Choices choices(at(shape.ranks));
  for (int rank = 0; rank < shape.ranks; ++rank) {
    for (int token = 0; token < tokens[at(rank)]; ++token) {
      const std::size_t first = choices[at(rank)].size();
      for (int k = 0; k < shape.top_k; ++k) {
        std::int32_t expert = draw();
        const auto taken = [&] {
          const auto begin = choices[at(rank)].begin() + static_cast<std::ptrdiff_t>(first);
          return std::find(begin, choices[at(rank)].end(), expert) != choices[at(rank)].end();
        };
        for (int tries = 0; tries < 8 && taken(); ++tries) {
          expert = draw();
        }
        choices[at(rank)].push_back(expert);
      }
    }
  }
  return choices;
}

std::vector<std::int32_t> count(const EpShape& shape, const Choices& choices) {
  std::vector<std::int32_t> counts(at(shape.ranks) * at(shape.experts), 0);
  for (std::size_t rank = 0; rank < choices.size(); ++rank) {
    for (const std::int32_t expert : choices[rank]) {
      ++counts[rank * at(shape.experts) + at(expert)];
    }
  }
  return counts;
}

namespace {

class Reference {
 public:
  Reference(const EpShape& shape, const Choices& choices, std::int64_t receive_rows)
      : shape_(shape), choices_(choices), receive_rows_(receive_rows), m_(shape.local_experts()) {}

  ReferencePlan make() {
    total_rows();
    quotas();
    plan_.rows.assign(at(shape_.ranks), std::vector<std::int64_t>(at(shape_.experts), 0));
    for (int home = 0; home < shape_.ranks; ++home) {
      split(home);
    }
    for (int rank = 0; rank < shape_.ranks; ++rank) {
      tables(rank);
    }
    for (int rank = 0; rank < shape_.ranks; ++rank) {
      place(rank);
    }
    return plan_;
  }

 private:
  void total_rows() {
    total_.assign(at(shape_.experts), 0);
    for (const auto& of_rank : choices_) {
      for (const std::int32_t expert : of_rank) {
        ++total_[at(expert)];
      }
    }
  }

  void quotas() {
    const int ranks = shape_.ranks;
    const std::int64_t all = std::accumulate(total_.begin(), total_.end(), std::int64_t{0});
    std::vector<std::int64_t> balance(at(ranks));
    for (int rank = 0; rank < ranks; ++rank) {
      const auto first = total_.begin() + std::ptrdiff_t{rank} * m_;
      balance[at(rank)] = std::accumulate(first, first + m_, std::int64_t{0}) - all / ranks -
                          (rank < all % ranks ? 1 : 0);
    }
    quota_.assign(at(ranks), std::vector<std::int64_t>(at(ranks), 0));
    while (true) {
      const auto home = std::max_element(balance.begin(), balance.end());
      const auto rank = std::min_element(balance.begin(), balance.end());
      if (*home <= 0) {
        return;
      }
      quota_[at(home - balance.begin())][at(rank - balance.begin())] = -*rank;
      *home += *rank;
      *rank = 0;
      ++plan_.steps;
    }
  }

  void split(int home) {
    std::vector<std::int64_t>& quota = quota_[at(home)];
    const auto first = total_.begin() + std::ptrdiff_t{home} * m_;
    std::vector<std::int64_t> remaining(first, first + m_);
    while (true) {
      const auto rank = std::max_element(quota.begin(), quota.end());
      const auto expert = std::max_element(remaining.begin(), remaining.end());
      const std::int64_t rows = std::min(*rank, *expert);
      if (*rank == 0) {
        break;
      }
      plan_.rows[at(rank - quota.begin())][at(home * m_ + (expert - remaining.begin()))] += rows;
      *rank -= rows;
      *expert -= rows;
    }
    for (int e = 0; e < m_; ++e) {
      plan_.rows[at(home)][at(home * m_ + e)] += remaining[at(e)];
    }
  }

  void tables(int rank) {
    std::vector<std::pair<std::int64_t, int>> remote;  // most rows first, larger id on ties
    for (int e = 0; e < shape_.experts; ++e) {
      if (e / m_ != rank && plan_.rows[at(rank)][at(e)] > 0) {
        remote.emplace_back(plan_.rows[at(rank)][at(e)], e);
      }
    }
    std::sort(remote.rbegin(), remote.rend());
    std::vector<int> slots;
    std::vector<int> overflow;
    for (std::size_t i = 0; i < remote.size(); ++i) {
      (i < at(shape_.slot_count()) ? slots : overflow).push_back(remote[i].second);
    }
    std::sort(slots.begin(), slots.end());
    std::sort(overflow.begin(), overflow.end());
    std::vector<int> of_group(at(shape_.group_count()), -1);
    for (int e = 0; e < m_; ++e) {
      of_group[at(shape_.compact ? e : rank * m_ + e)] = rank * m_ + e;
    }
    for (const int e : overflow) {
      of_group[at(e)] = e;
    }
    const std::size_t first_slot = of_group.size() - at(shape_.slot_count());
    std::copy(
        slots.begin(), slots.end(), of_group.begin() + static_cast<std::ptrdiff_t>(first_slot));
    std::vector<std::int64_t> ends;
    std::vector<std::int64_t> starts(at(shape_.experts), -1);
    std::int64_t offset = 0;
    for (const int e : of_group) {
      if (e >= 0) {
        starts[at(e)] = offset;
        const std::int64_t rows = plan_.rows[at(rank)][at(e)];
        offset += (rows + shape_.padding - 1) / shape_.padding * shape_.padding;
      }
      ends.push_back(offset);
    }
    starts_.push_back(starts);
    plan_.ends.push_back(ends);
    plan_.slots.push_back(slots);
    plan_.overflow.push_back(overflow);
  }

  void place(int rank) {
    std::vector<std::int64_t> places;
    const std::vector<std::int32_t>& own = choices_[at(rank)];
    for (std::size_t i = 0; i < own.size(); ++i) {
      const std::int32_t expert = own[i];
      std::int64_t index =
          std::count(own.begin(), own.begin() + static_cast<std::ptrdiff_t>(i), expert);
      for (int lower = 0; lower < rank; ++lower) {
        index += std::count(choices_[at(lower)].begin(), choices_[at(lower)].end(), expert);
      }
      int to = 0;
      while (index >= plan_.rows[at(to)][at(expert)]) {
        index -= plan_.rows[at(to)][at(expert)];
        ++to;
      }
      const std::int64_t place = to * receive_rows_ + starts_[at(to)][at(expert)] + index;
      const std::size_t token = i / at(shape_.top_k) * at(shape_.top_k);
      const bool again = std::any_of(
          places.begin() + static_cast<std::ptrdiff_t>(token),
          places.end(),
          [&](std::int64_t other) {
            return (other < 0 ? -other - 1 : other) / receive_rows_ == to;
          });
      places.push_back(again ? -place - 1 : place);
    }
    plan_.places.push_back(places);
  }

  const EpShape& shape_;
  const Choices& choices_;
  std::int64_t receive_rows_;
  int m_;
  std::vector<std::int64_t> total_;
  std::vector<std::vector<std::int64_t>> quota_;   // [home][rank]
  std::vector<std::vector<std::int64_t>> starts_;  // [rank][expert]
  ReferencePlan plan_;
};

}  // namespace

ReferencePlan reference_plan(
    const EpShape& shape, const Choices& choices, std::int64_t receive_rows) {
  return Reference{shape, choices, receive_rows}.make();
}

std::string describe(const EpShape& shape) {
  std::ostringstream text;
  text << "R " << shape.ranks << ", E " << shape.experts << ", K " << shape.top_k << ", tokens_max "
       << shape.tokens_max << ", B " << shape.slots << ", P " << shape.padding
       << (shape.compact ? ", compact" : "");
  return text.str();
}

EpPlan plan_of(const EpShape& shape, const EpBalance& balance, const Choices& choices, int rank) {
  EXPECT_EQ(check(shape, balance).to_string(), "ok") << describe(shape);
  EpPlanner planner{shape, balance};
  EpPlan plan{shape, balance};
  EXPECT_EQ(planner.plan(count(shape, choices), plan).to_string(), "ok") << describe(shape);
  EXPECT_EQ(planner.place(rank, choices[at(rank)], plan).to_string(), "ok") << describe(shape);
  return plan;
}

}  // namespace muster::parallel::testing
