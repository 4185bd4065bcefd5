// SPDX-License-Identifier: Apache-2.0
#include "optimizer/src/state/load.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace muster::optimizer {
namespace {

// Elements converted at once; a multiple of the 8-bit block.
constexpr std::size_t kPart = std::size_t{1} << 20;

std::span<std::byte> first_bytes(std::vector<std::byte>& scratch, std::size_t size) {
  scratch.resize(std::max(scratch.size(), size));
  return std::span{scratch}.first(size);
}

// Index of the 8-bit block that holds element `at` of the global tensor.
std::size_t block_of(std::size_t unit, std::size_t at) {
  return blocks_before(unit, at / unit * unit) + at % unit / kStateBlock;
}

// values -> state elements [begin, begin + values.size()) of the shard; with 8-bit states they
// begin with a block.
void store(
    StateBuffer& state, const ShardState& shard, std::size_t begin, std::span<const float> values) {
  std::byte* to = state.data.data() + begin * element_bytes(state.type);
  switch (state.type) {
    case StateType::kFloat32:
      std::memcpy(to, values.data(), values.size_bytes());
      return;
    case StateType::kBFloat16:
      kernels::narrow(
          DType::kBFloat16,
          values,
          {reinterpret_cast<std::uint16_t*>(to), values.size()});  // NOLINT
      return;
    case StateType::kInt8Block: {
      const std::size_t before = blocks_before(shard.unit, shard.range.parameter_begin);
      const std::size_t block =
          blocks_before(shard.unit, shard.range.parameter_begin + begin) - before;
      kernels::quantise(
          state.is_signed,
          values,
          {reinterpret_cast<std::uint8_t*>(to), values.size()},  // NOLINT
          std::span{state.absmax}.subspan(block, (values.size() + kStateBlock - 1) / kStateBlock));
      return;
    }
  }
}

bool all_finite(std::span<const std::byte> bytes, StateType type) {
  bool finite = true;
  if (type == StateType::kFloat32) {
    for (std::size_t at = 0; at < bytes.size(); at += sizeof(float)) {
      float value = 0;
      std::memcpy(&value, bytes.data() + at, sizeof value);
      finite = finite && std::isfinite(value);
    }
  } else if (type == StateType::kBFloat16) {
    for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint16_t)) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, bytes.data() + at, sizeof bits);
      finite = finite && (bits & 0x7F80U) != 0x7F80U;
    }
  }
  return finite;  // codes are finite, their scales are checked
}

}  // namespace

Status StateLoader::check_finite(
    const std::string& name, std::span<const std::byte> bytes, StateType type) const {
  if (all_finite(bytes, type)) {
    return {};
  }
  return data_loss(
      "checkpoint tensor '" + name + "' of group '" + group_ +
      "' holds NaN or infinity, so its state is lost: go back to an older checkpoint");
}

Status StateLoader::read(ShardState& shard, const RoutedParameter& parameter, bool commit) {
  group_ = parameter.route.group;
  MUSTER_RETURN_IF_ERROR(read_parameter(shard, parameter, commit));
  for (const StateKind& kind : state_kinds(parameter.route.rule)) {
    const Saved& saved = saved_.at(state_name(kind.name, parameter.spec.name));
    StateBuffer& state = kind.is_second ? shard.second : shard.first;
    const double factor = parameter.route.rule == Rule::kMuon ? momentum_factor_ : 1.0;
    MUSTER_RETURN_IF_ERROR(read_state(state, shard, saved, factor, commit));
  }
  return {};
}

Status StateLoader::read_parameter(
    ShardState& shard, const RoutedParameter& parameter, bool commit) {
  const std::string name = state_name(kParameterKind, parameter.spec.name);
  if (!commit) {
    for (std::size_t begin = 0; begin < shard.range.size; begin += kPart) {
      const std::size_t count = std::min(kPart, shard.range.size - begin);
      const std::span<std::byte> bytes = first_bytes(bytes_, count * sizeof(float));
      MUSTER_RETURN_IF_ERROR(
          source_->read(name, shard.first_index + static_cast<std::int64_t>(begin), bytes));
      MUSTER_RETURN_IF_ERROR(check_finite(name, bytes, StateType::kFloat32));
    }
    return {};
  }
  MUSTER_RETURN_IF_ERROR(
      source_->read(name, shard.first_index, std::as_writable_bytes(shard.value)));
  if (!shard.narrow_copy.empty()) {
    kernels::narrow(shard.narrow_type, shard.value, shard.narrow_copy);
  }
  return {};
}

Status StateLoader::read_state(
    StateBuffer& state, const ShardState& shard, const Saved& saved, double factor, bool commit) {
  if (state.type == StateType::kInt8Block && saved.type == StateType::kInt8Block) {
    return read_codes(state, shard, saved, factor, commit);
  }
  std::size_t begin = 0;
  while (begin < shard.range.size) {
    std::size_t count = std::min(kPart, shard.range.size - begin);
    if (state.type == StateType::kInt8Block) {  // Blocks restart with every unit.
      count = std::min(count, shard.unit - (shard.range.parameter_begin + begin) % shard.unit);
    }
    MUSTER_RETURN_IF_ERROR(read_part(state, shard, saved, factor, begin, count, commit));
    begin += count;
  }
  return {};
}

// The codes stay as they are; a factor is a factor of the block maxima.
Status StateLoader::read_codes(
    StateBuffer& state, const ShardState& shard, const Saved& saved, double factor, bool commit) {
  const std::span<std::byte> codes =
      commit ? std::span{state.data} : first_bytes(bytes_, state.data.size());
  MUSTER_RETURN_IF_ERROR(source_->read(saved.name, shard.first_index, codes));
  std::vector<float> absmax(state.absmax.size());
  const auto first = static_cast<std::int64_t>(
      blocks_before(shard.unit, static_cast<std::size_t>(shard.first_index)));
  MUSTER_RETURN_IF_ERROR(
      source_->read(saved.absmax_name, first, std::as_writable_bytes(std::span{absmax})));
  if (!commit) {
    return check_finite(saved.absmax_name, std::as_bytes(std::span{absmax}), StateType::kFloat32);
  }
  for (std::size_t block = 0; block < absmax.size(); ++block) {
    state.absmax[block] = factor == 1
                              ? absmax[block]
                              : static_cast<float>(static_cast<double>(absmax[block]) * factor);
  }
  return {};
}

Status StateLoader::read_part(  // NOLINT(readability-function-size): a part, its source, its form
    StateBuffer& state,
    const ShardState& shard,
    const Saved& saved,
    double factor,
    std::size_t begin,
    std::size_t count,
    bool commit) {
  const std::int64_t at = shard.first_index + static_cast<std::int64_t>(begin);
  const std::size_t width = element_bytes(state.type);
  if (saved.type == state.type && factor == 1) {
    const std::span<std::byte> bytes =
        commit ? std::span{state.data}.subspan(begin * width, count * width)
               : first_bytes(bytes_, count * width);
    MUSTER_RETURN_IF_ERROR(source_->read(saved.name, at, bytes));
    return commit ? Status{} : check_finite(saved.name, bytes, saved.type);
  }
  values_.resize(std::max(values_.size(), count));
  const std::span<float> values = std::span{values_}.first(count);
  MUSTER_RETURN_IF_ERROR(widen(saved, shard.unit, at, values));
  if (!commit) {
    return check_finite(saved.name, std::as_bytes(values), StateType::kFloat32);
  }
  for (float& value : values) {
    value = static_cast<float>(static_cast<double>(value) * factor);
  }
  store(state, shard, begin, values);
  return {};
}

Status StateLoader::widen(
    const Saved& saved, std::size_t unit, std::int64_t begin, std::span<float> out) {
  switch (saved.type) {
    case StateType::kFloat32:
      return source_->read(saved.name, begin, std::as_writable_bytes(out));
    case StateType::kBFloat16: {
      std::vector<std::uint16_t> bits(out.size());
      MUSTER_RETURN_IF_ERROR(
          source_->read(saved.name, begin, std::as_writable_bytes(std::span{bits})));
      kernels::widen(DType::kBFloat16, bits, out);
      return {};
    }
    case StateType::kInt8Block:
      return dequantise(saved, unit, begin, out);
  }
  return {};
}

// The part may begin and end within blocks: shards of other types are cut anywhere.
Status StateLoader::dequantise(
    const Saved& saved, std::size_t unit, std::int64_t begin, std::span<float> out) {
  std::vector<std::uint8_t> codes(out.size());
  MUSTER_RETURN_IF_ERROR(
      source_->read(saved.name, begin, std::as_writable_bytes(std::span{codes})));
  const auto first = static_cast<std::size_t>(begin);
  const std::size_t first_block = block_of(unit, first);
  std::vector<float> absmax(block_of(unit, first + out.size() - 1) - first_block + 1);
  MUSTER_RETURN_IF_ERROR(source_->read(
      saved.absmax_name,
      static_cast<std::int64_t>(first_block),
      std::as_writable_bytes(std::span{absmax})));
  std::size_t done = 0;
  while (done < out.size()) {
    const std::size_t in_unit = (first + done) % unit;
    const std::size_t block_end = std::min((in_unit / kStateBlock + 1) * kStateBlock, unit);
    const std::size_t count = std::min(out.size() - done, block_end - in_unit);
    kernels::dequantise(
        saved.is_signed,
        std::span<const std::uint8_t>{codes}.subspan(done, count),
        std::span<const float>{absmax}.subspan(block_of(unit, first + done) - first_block, 1),
        out.subspan(done, count));
    done += count;
  }
  return {};
}

}  // namespace muster::optimizer
