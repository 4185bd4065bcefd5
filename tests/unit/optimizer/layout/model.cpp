// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/optimizer/layout/model.h"

#include <algorithm>
#include <numeric>
#include <set>

namespace muster::optimizer {
namespace {

bool replicated(const BufferPlan& plan) {
  return plan.layout == Layout::kReplicated;
}

// (1): how often every element is stored, and how often as a primary.
void expect_each_element_once(const Routing& routing, const BufferPlan& plan) {
  for (const PlacedParameter& placed : plan.placed) {
    const std::size_t size = routing.parameters[placed.parameter].size;
    std::vector<int> stored(size, 0);
    std::vector<int> primary(size, 0);
    for (const auto& shards : plan.shards) {
      for (const Shard& shard : shards) {
        for (std::size_t i = 0; shard.parameter == placed.parameter && i < shard.size; ++i) {
          stored[shard.parameter_begin + i] += 1;
          primary[shard.parameter_begin + i] += shard.primary ? 1 : 0;
        }
      }
    }
    const int copies = replicated(plan) ? plan.ranks : 1;
    EXPECT_EQ(std::count(stored.begin(), stored.end(), copies), static_cast<std::ptrdiff_t>(size));
    EXPECT_EQ(std::count(primary.begin(), primary.end(), 1), static_cast<std::ptrdiff_t>(size));
  }
}

// (2), and that shards lie where their parameter does, in memory order.
void expect_one_piece_each(const BufferPlan& plan) {
  std::vector<std::size_t> begin_of(1000, 0);
  for (const PlacedParameter& placed : plan.placed) {
    begin_of.at(placed.parameter) = placed.begin;
  }
  ASSERT_EQ(plan.shards.size(), static_cast<std::size_t>(plan.ranks));
  for (const auto& shards : plan.shards) {
    std::set<std::size_t> seen;
    std::size_t at = 0;
    for (const Shard& shard : shards) {
      EXPECT_TRUE(seen.insert(shard.parameter).second) << "two shards of " << shard.parameter;
      EXPECT_EQ(shard.buffer_begin, begin_of[shard.parameter] + shard.parameter_begin);
      EXPECT_GE(shard.buffer_begin, at);
      EXPECT_GT(shard.size, 0U);
      at = shard.buffer_begin + shard.size;
    }
  }
}

// (3), and that buckets tile the buffer and give every rank exactly its shards.
void expect_segments_tile(const Routing& routing, const BufferPlan& plan) {
  std::vector<const Bucket*> by_begin;
  for (const Bucket& bucket : plan.buckets) {
    by_begin.push_back(&bucket);
  }
  std::sort(by_begin.begin(), by_begin.end(), [](const Bucket* a, const Bucket* b) {
    return a->begin < b->begin;
  });
  std::size_t at = 0;
  std::set<std::size_t> parameters;
  for (const Bucket* bucket : by_begin) {
    EXPECT_EQ(bucket->begin, at);
    at += bucket->size;
    if (replicated(plan)) {
      EXPECT_TRUE(bucket->counts.empty());
    } else {
      EXPECT_EQ(bucket->counts.size(), static_cast<std::size_t>(plan.ranks));
      EXPECT_EQ(
          std::accumulate(bucket->counts.begin(), bucket->counts.end(), std::size_t{0}),
          bucket->size);
    }
    for (const std::size_t parameter : bucket->parameters) {
      EXPECT_TRUE(parameters.insert(parameter).second);
      const auto placed = std::find_if(
          plan.placed.begin(), plan.placed.end(), [&](const PlacedParameter& candidate) {
            return candidate.parameter == parameter;
          });
      ASSERT_NE(placed, plan.placed.end());
      EXPECT_EQ(placed->begin % kAlignmentElements, 0U);
      EXPECT_GE(placed->begin, bucket->begin);
      EXPECT_LE(placed->begin + routing.parameters[parameter].size, bucket->begin + bucket->size);
    }
  }
  EXPECT_EQ(at, plan.size);
  EXPECT_EQ(parameters.size(), plan.placed.size());
}

void expect_pieces_inside_counts(const BufferPlan& plan) {
  for (std::size_t rank = 0; !replicated(plan) && rank < plan.shards.size(); ++rank) {
    for (const Shard& shard : plan.shards[rank]) {
      const auto bucket =
          std::find_if(plan.buckets.begin(), plan.buckets.end(), [&](const Bucket& candidate) {
            return shard.buffer_begin >= candidate.begin &&
                   shard.buffer_begin < candidate.begin + candidate.size;
          });
      ASSERT_NE(bucket, plan.buckets.end());
      const std::size_t begin = std::accumulate(
          bucket->counts.begin(),
          bucket->counts.begin() + static_cast<std::ptrdiff_t>(rank),
          bucket->begin);
      EXPECT_GE(shard.buffer_begin, begin);
      EXPECT_LE(shard.buffer_begin + shard.size, begin + bucket->counts[rank]);
    }
  }
}

// (4).
void expect_legal_cuts(const Routing& routing, const BufferPlan& plan, std::int64_t granularity) {
  for (const auto& shards : plan.shards) {
    for (const Shard& shard : shards) {
      const RoutedParameter& parameter = routing.parameters[shard.parameter];
      const bool rows = plan.layout == Layout::kRowShards && plan.key.matrices &&
                        parameter.state_type != StateType::kInt8Block;
      const std::size_t step =
          rows ? static_cast<std::size_t>(parameter.cols) : static_cast<std::size_t>(granularity);
      EXPECT_EQ(shard.parameter_begin % parameter.unit % step, 0U);
      const std::size_t end = shard.parameter_begin + shard.size;
      EXPECT_TRUE(end % parameter.unit == 0 || end % parameter.unit % step == 0U);
    }
  }
}

void expect_fragments_cover(const BufferPlan& plan, const MatrixTask& task) {
  std::size_t at = 0;
  for (const Fragment& fragment : task.fragments) {
    EXPECT_GT(fragment.size, 0U);
    if (replicated(plan)) {
      EXPECT_EQ(fragment.size, task.size);
      continue;
    }
    EXPECT_EQ(fragment.begin, at);
    at += fragment.size;
    const auto& shards = plan.shards.at(static_cast<std::size_t>(fragment.rank));
    const bool stored = std::any_of(shards.begin(), shards.end(), [&](const Shard& shard) {
      return shard.parameter == task.parameter &&
             shard.parameter_begin <= task.begin + fragment.begin &&
             shard.parameter_begin + shard.size >= task.begin + fragment.begin + fragment.size;
    });
    EXPECT_TRUE(stored) << "rank " << fragment.rank << " does not store its fragment";
  }
  if (!replicated(plan)) {
    EXPECT_EQ(at, task.size);
  }
}

void expect_sound_tasks(const Routing& routing, const BufferPlan& plan) {
  std::size_t matrices = 0;
  for (const PlacedParameter& placed : plan.placed) {
    matrices += routing.parameters[placed.parameter].matrices;
  }
  ASSERT_EQ(plan.tasks.size(), matrices);
  for (const MatrixTask& task : plan.tasks) {
    expect_fragments_cover(plan, task);
    EXPECT_FALSE(task.computing.empty());
    EXPECT_TRUE(std::is_sorted(task.computing.begin(), task.computing.end()));
    EXPECT_EQ(task.moves, missing_elements(task) > 0);
  }
  ASSERT_FALSE(plan.round_ends.empty());
  EXPECT_TRUE(std::is_sorted(plan.round_ends.begin(), plan.round_ends.end()));
  EXPECT_EQ(plan.round_ends.back(), plan.tasks.size());
}

}  // namespace

std::size_t missing_elements(const MatrixTask& task) {
  std::size_t missing = 0;
  for (const int rank : task.computing) {
    std::size_t held = 0;
    for (const Fragment& fragment : task.fragments) {
      held += fragment.rank == rank ? fragment.size : 0;
    }
    missing += task.size - held;
  }
  return missing;
}

void expect_sound(const Routing& routing, const BufferPlan& plan, std::int64_t granularity) {
  expect_each_element_once(routing, plan);
  expect_one_piece_each(plan);
  expect_segments_tile(routing, plan);
  expect_pieces_inside_counts(plan);
  expect_legal_cuts(routing, plan, granularity);
  if (plan.key.matrices) {
    expect_sound_tasks(routing, plan);
  }
}

}  // namespace muster::optimizer
