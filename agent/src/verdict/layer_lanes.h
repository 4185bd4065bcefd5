// SPDX-License-Identifier: Apache-2.0
// Lanes of single layers: block attention, and experts over ranks. A layer with neither has none.
#pragma once

#include "agent/src/verdict/lane_io.h"

#include <muster/agent/verdict.h>

namespace muster::agent {

[[nodiscard]] std::size_t layer_sum_size(const LaneLayout& layout);
[[nodiscard]] std::size_t layer_max_size(const LaneLayout& layout);

// A lane vector whose length differs from the layout's is a bug in the caller.
void check_layer_shapes(const LaneLayout& layout, const LocalLanes& lanes);

// True if attention rows of this rank were not finite.
[[nodiscard]] bool has_nonfinite_rows(const LocalLanes& lanes);

void encode_layer_sums(const LaneLayout& layout, const LocalLanes& lanes, LaneWriter& out);
void encode_layer_maxima(const LaneLayout& layout, const LocalLanes& lanes, LaneWriter& out);

// Reuses the storage that `out` has from the last step.
void decode_layer_sums(const LaneLayout& layout, LaneReader& in, ReducedLanes& out);
void decode_layer_maxima(const LaneLayout& layout, LaneReader& in, ReducedLanes& out);

}  // namespace muster::agent
