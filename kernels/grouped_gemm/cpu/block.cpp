// SPDX-License-Identifier: Apache-2.0
#include "kernels/grouped_gemm/cpu/block.h"

#include <muster/kernels/low_precision.h>

#include <algorithm>
#include <cstddef>
#include <span>

namespace muster::kernels {

namespace {

// Units of depth between visits of a tile to memory. Fixed, because it decides the order of sums.
constexpr std::int64_t kDepthUnits = 512;
// Steps of the depth for which the left operand is packed at a time.
constexpr std::int64_t kLeftSteps = 4;
// Bytes of the packed right operand: half of a second-level cache, which left panels pass through.
constexpr std::int64_t kRightBytes = std::int64_t{512} << 10;
constexpr std::int64_t kLeftRows = 1008;

constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Lines of one operand over a stretch of the depth.
struct Stretch {
  PanelSide side;
  std::int64_t line;
  std::int64_t lines;
  std::int64_t depth;
  std::int64_t count;
};

PanelSource source_of(const BlockProduct& product, const Stretch& stretch) {
  const bool left = stretch.side == PanelSide::kLeft;
  const BlockOperand& operand = left ? product.a : product.b;
  const bool across = left ? operand.transposed : !operand.transposed;
  const std::int64_t offset = across ? stretch.depth * operand.stride + stretch.line
                                     : stretch.line * operand.stride + stretch.depth;
  PanelSource source{
      .stride = operand.stride, .across = across, .lines = stretch.lines, .depth = stretch.count};
  if (product.halves) {
    source.halves = static_cast<const std::uint16_t*>(operand.data) + offset;
  } else {
    source.data = static_cast<const float*>(operand.data) + offset;
  }
  return source;
}

// Multiplies one block.
class Walk {
 public:
  Walk(const GemmTable& table, const BlockProduct& product);

  // Floats of memory.
  [[nodiscard]] std::int64_t left_size() const { return left_size_ * left_steps_; }

  [[nodiscard]] std::int64_t right_size() const { return chunk_ * units_; }

  [[nodiscard]] std::int64_t sums_size() const {
    return product_.narrow_out ? product_.m * chunk_ : 0;
  }

  void run(float* left, float* right, float* sums);

 private:
  void multiply_columns(std::int64_t column, std::int64_t begin, std::int64_t end);
  void multiply_stretch(const Stretch& right, const float* left, float* c, std::int64_t stride);
  void narrow_columns(std::int64_t column, std::int64_t columns) const;

  const GemmTable& table_;
  const BlockProduct& product_;
  DType type_;
  std::int64_t step_;        // terms
  std::int64_t units_;       // of a whole step
  std::int64_t left_size_;   // floats of the left operand of a step
  std::int64_t left_steps_;  // for which it is packed at a time
  std::int64_t chunk_;       // columns
  float* left_{nullptr};
  float* right_{nullptr};
  float* sums_{nullptr};
};

Walk::Walk(const GemmTable& table, const BlockProduct& product)
    : table_(table), product_(product), type_(product.halves ? DType::kBFloat16 : DType::kFloat32) {
  const bool pairs = product.halves && table.bf16_pairs;
  step_ = kDepthUnits * (pairs ? 2 : 1);
  units_ = table.units(type_, std::min(product.k, step_));
  left_size_ = round_up(product.m, table.left_lines) * units_;
  const std::int64_t steps = (product.k + step_ - 1) / step_;
  // A result in bf16 is rounded once: its sums stay here until the depth is done.
  left_steps_ = product.narrow_out ? steps : std::min(steps, kLeftSteps);
  const std::int64_t fitting = kRightBytes / 4 / units_ / table.right_lines * table.right_lines;
  chunk_ = std::min(std::max(fitting, table.right_lines), round_up(product.n, table.right_lines));
}

void Walk::run(float* left, float* right, float* sums) {
  left_ = left;
  right_ = right;
  sums_ = sums;
  const std::int64_t left_depth = left_steps_ * step_;
  for (std::int64_t begin = 0; begin < product_.k; begin += left_depth) {
    const std::int64_t end = std::min(begin + left_depth, product_.k);
    for (std::int64_t column = 0; column < product_.n; column += chunk_) {
      multiply_columns(column, begin, end);
    }
  }
}

// A chunk of columns over the terms [begin, end). The first chunk packs the left operand for all.
void Walk::multiply_columns(std::int64_t column, std::int64_t begin, std::int64_t end) {
  const std::int64_t columns = std::min(chunk_, product_.n - column);
  float* c = product_.narrow_out ? sums_ : static_cast<float*>(product_.c) + column;
  const std::int64_t stride = product_.narrow_out ? columns : product_.stride;
  float* left = left_;
  for (std::int64_t depth = begin; depth < end; depth += step_, left += left_size_) {
    const std::int64_t count = std::min(step_, end - depth);
    if (column == 0) {
      const Stretch stretch{PanelSide::kLeft, 0, product_.m, depth, count};
      table_.pack(PanelSide::kLeft, type_, source_of(product_, stretch), left);
    }
    const Stretch right{PanelSide::kRight, column, columns, depth, count};
    table_.pack(PanelSide::kRight, type_, source_of(product_, right), right_);
    multiply_stretch(right, left, c, stride);
  }
  if (product_.narrow_out) {
    narrow_columns(column, columns);
  }
}

void Walk::multiply_stretch(
    const Stretch& right, const float* left, float* c, std::int64_t stride) {
  const std::int64_t width = table_.left_lines;
  const std::int64_t units = table_.units(type_, right.count);
  for (std::int64_t row = 0; row < product_.m; row += width) {
    PanelProduct panel{
        .left = left + row * units,
        .right = right_,
        .units = units,
        .rows = std::min(width, product_.m - row),
        .columns = right.lines,
        .c = c + row * stride,
        .stride = stride,
        .first = {},
        .second = {}};
    if (right.depth > 0 || product_.accumulate) {
      panel.first = {panel.c, stride, 1.0F};
    }
    table_.multiply(type_, panel);
  }
}

void Walk::narrow_columns(std::int64_t column, std::int64_t columns) const {
  auto* to = static_cast<std::uint16_t*>(product_.c) + column;
  const auto count = static_cast<std::size_t>(columns);
  for (std::int64_t row = 0; row < product_.m; ++row) {
    narrow(DType::kBFloat16, {sums_ + row * columns, count}, {to + row * product_.stride, count});
  }
}

}  // namespace

std::int64_t block_rows(const GemmTable& table) {
  return kLeftRows / table.left_lines * table.left_lines;
}

void BlockScratch::multiply(const GemmTable& table, const BlockProduct& product) {
  Walk walk(table, product);
  walk.run(
      left_.reserve(walk.left_size()),
      right_.reserve(walk.right_size()),
      sums_.reserve(walk.sums_size()));
}

}  // namespace muster::kernels
