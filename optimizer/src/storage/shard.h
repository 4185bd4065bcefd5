// SPDX-License-Identifier: Apache-2.0
// This rank's shard of one parameter, with its optimizer states.
#pragma once

#include "optimizer/src/layout/layout.h"

#include <muster/kernels/update_kernels.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace muster::optimizer {

// Memory of one optimizer state. Blocks of 8-bit states count from the shard's first element. Cuts
// are on block boundaries of their unit, and a unit's last block may be short, so the blocks of a
// shard that spans several units restart at each.
struct StateBuffer {
  StateType type{StateType::kFloat32};
  bool is_signed{true};
  std::uint64_t tensor{0};      // key of its stochastic rounding
  std::vector<std::byte> data;  // elements in storage type; empty if the rule has no such state
  std::vector<float> absmax;    // kInt8Block
};

struct ShardState {
  Shard range;
  std::size_t unit{0};          // RoutedParameter::unit
  std::int64_t first_index{0};  // of element 0 in the global tensor, other ranks' experts included
  std::span<float> value;       // in the buffer, or `master` for 16-bit parameters
  std::span<float> gradient;
  std::span<std::uint16_t> narrow_copy;  // in the buffer; empty for fp32 parameters
  DType narrow_type{DType::kFloat32};
  std::vector<float> master;
  StateBuffer first;   // Adam's m, momentum, Muon's M
  StateBuffer second;  // v
};

// Elements of an 8-bit block.
inline constexpr auto kStateBlock = static_cast<std::size_t>(kernels::kQuantBlock);

// Bytes of one element in a state's storage.
[[nodiscard]] std::size_t element_bytes(StateType type);

// Number of 8-bit blocks before element `at` of a parameter, the start of a block or the end of a
// unit.
[[nodiscard]] std::size_t blocks_before(std::size_t unit, std::size_t at);

// A state of zeros. `name` is that of the checkpoint, e.g. "adamw_m/embedding".
[[nodiscard]] StateBuffer make_state(
    StateType type, bool is_signed, const std::string& name, const ShardState& shard);

// View of elements [begin, begin + count) of the shard. With 8-bit states they must be in one unit
// and begin with a block.
[[nodiscard]] kernels::UpdateTensors tensors_of(
    ShardState& shard, std::size_t begin, std::size_t count);

// Calls slice(begin, count) for the longest parts of [begin, begin + count) that tensors_of takes.
template <typename Slice>
void for_each_slice(
    const ShardState& shard, std::size_t begin, std::size_t count, const Slice& slice) {
  const bool has_blocks =
      shard.first.type == StateType::kInt8Block || shard.second.type == StateType::kInt8Block;
  const std::size_t end = begin + count;
  while (begin < end) {
    const std::size_t at = shard.range.parameter_begin + begin;
    const std::size_t to_unit_end = has_blocks ? shard.unit - at % shard.unit : end - begin;
    const std::size_t part = std::min(end - begin, to_unit_end);
    slice(begin, part);
    begin += part;
  }
}

}  // namespace muster::optimizer
