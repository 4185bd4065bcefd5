// SPDX-License-Identifier: Apache-2.0
#include "parallel/src/experts/layer/weighted_swiglu.h"

#include <muster/kernels/layers.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

namespace muster::parallel {
namespace {

// fp32 buffers of one row each, kept per thread.
struct Scratch {
  std::array<std::vector<float>, 5> rows;

  [[nodiscard]] float* row(std::size_t which, std::int64_t size) {
    rows.at(which).resize(static_cast<std::size_t>(size));
    return rows.at(which).data();
  }
};

Scratch& scratch() {
  thread_local Scratch rows;
  return rows;
}

// Returns a row as fp32: in place, or widened into `room`.
const float* read(const ExpertRows& rows, const void* tensor, std::int64_t row, float* room) {
  const std::int64_t begin = row * rows.ffn;
  const auto size = static_cast<std::size_t>(rows.ffn);
  if (rows.type == DType::kFloat32) {
    return static_cast<const float*>(tensor) + begin;
  }
  kernels::widen(
      rows.type, {static_cast<const std::uint16_t*>(tensor) + begin, size}, {room, size});
  return room;
}

// Returns the buffer for a result row: in place, or `room` until write().
float* target(const ExpertRows& rows, void* tensor, std::int64_t row, float* room) {
  return rows.type == DType::kFloat32 ? static_cast<float*>(tensor) + row * rows.ffn : room;
}

void write(const ExpertRows& rows, void* tensor, std::int64_t row, const float* values) {
  if (rows.type != DType::kFloat32) {
    const auto size = static_cast<std::size_t>(rows.ffn);
    kernels::narrow(
        rows.type, {values, size}, {static_cast<std::uint16_t*>(tensor) + row * rows.ffn, size});
  }
}

float dot(const float* a, const float* b, std::int64_t size) {
  // Eight sums, added in a fixed order, so that the loop vectorises.
  std::array<float, 8> sums{};
  std::int64_t at = 0;
  for (; at + 8 <= size; at += 8) {
    for (std::size_t lane = 0; lane < 8; ++lane) {
      sums[lane] +=
          a[at + static_cast<std::int64_t>(lane)] * b[at + static_cast<std::int64_t>(lane)];
    }
  }
  float sum = 0;
  for (const float part : sums) {
    sum += part;
  }
  for (; at < size; ++at) {
    sum += a[at] * b[at];
  }
  return sum;
}

}  // namespace

void weighted_swiglu(
    const ExpertRows& rows, const void* gate, const void* up, const float* weights, void* hidden) {
  Scratch& room = scratch();
  for (std::int64_t row = 0; row < rows.count; ++row) {
    float* out = target(rows, hidden, row, room.row(0, rows.ffn));
    kernels::swiglu_forward(
        read(rows, gate, row, room.row(1, rows.ffn)),
        read(rows, up, row, room.row(2, rows.ffn)),
        out,
        rows.ffn);
    const float weight = weights[row];
    std::transform(out, out + rows.ffn, out, [weight](float value) { return weight * value; });
    write(rows, hidden, row, out);
  }
}

void weighted_swiglu_backward(  // NOLINT(readability-function-size): gradients beside their inputs
    const ExpertRows& rows,
    const void* gate,
    const void* up,
    const float* weights,
    const void* dhidden,
    void* dgate,
    void* dup,
    float* dweights) {
  Scratch& room = scratch();
  float* activation = room.row(0, rows.ffn);
  float* scaled = room.row(1, rows.ffn);
  std::vector<float>& last = room.rows.at(4);
  last.resize(2 * static_cast<std::size_t>(rows.ffn));
  for (std::int64_t row = 0; row < rows.count; ++row) {
    const float* g = read(rows, gate, row, room.row(2, rows.ffn));
    const float* u = read(rows, up, row, room.row(3, rows.ffn));
    const float* dh = read(rows, dhidden, row, scaled);
    kernels::swiglu_forward(g, u, activation, rows.ffn);
    dweights[row] = dot(dh, activation, rows.ffn);
    const float weight = weights[row];
    std::transform(dh, dh + rows.ffn, scaled, [weight](float value) { return weight * value; });
    float* dg = target(rows, dgate, row, last.data());
    float* du = target(rows, dup, row, last.data() + rows.ffn);
    kernels::swiglu_backward(g, u, scaled, dg, du, rows.ffn);
    write(rows, dgate, row, dg);
    write(rows, dup, row, du);
  }
}

}  // namespace muster::parallel
