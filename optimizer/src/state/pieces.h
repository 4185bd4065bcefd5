// SPDX-License-Identifier: Apache-2.0
// Names, shapes and positions of a shard's tensors in a checkpoint.
//
//   param/<name>        F32   values or masters
//   <state>/<name>      F32, BF16 or U8 codes, <state> by update.h, "adamw_m"
//   <state>.absmax/<name>  F32, one per 8-bit block, units one after the other
#pragma once

#include "optimizer/src/layout/layout.h"
#include "optimizer/src/storage/shard.h"
#include "optimizer/src/update/update.h"

#include <muster/optimizer/optimizer.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace muster::optimizer {

inline constexpr const char* kParameterKind = "param";
inline constexpr const char* kAbsmaxSuffix = ".absmax";

// Keys of state_values().
inline constexpr const char* kAppliedStepsKey = "optimizer.applied_steps";
inline constexpr const char* kMomentumFormKey = "optimizer.momentum_form";
inline constexpr const char* kMuonMomentumKey = "optimizer.muon_momentum";
inline constexpr const char* kQuantMapKey = "optimizer.quant_map";
inline constexpr const char* kRuleKeyPrefix = "optimizer.rule/";

[[nodiscard]] std::string state_name(const std::string& kind, const std::string& parameter);

// Element type of a state in a checkpoint; codes are kUint8.
[[nodiscard]] DType saved_dtype(StateType type);

// The hash of the 8-bit maps as 16 hex digits.
[[nodiscard]] std::string quant_map_text();

// The global tensor of a parameter: the experts of all ranks in one, along dimension 0.
struct GlobalTensor {
  std::vector<std::int64_t> full_shape;  // of the parameter, before flattening
  std::vector<std::int64_t> shape;       // as saved; rank 1 when flat
  std::int64_t size{0};
  std::int64_t blocks{0};  // 8-bit blocks
};

// Sets shaped[parameter] for those that keep their shape in a checkpoint: Muon's when no rank
// stores a part of a row, or of a matrix of a stack. All others are flat. The same on all ranks.
void find_shaped(const BufferPlan& plan, const Routing& routing, std::vector<bool>& shaped);

[[nodiscard]] GlobalTensor global_tensor(
    const RoutedParameter& parameter, bool shaped, int expert_groups);

// The tensors that the shard saves. Spans refer to the shard's memory.
[[nodiscard]] std::vector<TensorPiece> tensor_pieces(
    const ShardState& shard, const RoutedParameter& parameter, const GlobalTensor& global);

}  // namespace muster::optimizer
