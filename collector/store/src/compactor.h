// SPDX-License-Identifier: Apache-2.0
// Turns step-major frames into series-major chunks with their pyramid, one stretch of 1024 steps of
// a stream at a time.
//
// A stretch is ready when its stream has a frame of a later stretch. Frames that arrive for a
// stretch that was transposed before are merged into its chunks the same way. Memory is bounded by
// one slab of series, whatever the width of the frames.
#pragma once

#include "collector/store/src/chunk_codec.h"
#include "collector/store/src/connection.h"

#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

namespace muster::store {

class Compactor {
 public:
  explicit Compactor(Connection& connection) : connection_(connection) {}

  // Streams of the file that have a ready stretch.
  [[nodiscard]] Expected<std::set<std::int64_t>> find_ready();

  // Transposes the lowest ready stretch of the stream and returns how many samples that were; 0
  // when it has none. All within the caller's transaction.
  [[nodiscard]] Expected<std::int64_t> compact_one(std::int64_t stream_id);

 private:
  struct Stretch;

  [[nodiscard]] Expected<Stretch> find_stretch(std::int64_t stream_id);
  [[nodiscard]] Status read_outline(Stretch& stretch);
  [[nodiscard]] Status map_columns(Stretch& stretch);
  [[nodiscard]] Status fill_slab(const Stretch& stretch, std::size_t slab_first);
  [[nodiscard]] Status store_slab(const Stretch& stretch, std::size_t slab_first);
  [[nodiscard]] Status merge_stored(std::int64_t key, Chunk& fresh);
  [[nodiscard]] Status store_chunk(std::int64_t key, std::int64_t step_first, const Chunk& chunk);
  [[nodiscard]] Status store_block(const Stretch& stretch, std::int64_t slot);
  [[nodiscard]] Status store_outline(Stretch& stretch);
  [[nodiscard]] Status remove_frames(const Stretch& stretch);

  Connection& connection_;
  ChunkCodec codec_;
  std::vector<Chunk> slab_;
};

}  // namespace muster::store
