#include "tests/unit/optimizer/layout/model.h"

#include <algorithm>
#include <numeric>
#include <set>

namespace muster::optimizer {
namespace {

bool replicated(const RegionPlan& plan) {
  return plan.layout == Layout::kReplicated;
}

// (1): how often every element is stored, and how often as a primary.
void expect_each_element_once(const Routing& routing, const RegionPlan& plan) {
  for (const PlacedParameter& placed : plan.placed) {
    const std::size_t size = routing.parameters[placed.parameter].size;
    std::vector<int> stored(size, 0);
    std::vector<int> primary(size, 0);
    for (const auto& pieces : plan.pieces) {
      for (const Piece& piece : pieces) {
        for (std::size_t i = 0; piece.parameter == placed.parameter && i < piece.size; ++i) {
          stored[piece.parameter_begin + i] += 1;
          primary[piece.parameter_begin + i] += piece.primary ? 1 : 0;
        }
      }
    }
    const int copies = replicated(plan) ? plan.ranks : 1;
    EXPECT_EQ(std::count(stored.begin(), stored.end(), copies), static_cast<std::ptrdiff_t>(size));
    EXPECT_EQ(std::count(primary.begin(), primary.end(), 1), static_cast<std::ptrdiff_t>(size));
  }
}

// (2), and that pieces lie where their parameter does, in memory order.
void expect_one_piece_each(const RegionPlan& plan) {
  std::vector<std::size_t> begin_of(1000, 0);
  for (const PlacedParameter& placed : plan.placed) {
    begin_of.at(placed.parameter) = placed.begin;
  }
  ASSERT_EQ(plan.pieces.size(), static_cast<std::size_t>(plan.ranks));
  for (const auto& pieces : plan.pieces) {
    std::set<std::size_t> seen;
    std::size_t at = 0;
    for (const Piece& piece : pieces) {
      EXPECT_TRUE(seen.insert(piece.parameter).second) << "two pieces of " << piece.parameter;
      EXPECT_EQ(piece.region_begin, begin_of[piece.parameter] + piece.parameter_begin);
      EXPECT_GE(piece.region_begin, at);
      EXPECT_GT(piece.size, 0U);
      at = piece.region_begin + piece.size;
    }
  }
}

// (3), and that segments tile the region and give every rank exactly its pieces.
void expect_segments_tile(const Routing& routing, const RegionPlan& plan) {
  std::vector<const Segment*> by_begin;
  for (const Segment& segment : plan.segments) {
    by_begin.push_back(&segment);
  }
  std::sort(by_begin.begin(), by_begin.end(), [](const Segment* a, const Segment* b) {
    return a->begin < b->begin;
  });
  std::size_t at = 0;
  std::set<std::size_t> parameters;
  for (const Segment* segment : by_begin) {
    EXPECT_EQ(segment->begin, at);
    at += segment->size;
    if (replicated(plan)) {
      EXPECT_TRUE(segment->counts.empty());
    } else {
      EXPECT_EQ(segment->counts.size(), static_cast<std::size_t>(plan.ranks));
      EXPECT_EQ(
          std::accumulate(segment->counts.begin(), segment->counts.end(), std::size_t{0}),
          segment->size);
    }
    for (const std::size_t parameter : segment->parameters) {
      EXPECT_TRUE(parameters.insert(parameter).second);
      const auto placed = std::find_if(
          plan.placed.begin(), plan.placed.end(), [&](const PlacedParameter& candidate) {
            return candidate.parameter == parameter;
          });
      ASSERT_NE(placed, plan.placed.end());
      EXPECT_EQ(placed->begin % kAlignmentElements, 0U);
      EXPECT_GE(placed->begin, segment->begin);
      EXPECT_LE(placed->begin + routing.parameters[parameter].size, segment->begin + segment->size);
    }
  }
  EXPECT_EQ(at, plan.size);
  EXPECT_EQ(parameters.size(), plan.placed.size());
}

void expect_pieces_inside_counts(const RegionPlan& plan) {
  for (std::size_t rank = 0; !replicated(plan) && rank < plan.pieces.size(); ++rank) {
    for (const Piece& piece : plan.pieces[rank]) {
      const auto segment =
          std::find_if(plan.segments.begin(), plan.segments.end(), [&](const Segment& candidate) {
            return piece.region_begin >= candidate.begin &&
                   piece.region_begin < candidate.begin + candidate.size;
          });
      ASSERT_NE(segment, plan.segments.end());
      const std::size_t begin = std::accumulate(
          segment->counts.begin(),
          segment->counts.begin() + static_cast<std::ptrdiff_t>(rank),
          segment->begin);
      EXPECT_GE(piece.region_begin, begin);
      EXPECT_LE(piece.region_begin + piece.size, begin + segment->counts[rank]);
    }
  }
}

// (4).
void expect_legal_cuts(const Routing& routing, const RegionPlan& plan, std::int64_t granularity) {
  for (const auto& pieces : plan.pieces) {
    for (const Piece& piece : pieces) {
      const RoutedParameter& parameter = routing.parameters[piece.parameter];
      const bool rows = plan.layout == Layout::kRowShards && plan.key.matrices &&
                        parameter.state_type != StateType::kInt8Block;
      const std::size_t step =
          rows ? static_cast<std::size_t>(parameter.cols) : static_cast<std::size_t>(granularity);
      EXPECT_EQ(piece.parameter_begin % parameter.unit % step, 0U);
      const std::size_t end = piece.parameter_begin + piece.size;
      EXPECT_TRUE(end % parameter.unit == 0 || end % parameter.unit % step == 0U);
    }
  }
}

void expect_fragments_cover(const RegionPlan& plan, const MatrixTask& task) {
  std::size_t at = 0;
  for (const Fragment& fragment : task.fragments) {
    EXPECT_GT(fragment.size, 0U);
    if (replicated(plan)) {
      EXPECT_EQ(fragment.size, task.size);
      continue;
    }
    EXPECT_EQ(fragment.begin, at);
    at += fragment.size;
    const auto& pieces = plan.pieces.at(static_cast<std::size_t>(fragment.rank));
    const bool stored = std::any_of(pieces.begin(), pieces.end(), [&](const Piece& piece) {
      return piece.parameter == task.parameter &&
             piece.parameter_begin <= task.begin + fragment.begin &&
             piece.parameter_begin + piece.size >= task.begin + fragment.begin + fragment.size;
    });
    EXPECT_TRUE(stored) << "rank " << fragment.rank << " does not store its fragment";
  }
  if (!replicated(plan)) {
    EXPECT_EQ(at, task.size);
  }
}

void expect_sound_tasks(const Routing& routing, const RegionPlan& plan) {
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

void expect_sound(const Routing& routing, const RegionPlan& plan, std::int64_t granularity) {
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
