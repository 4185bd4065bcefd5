// SPDX-License-Identifier: Apache-2.0
#include "optimizer/src/storage/shard.h"

#include <muster/common/check.h>
#include <muster/common/hash.h>

namespace muster::optimizer {
namespace {

std::size_t blocks_of(const ShardState& shard, std::size_t begin, std::size_t count) {
  const std::size_t at = shard.range.parameter_begin + begin;
  return blocks_before(shard.unit, at + count) - blocks_before(shard.unit, at);
}

kernels::StateView view_of(StateBuffer& state, const ShardState& shard, std::size_t begin) {
  kernels::StateView view;
  view.type = state.type;
  view.is_signed = state.is_signed;
  view.tensor = state.tensor;
  if (state.data.empty()) {
    return view;
  }
  view.data = state.data.data() + begin * element_bytes(state.type);
  if (state.type == StateType::kInt8Block) {
    view.absmax = state.absmax.data() + blocks_of(shard, 0, begin);
  }
  return view;
}

}  // namespace

std::size_t element_bytes(StateType type) {
  switch (type) {
    case StateType::kFloat32:
      return sizeof(float);
    case StateType::kBFloat16:
      return sizeof(std::uint16_t);
    case StateType::kInt8Block:
      return sizeof(std::uint8_t);
  }
  return sizeof(float);
}

std::size_t blocks_before(std::size_t unit, std::size_t at) {
  const std::size_t per_unit = (unit + kStateBlock - 1) / kStateBlock;
  return at / unit * per_unit + (at % unit + kStateBlock - 1) / kStateBlock;
}

StateBuffer make_state(
    StateType type, bool is_signed, const std::string& name, const ShardState& shard) {
  StateBuffer state;
  state.type = type;
  state.is_signed = is_signed;
  state.tensor = hash64(std::as_bytes(std::span{name}));
  state.data.assign(shard.range.size * element_bytes(type), std::byte{0});
  if (type != StateType::kInt8Block) {
    return state;
  }
  state.absmax.assign(blocks_of(shard, 0, shard.range.size), 0.0F);
  // The map defines the code of zero.
  const std::vector<float> zeros(1, 0.0F);
  std::vector<std::uint8_t> code(1);
  std::vector<float> absmax(1);
  kernels::quantise(is_signed, zeros, code, absmax);
  std::fill(state.data.begin(), state.data.end(), std::byte{code.front()});
  return state;
}

kernels::UpdateTensors tensors_of(ShardState& shard, std::size_t begin, std::size_t count) {
  MUSTER_CHECK(begin + count <= shard.range.size, "a slice reaches past its shard");
  kernels::UpdateTensors tensors;
  tensors.parameter = shard.value.data() + begin;
  if (!shard.narrow_copy.empty()) {
    tensors.narrow_copy = shard.narrow_copy.data() + begin;
    tensors.narrow_type = shard.narrow_type;
  }
  tensors.gradient = shard.gradient.data() + begin;
  tensors.first = view_of(shard.first, shard, begin);
  tensors.second = view_of(shard.second, shard, begin);
  tensors.count = static_cast<std::int64_t>(count);
  // Rounding counts over the global tensor, 8-bit blocks over the unit.
  tensors.first_index = shard.first_index + static_cast<std::int64_t>(begin);
  if (shard.first.type == StateType::kInt8Block || shard.second.type == StateType::kInt8Block) {
    const auto in_unit =
        static_cast<std::int64_t>((shard.range.parameter_begin + begin) % shard.unit);
    tensors.index_base = tensors.first_index - in_unit;
    tensors.first_index = in_unit;
  }
  return tensors;
}

}  // namespace muster::optimizer
