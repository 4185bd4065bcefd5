// Dense row keys: rows that are read together lie together, without a second index.
//
//   frame   = stream << 35 | step          stream: one rank in one generation of one run
//   stretch = stream << 25 | step / 1024
//   chunk   = track  << 25 | step / 1024   track: one series in one generation
//   block   = track  << 23 | step / 4096
#pragma once

#include <cstdint>

namespace muster::store {

inline constexpr int kStepBits = 35;
inline constexpr int kChunkBits = 10;
inline constexpr int kPyramidBits = 6;  // Steps of one entry of the lower pyramid level.
inline constexpr int kBlockBits = 12;   // Steps of one entry of the upper pyramid level.

inline constexpr std::int64_t kChunkSteps = std::int64_t{1} << kChunkBits;
inline constexpr std::int64_t kPyramidSteps = std::int64_t{1} << kPyramidBits;
inline constexpr std::int64_t kBlockSteps = std::int64_t{1} << kBlockBits;
inline constexpr std::int64_t kEntriesPerChunk = kChunkSteps / kPyramidSteps;
inline constexpr std::int64_t kChunksPerBlock = kBlockSteps / kChunkSteps;
inline constexpr std::int64_t kStepLimit = std::int64_t{1} << kStepBits;

constexpr std::int64_t frame_key(std::int64_t stream, std::int64_t step) {
  return (stream << kStepBits) | step;
}

constexpr std::int64_t frame_step(std::int64_t key) {
  return key & (kStepLimit - 1);
}

// Of a stretch (with a stream) or a chunk (with a track).
constexpr std::int64_t chunk_key(std::int64_t owner, std::int64_t chunk) {
  return (owner << (kStepBits - kChunkBits)) | chunk;
}

constexpr std::int64_t chunk_of_key(std::int64_t key) {
  return key & ((std::int64_t{1} << (kStepBits - kChunkBits)) - 1);
}

constexpr std::int64_t block_key(std::int64_t track, std::int64_t block) {
  return (track << (kStepBits - kBlockBits)) | block;
}

constexpr std::int64_t block_of_key(std::int64_t key) {
  return key & ((std::int64_t{1} << (kStepBits - kBlockBits)) - 1);
}

}  // namespace muster::store
