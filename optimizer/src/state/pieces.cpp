// SPDX-License-Identifier: Apache-2.0
#include "optimizer/src/state/pieces.h"

#include <muster/common/text.h>

#include <algorithm>

namespace muster::optimizer {
namespace {

// Elements that a saved piece of this parameter must be whole multiples of to keep its shape: a
// row, or a matrix of a stack.
std::size_t slice_size(const RoutedParameter& parameter) {
  const bool stack = parameter.spec.shape.size() == 3;
  return static_cast<std::size_t>(stack ? parameter.rows * parameter.cols : parameter.cols);
}

// [begin, begin + size) of the flattened global tensor in its saved shape.
void place(
    TensorPiece& tensor,
    const std::vector<std::int64_t>& global,
    std::int64_t begin,
    std::int64_t size) {
  std::int64_t slice = 1;
  for (std::size_t axis = 1; axis < global.size(); ++axis) {
    slice *= global[axis];
  }
  tensor.global_shape = global;
  tensor.shape = global;
  tensor.shape[0] = size / slice;
  tensor.offset.assign(global.size(), 0);
  tensor.offset[0] = begin / slice;
}

}  // namespace

std::string state_name(const std::string& kind, const std::string& parameter) {
  return kind + "/" + parameter;
}

DType saved_dtype(StateType type) {
  switch (type) {
    case StateType::kFloat32:
      break;
    case StateType::kBFloat16:
      return DType::kBFloat16;
    case StateType::kInt8Block:
      return DType::kUint8;
  }
  return DType::kFloat32;
}

std::string quant_map_text() {
  return to_hex(kernels::quant_map_hash());
}

void find_shaped(const BufferPlan& plan, const Routing& routing, std::vector<bool>& shaped) {
  for (const PlacedParameter& placed : plan.placed) {
    shaped[placed.parameter] = routing.parameters[placed.parameter].route.rule == Rule::kMuon;
  }
  for (const std::vector<Shard>& shards : plan.shards) {
    for (const Shard& shard : shards) {
      const RoutedParameter& parameter = routing.parameters[shard.parameter];
      if (shaped[shard.parameter]) {
        const std::size_t slice = slice_size(parameter);
        shaped[shard.parameter] = shard.parameter_begin % slice == 0 && shard.size % slice == 0;
      }
    }
  }
}

GlobalTensor global_tensor(const RoutedParameter& parameter, bool shaped, int expert_groups) {
  const std::int64_t groups = parameter.spec.placement == Placement::kExpert ? expert_groups : 1;
  GlobalTensor global;
  global.size = static_cast<std::int64_t>(parameter.size) * groups;
  global.blocks = static_cast<std::int64_t>(blocks_before(parameter.unit, parameter.size)) * groups;
  global.full_shape = parameter.spec.shape;
  if (global.full_shape.empty()) {
    global.full_shape = {1};
  }
  global.full_shape[0] *= groups;
  global.shape = shaped ? global.full_shape : std::vector<std::int64_t>{global.size};
  return global;
}

std::vector<TensorPiece> tensor_pieces(
    const ShardState& shard, const RoutedParameter& parameter, const GlobalTensor& global) {
  std::vector<TensorPiece> pieces;
  const auto size = static_cast<std::int64_t>(shard.range.size);
  const auto add = [&](const std::string& kind, DType dtype, std::span<const std::byte> data) {
    TensorPiece tensor;
    tensor.name = state_name(kind, parameter.spec.name);
    tensor.dtype = dtype;
    tensor.data = data;
    place(tensor, global.shape, shard.first_index, size);
    pieces.push_back(std::move(tensor));
  };
  add(kParameterKind, DType::kFloat32, std::as_bytes(std::span{shard.value}));
  for (const StateKind& kind : state_kinds(parameter.route.rule)) {
    const StateBuffer& state = kind.is_second ? shard.second : shard.first;
    add(kind.name, saved_dtype(state.type), state.data);
    if (state.type != StateType::kInt8Block) {
      continue;
    }
    TensorPiece absmax;
    absmax.name = state_name(std::string{kind.name} + kAbsmaxSuffix, parameter.spec.name);
    absmax.data = std::as_bytes(std::span{state.absmax});
    const auto begin = static_cast<std::int64_t>(
        blocks_before(shard.unit, static_cast<std::size_t>(shard.first_index)));
    place(absmax, {global.blocks}, begin, static_cast<std::int64_t>(state.absmax.size()));
    pieces.push_back(std::move(absmax));
  }
  return pieces;
}

}  // namespace muster::optimizer
