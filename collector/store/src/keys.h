// SPDX-License-Identifier: Apache-2.0
// Dense row keys: rows that are written together lie together, without a second index.
//
//   frame = stream << 35 | step    stream: one rank in one generation of one run
//   chunk = stretch << 20 | slot   stretch: 1024 steps of a stream; slot: a series of its rank
//
// A stretch is written once, all its series side by side, at the end of the table: a store of any
// size takes in samples without touching old pages. A chart of one series seeks once per stretch.
#pragma once

#include <cstdint>

namespace muster::store {

inline constexpr int kStepBits = 35;
inline constexpr int kSlotBits = 20;
inline constexpr int kChunkBits = 10;
inline constexpr int kPyramidBits = 6;  // Steps of one entry of the lower pyramid level.
inline constexpr int kBlockBits = 12;   // Steps of one entry of the upper pyramid level.

inline constexpr std::int64_t kChunkSteps = std::int64_t{1} << kChunkBits;
inline constexpr std::int64_t kPyramidSteps = std::int64_t{1} << kPyramidBits;
inline constexpr std::int64_t kBlockSteps = std::int64_t{1} << kBlockBits;
inline constexpr std::int64_t kEntriesPerChunk = kChunkSteps / kPyramidSteps;
inline constexpr std::int64_t kChunksPerBlock = kBlockSteps / kChunkSteps;
inline constexpr std::int64_t kStreamLimit = std::int64_t{1} << (63 - kStepBits);
inline constexpr std::int64_t kSlotLimit = std::int64_t{1} << kSlotBits;
inline constexpr std::int64_t kStepLimit = std::int64_t{1} << kStepBits;

constexpr std::int64_t frame_key(std::int64_t stream, std::int64_t step) {
  return (stream << kStepBits) | step;
}

constexpr std::int64_t frame_step(std::int64_t key) {
  return key & (kStepLimit - 1);
}

constexpr std::int64_t chunk_key(std::int64_t stretch, std::int64_t slot) {
  return (stretch << kSlotBits) | slot;
}

}  // namespace muster::store
