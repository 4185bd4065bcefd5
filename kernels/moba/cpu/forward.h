// SPDX-License-Identifier: Apache-2.0
// Attention of the sequences that are not dense, once the blocks are chosen.
#pragma once

#include "kernels/moba/cpu/call.h"
#include "kernels/moba/cpu/selection.h"

#include <cstdint>
#include <vector>

namespace muster::kernels {

struct MobaForwardTensors {
  InputTensors in;
  OutputTensors out;
  bool count_nonfinite{false};
  MobaPart part;
  std::uint8_t* bad_rows{nullptr};  // [heads, total_q] set for rows that are not finite, or null
};

// Number of keys of a block to process at once: as many as fit in `bytes` with their values, equal
// pieces of a block, whole steps of the kernel.
template <typename T>
std::int64_t moba_chunk(const MobaCall& call, std::int64_t bytes) {
  const std::int64_t row =
      2 * moba_row_stride<T>(call.head_dim) * static_cast<std::int64_t>(sizeof(T));
  const std::int64_t most = bytes / row / kMobaKeyStep * kMobaKeyStep;
  const std::int64_t block = call.options.block < call.total_k ? call.options.block : call.total_k;
  if (block <= most) {
    return block < 1 ? 1 : block;
  }
  const std::int64_t pieces = (block + most - 1) / most;
  const std::int64_t piece = (block + pieces - 1) / pieces;
  return (piece + kMobaKeyStep - 1) / kMobaKeyStep * kMobaKeyStep;
}

// max_logit [heads] and nonfinite rows [heads] of those sequences.
void moba_attend_all(
    const MobaForwardTensors& tensors,
    const MobaSelection::State& state,
    std::vector<float>& max_logit,
    std::vector<std::int64_t>& nonfinite);

}  // namespace muster::kernels
