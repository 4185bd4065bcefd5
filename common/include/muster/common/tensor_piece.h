// SPDX-License-Identifier: Apache-2.0
// One rank's part of a named tensor: the unit that optimizers expose and checkpoints store.
#pragma once

#include <muster/common/dtype.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace muster {

// A box of `shape` at `offset` in the global tensor, row-major. Does not own `data`.
struct TensorPiece {
  std::string name;  // For example "param/layers.0.attention.wq" or "adamw_m/layers.0.norm".
  DType dtype{DType::kFloat32};
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> global_shape;  // As long as `shape`; so is `offset`.
  std::vector<std::int64_t> offset;
  std::span<const std::byte> data;  // [product(shape) * size_bytes(dtype)]
};

// Returns the number of elements in `shape`: 1 if it is empty. Extents must not be negative, and
// their product must fit.
[[nodiscard]] std::int64_t element_count(std::span<const std::int64_t> shape);

}  // namespace muster
