// SPDX-License-Identifier: Apache-2.0
#include <muster/common/tensor_piece.h>

namespace muster {

std::int64_t element_count(std::span<const std::int64_t> shape) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) {
    count *= extent;
  }
  return count;
}

}  // namespace muster
