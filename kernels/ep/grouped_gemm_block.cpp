#include "ep/grouped_gemm_block.h"

#include <muster/kernels/low_precision.h>

#include <algorithm>
#include <cstddef>
#include <span>

namespace muster::kernels {

namespace {

// Units of depth between visits of a tile to memory. Fixed, because it decides the order of sums.
constexpr std::int64_t kDepthUnits = 256;
// Steps of the depth for which the left operand is packed at a time.
constexpr std::int64_t kLeftSteps = 8;
// Bytes of the packed right operand: a quarter of a second-level cache.
constexpr std::int64_t kRightBytes = std::int64_t{256} << 10;
constexpr std::int64_t kLeftRows = 504;

constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// A block while it is multiplied.
struct Walk {
  const GemmTable& table;
  const BlockProduct& product;
  PanelType type;
  std::int64_t step;       // terms
  std::int64_t units;      // of a whole step
  std::int64_t left_size;  // floats of the left operand of a step
  float* left;
  float* right;
};

void pack(
    const Walk& walk,
    PanelSide side,
    std::int64_t line,
    std::int64_t lines,
    std::int64_t depth,
    std::int64_t count,
    float* to) {
  const bool left = side == PanelSide::kLeft;
  const BlockOperand& operand = left ? walk.product.a : walk.product.b;
  const bool across = left ? operand.transposed : !operand.transposed;
  const std::int64_t offset =
      across ? depth * operand.stride + line : line * operand.stride + depth;
  PanelSource source{.stride = operand.stride, .across = across, .lines = lines, .depth = count};
  if (walk.product.halves) {
    source.halves = static_cast<const std::uint16_t*>(operand.data) + offset;
  } else {
    source.data = static_cast<const float*>(operand.data) + offset;
  }
  walk.table.pack(side, walk.type, source, to);
}

// Columns [column, column + columns) over the terms [begin, end), whose left operand is packed.
void multiply_columns(
    const Walk& walk,
    std::int64_t column,
    std::int64_t columns,
    std::int64_t begin,
    std::int64_t end,
    float* c,
    std::int64_t stride) {
  const std::int64_t width = walk.table.left_lines;
  const float* left = walk.left;
  for (std::int64_t depth = begin; depth < end; depth += walk.step, left += walk.left_size) {
    const std::int64_t count = std::min(walk.step, end - depth);
    const std::int64_t units = walk.table.units(walk.type, count);
    pack(walk, PanelSide::kRight, column, columns, depth, count, walk.right);
    for (std::int64_t row = 0; row < walk.product.m; row += width) {
      PanelProduct panel{
          .left = left + row * units,
          .right = walk.right,
          .units = units,
          .rows = std::min(width, walk.product.m - row),
          .columns = columns,
          .c = c + row * stride,
          .stride = stride,
          .first = {},
          .second = {}};
      if (depth > 0 || walk.product.accumulate) {
        panel.first = {panel.c, stride, 1.0F};
      }
      walk.table.multiply(walk.type, panel);
    }
  }
}

void narrow_rows(
    const float* from, std::int64_t rows, std::int64_t columns, void* to, std::int64_t stride) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto count = static_cast<std::size_t>(columns);
    narrow(
        FloatType::kBFloat16,
        {from + row * columns, count},
        {static_cast<std::uint16_t*>(to) + row * stride, count});
  }
}

}  // namespace

std::int64_t block_rows(const GemmTable& table) {
  return kLeftRows / table.left_lines * table.left_lines;
}

void BlockScratch::multiply(const GemmTable& table, const BlockProduct& product) {
  const PanelType type = product.halves ? PanelType::kBFloat16 : PanelType::kFloat32;
  const bool pairs = product.halves && table.bf16_pairs;
  const std::int64_t step = kDepthUnits * (pairs ? 2 : 1);
  const std::int64_t units = table.units(type, std::min(product.k, step));
  const std::int64_t left_size = round_up(product.m, table.left_lines) * units;
  const std::int64_t fitting = kRightBytes / 4 / units / table.right_lines * table.right_lines;
  const std::int64_t chunk =
      std::min(std::max(fitting, table.right_lines), round_up(product.n, table.right_lines));
  // A result in bf16 is rounded once: its sums stay here until the depth is done.
  const std::int64_t left_depth =
      product.narrow_out ? round_up(product.k, step) : kLeftSteps * step;
  const std::int64_t steps = (std::min(left_depth, product.k) + step - 1) / step;
  const Walk walk{
      table,
      product,
      type,
      step,
      units,
      left_size,
      left_.reserve(left_size * steps),
      right_.reserve(chunk * units)};
  float* sums = product.narrow_out ? sums_.reserve(product.m * chunk) : nullptr;
  for (std::int64_t begin = 0; begin < product.k; begin += left_depth) {
    const std::int64_t end = std::min(begin + left_depth, product.k);
    for (std::int64_t depth = begin; depth < end; depth += step) {
      pack(
          walk,
          PanelSide::kLeft,
          0,
          product.m,
          depth,
          std::min(step, end - depth),
          walk.left + (depth - begin) / step * left_size);
    }
    for (std::int64_t column = 0; column < product.n; column += chunk) {
      const std::int64_t columns = std::min(chunk, product.n - column);
      if (product.narrow_out) {
        multiply_columns(walk, column, columns, begin, end, sums, columns);
        auto* to = static_cast<std::uint16_t*>(product.c) + column;
        narrow_rows(sums, product.m, columns, to, product.stride);
      } else {
        float* c = static_cast<float*>(product.c) + column;
        multiply_columns(walk, column, columns, begin, end, c, product.stride);
      }
    }
  }
}

}  // namespace muster::kernels
