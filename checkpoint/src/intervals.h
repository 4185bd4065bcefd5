// SPDX-License-Identifier: Apache-2.0
// Intervals of the pieces of a tensor in its flattened form.
//
// Pure functions.
#pragma once

#include <muster/common/status.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace muster::checkpoint {

// Elements [begin, end) of a flattened tensor.
struct Interval {
  std::int64_t begin{0};
  std::int64_t end{0};

  friend bool operator==(const Interval&, const Interval&) = default;
};

// Product of the dimensions; nullopt for a negative one and where it does not fit in 63 bits.
[[nodiscard]] std::optional<std::int64_t> element_count(std::span<const std::int64_t> shape);

// The run of elements that a piece is in the row-major tensor; {0, 0} for an empty piece. nullopt
// when it is not one run (some columns of several rows, say) or leaves the tensor.
[[nodiscard]] std::optional<Interval> flattened(
    std::span<const std::int64_t> shape,
    std::span<const std::int64_t> global_shape,
    std::span<const std::int64_t> offset);

// The first hole or overlap that keeps `intervals`, ascending by begin and not empty, from covering
// [0, total) exactly once.
struct CoverageFault {
  bool twice{false};    // else not at all
  Interval elements;    // the first such
  std::size_t next{0};  // index of the interval behind the hole, or of the second that holds them;
                        // intervals.size() when the hole reaches to the end
};

[[nodiscard]] std::optional<CoverageFault> find_coverage_fault(
    std::span<const Interval> intervals, std::int64_t total);

}  // namespace muster::checkpoint
