// Where every parameter lies and which rank updates which part of it: pure functions of the routed
// parameters and the number of ranks.
//
// Invariants: (1) every element of every parameter is owned by exactly one rank of its region;
//             (2) no Muon matrix is cut; (3) a rank owns at most one contiguous piece of a
//             parameter; (4) a parameter is contiguous in its region.
#pragma once

#include "src/routing.h"

#include <cstddef>
#include <string>
#include <vector>

namespace muster::optimizer {

// A run of the region's memory with one reduce-scatter and one all-gather.
struct Segment {
  std::size_t begin{0};             // floats from the start of the region
  std::vector<std::size_t> counts;  // [ranks] floats, in rank order
};

struct PlacedParameter {
  std::size_t parameter{0};  // index into Routing::parameters
  std::size_t begin{0};      // floats from the start of the region
};

struct RegionPlan {
  Placement placement{Placement::kReplicated};
  Rule rule{Rule::kAdamW};
  int ranks{1};
  std::size_t size{0};  // floats, alignment padding included
  std::vector<PlacedParameter> placed;
  std::vector<Segment> segments;
  std::vector<double> newton_schulz_flops;  // [ranks]
};

// What one rank owns of one parameter: `size` elements from `parameter_begin` on.
struct Piece {
  std::size_t parameter{0};
  std::size_t region_begin{0};
  std::size_t parameter_begin{0};
  std::size_t size{0};
};

// Parameters start on cache lines; so do flat shards.
inline constexpr std::size_t kAlignmentFloats = 16;

// A stack of matrices stays on one rank, in the one segment all whole parameters share, as long as
// that costs no more than this over the lower bound max(sum / ranks, largest matrix); it saves a
// collective per stack. Beyond it, packing is by single matrices and a stack whose matrices have
// several owners is a segment of its own. Below 4/3 - 1/(3 ranks), so Graham's bound holds both
// ways.
inline constexpr double kWholeStackSlack = 1.1;

// All parameters of one (placement, rule); `ranks` hold them.
[[nodiscard]] RegionPlan plan_region(
    const Routing& routing, Placement placement, Rule rule, int ranks, int newton_schulz_steps);

// In memory order.
[[nodiscard]] std::vector<Piece> pieces_of(
    const RegionPlan& plan, const Routing& routing, int rank);

// For people: bytes and Newton-Schulz flops of every rank.
[[nodiscard]] std::string describe(const RegionPlan& plan);

}  // namespace muster::optimizer
