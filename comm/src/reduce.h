// SPDX-License-Identifier: Apache-2.0
// Element-wise reduction of several buffers in a fixed order.
#pragma once

#include <muster/comm/communicator.h>

#include <cstddef>
#include <span>

namespace muster::comm {

// True for the types that reduce_in_order takes: fp32, fp64, int32, int64 and uint8.
[[nodiscard]] bool is_reducible(DType dtype);

// Stores sources[0][i] op sources[1][i] op ..., combined from left to right, in every output: the
// same bits on every machine, whatever vector width it has. `bytes` is a multiple of the element
// size. An output may be one of the sources, at the same address; else they must not overlap.
void reduce_in_order(
    std::span<const std::byte* const> sources,
    std::size_t bytes,
    DType dtype,
    ReduceOp op,
    std::span<std::byte* const> outputs);

}  // namespace muster::comm
