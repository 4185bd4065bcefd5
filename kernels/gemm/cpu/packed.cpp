// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/cpu/packed.h"

#include <muster/common/check.h>

#include <algorithm>

namespace muster::kernels {

namespace {

// Units of depth that are multiplied before a tile goes back to memory: a panel of each side fits
// into 64 KiB. Fixed, because it decides the order of sums.
constexpr std::int64_t kDepthUnits = 256;
// Bytes of packed right operand that one member works with: a quarter of a second-level cache.
constexpr std::int64_t kRightBytes = std::int64_t{256} << 10;

constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

ProductAddend moved(ProductAddend addend, std::int64_t row, std::int64_t column) {
  if (addend.data != nullptr) {
    addend.data += row * addend.stride + column;
  }
  return addend;
}

// A stretch of the depth.
struct Depth {
  std::int64_t begin;
  std::int64_t count;
  std::int64_t units;
};

// `lines` rows of the left or columns of the right operand from `line` on.
void pack_lines(
    const GemmTable& table,
    const Product& product,
    PanelSide side,
    std::int64_t line,
    std::int64_t lines,
    const Depth& depth,
    float* to) {
  const bool left = side == PanelSide::kLeft;
  const Operand& operand = left ? product.a : product.b;
  const bool across = left ? operand.transposed : !operand.transposed;
  const std::int64_t offset =
      across ? depth.begin * operand.stride + line : line * operand.stride + depth.begin;
  const PanelSource source{
      .data = operand.data + offset,
      .halves = nullptr,
      .stride = operand.stride,
      .across = across,
      .lines = lines,
      .depth = depth.count};
  table.pack(side, product.type, source, to);
}

// Columns [column, column + columns) of the result over one stretch of the depth.
void multiply_columns(
    const GemmTable& table,
    const Product& product,
    const Depth& depth,
    std::int64_t column,
    std::int64_t columns,
    const float* left,
    float* right) {
  pack_lines(table, product, PanelSide::kRight, column, columns, depth, right);
  const std::int64_t width = table.left_lines;
  for (std::int64_t row = product.symmetric ? column / width * width : 0; row < product.m;
       row += width) {
    const std::int64_t rows = std::min(width, product.m - row);
    // Tiles end at whole registers: what they hold above the diagonal is overwritten later.
    const std::int64_t needed =
        product.symmetric ? std::min(columns, round_up(row + rows - column, 16)) : columns;
    float* c = product.c + row * product.stride + column;
    PanelProduct panel{
        .left = left + row * depth.units,
        .right = right,
        .units = depth.units,
        .rows = rows,
        .columns = needed,
        .alpha = product.alpha,
        .c = c,
        .stride = product.stride,
        .first = {},
        .second = {}};
    if (depth.begin == 0) {
      panel.first = moved(product.first, row, column);
      panel.second = moved(product.second, row, column);
    } else {
      panel.first = {c, product.stride, 1.0F};
    }
    table.multiply(product.type, panel);
  }
}

// Columns of a task: a multiple of a panel, small enough for the cache and for all members.
std::int64_t task_columns(const GemmTable& table, std::int64_t n, std::int64_t units, int members) {
  constexpr std::int64_t kFloatBytes = 4;
  const std::int64_t fitting = kRightBytes / (units * kFloatBytes);
  const std::int64_t shared = members == 1 ? n : n / (std::int64_t{4} * members);
  const std::int64_t columns = std::min(fitting, shared) / table.right_lines * table.right_lines;
  return std::max(columns, table.right_lines);
}

}  // namespace

void ProductScratch::multiply(const Product& product, ThreadTeam& team) {
  MUSTER_CHECK(
      product.m > 0 && product.n > 0 && product.k > 0 &&
          (!product.symmetric || product.m == product.n),
      "a packed product needs sizes above 0, a symmetric one a square result");
  const GemmTable& table = *table_;
  const bool pairs = product.type == DType::kBFloat16 && table.bf16_pairs;
  const std::int64_t step = kDepthUnits * (pairs ? 2 : 1);
  const std::int64_t units = table.units(product.type, std::min(product.k, step));
  const std::int64_t width = table.left_lines;
  float* left = left_.reserve(round_up(product.m, width) * units);
  const std::int64_t columns = task_columns(table, product.n, units, team.members());
  right_.resize(std::max(right_.size(), static_cast<std::size_t>(team.members())));
  for (AlignedBuffer& buffer : right_) {
    buffer.reserve(columns * units);
  }
  const std::int64_t panels = round_up(product.m, width) / width;
  const std::int64_t tasks = std::int64_t{4} * team.members();
  const std::int64_t panels_of_task = (panels + tasks - 1) / tasks;
  for (std::int64_t begin = 0; begin < product.k; begin += step) {
    const std::int64_t count = std::min(step, product.k - begin);
    const Depth depth{begin, count, table.units(product.type, count)};
    team.run(
        (panels + panels_of_task - 1) / panels_of_task, [&](std::int64_t task, int /*member*/) {
          const std::int64_t row = task * panels_of_task * width;
          const std::int64_t rows = std::min(panels_of_task * width, product.m - row);
          pack_lines(table, product, PanelSide::kLeft, row, rows, depth, left + row * depth.units);
        });
    team.run((product.n + columns - 1) / columns, [&](std::int64_t task, int member) {
      const std::int64_t column = task * columns;
      multiply_columns(
          table,
          product,
          depth,
          column,
          std::min(columns, product.n - column),
          left,
          right_[static_cast<std::size_t>(member)].reserve(0));
    });
  }
  if (product.symmetric) {
    constexpr std::int64_t kStripe = 64;
    team.run((product.n + kStripe - 1) / kStripe, [&](std::int64_t task, int /*member*/) {
      table.mirror(
          product.c,
          product.stride,
          product.n,
          task * kStripe,
          std::min(product.n, (task + 1) * kStripe));
    });
  }
}

}  // namespace muster::kernels
