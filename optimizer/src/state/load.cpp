// SPDX-License-Identifier: Apache-2.0
#include "optimizer/src/state/load.h"

#include <algorithm>
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

}  // namespace

Status StateLoader::read(ShardState& shard, const RoutedParameter& parameter, bool commit) {
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
      MUSTER_RETURN_IF_ERROR(source_->read(
          name,
          shard.first_index + static_cast<std::int64_t>(begin),
          first_bytes(bytes_, count * sizeof(float))));
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
    return {};
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
    return source_->read(
        saved.name,
        at,
        commit ? std::span{state.data}.subspan(begin * width, count * width)
               : first_bytes(bytes_, count * width));
  }
  values_.resize(std::max(values_.size(), count));
  const std::span<float> values = std::span{values_}.first(count);
  MUSTER_RETURN_IF_ERROR(widen(saved, shard.unit, at, values));
  if (!commit) {
    return {};
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
