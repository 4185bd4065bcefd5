// SPDX-License-Identifier: Apache-2.0
// Adaptive gradient clipping (guards.h): computes norms of rows of gradients and weights, including
// rows that several ranks store, and scales down the gradients that are too large.
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

// Rows of a buffer that are cut between ranks, as (parameter, row) in the order in which their
// norms are packed. A function of the plan alone, the same on all ranks.
[[nodiscard]] std::vector<std::pair<std::size_t, std::size_t>> agc_cut_rows(
    const BufferPlan& plan, const Routing& routing, const AgcOptions& options);

class AdaptiveClipper {
 public:
  AdaptiveClipper(const Routing& routing, const AgcOptions& options, const BufferPlan& plan);

  // Scales gradients of units with |g| > factor * max(|w|, epsilon) down to that bound, where |g|
  // is of the gradient after `scale` of its parameter's group. Collective over `holders` where
  // there are cut rows.
  [[nodiscard]] Status clip(
      std::span<ShardState> shards,
      std::span<const double> scale,
      comm::Communicator& holders,
      Deadline deadline);

  // Bytes this rank sends per call, in a ring.
  [[nodiscard]] double bytes(int ranks) const;

  [[nodiscard]] bool communicates() const { return !cut_rows_.empty(); }

 private:
  // Squared norms of the part of a row that is in the shard.
  struct Norms {
    double gradient;
    double weight;
  };

  [[nodiscard]] bool clips(const RoutedParameter& parameter) const;
  // Calls row(cut index or -1, begin, count) for each part of a row in the shard.
  template <typename Row>
  void for_each_row(const ShardState& shard, const Row& row) const;
  [[nodiscard]] static Norms norms_of(
      const ShardState& shard, std::size_t begin, std::size_t count);
  void scale_row(
      const ShardState& shard,
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
