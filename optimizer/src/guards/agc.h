// Adaptive gradient clipping (guards.h): norms of rows of gradients and weights, also of rows that
// are stored in parts, and the scaling of those that are too large.
#pragma once

#include "optimizer/src/storage/param_buffer.h"
#include "optimizer/src/storage/shard.h"

#include <muster/optimizer/optimizer.h>

#include <cstddef>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace muster::optimizer {

// Elements that are clipped together: a row of a matrix or stack, or a whole vector.
[[nodiscard]] std::size_t agc_unit(const RoutedParameter& parameter);

// The rows of a region that more than one rank stores a part of, in the order in which their norms
// are packed: (parameter, row). A function of the plan alone, the same on all ranks.
[[nodiscard]] std::vector<std::pair<std::size_t, std::size_t>> agc_cut_rows(
    const RegionPlan& plan, const Routing& routing, const AgcOptions& options);

class AdaptiveClipper {
 public:
  AdaptiveClipper(const Routing& routing, const AgcOptions& options, const RegionPlan& plan);

  // Scales gradients of units with |g| > factor * max(|w|, epsilon) down to that bound, where |g|
  // is of the gradient after `scale` of its parameter's group. Collective over `holders` where
  // there are cut rows.
  [[nodiscard]] Status clip(
      std::span<Shard> shards,
      std::span<const double> scale,
      comm::Communicator& holders,
      Deadline deadline);

  // Handed on in a ring per call.
  [[nodiscard]] double bytes(int ranks) const;

  [[nodiscard]] bool communicates() const { return !cut_rows_.empty(); }

 private:
  // Squared norms of the part of a row that lies in the shard.
  struct Norms {
    double gradient;
    double weight;
  };

  [[nodiscard]] bool clips(const RoutedParameter& parameter) const;
  // Calls row(cut index or -1, begin, count) for each part of a row in the shard.
  template <typename Row>
  void for_each_row(const Shard& shard, const Row& row) const;
  [[nodiscard]] static Norms norms_of(const Shard& shard, std::size_t begin, std::size_t count);
  void scale_row(
      const Shard& shard,
      std::size_t begin,
      std::size_t count,
      const Norms& norms,
      double scale) const;

  const Routing* routing_;
  AgcOptions options_;
  std::map<std::pair<std::size_t, std::size_t>, std::size_t> cut_rows_;
  std::vector<double> packed_;  // [2 * cut rows]
};

}  // namespace muster::optimizer
