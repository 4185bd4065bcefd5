// SPDX-License-Identifier: Apache-2.0
// Reads one series over a range of steps into power-of-two buckets, from whatever holds its samples
// most cheaply: the pyramid, chunks, and the frames that are not transposed yet.
#pragma once

#include "collector/store/src/chunk_codec.h"
#include "collector/store/src/connection.h"
#include "collector/store/src/summary.h"

#include <muster/store/query.h>

#include <cstdint>
#include <vector>

namespace muster::store {

class RangeReader {
 public:
  explicit RangeReader(Connection& connection) : connection_(connection) {}

  // See Query::range. Needs a read transaction of the caller's: samples move between tables.
  [[nodiscard]] Expected<SeriesRange> read(
      const std::string& run_id,
      std::int64_t series_id,
      std::int64_t generation,
      std::int64_t step_begin,
      std::int64_t step_end,
      std::int32_t buckets_max);

 private:
  // Source and position of the samples of a series.
  struct Source {
    std::int64_t run_id{0};
    std::int64_t sender{0};
    std::int64_t slot{0};
    std::int64_t stream_id{-1};  // -1 if that generation has no samples.
    std::int64_t step_first{0};
    std::int64_t step_last{-1};
  };

  [[nodiscard]] Expected<Source> find(
      const std::string& run_id, std::int64_t series_id, std::int64_t generation);
  [[nodiscard]] Status add_transposed(const Source& source);
  // A query of add_transposed, bound to the source and the range.
  [[nodiscard]] Expected<StatementUse> select(const char* sql, const Source& source);
  [[nodiscard]] Status add_blocks(const Source& source);
  [[nodiscard]] Status add_pyramid(const Source& source);
  [[nodiscard]] Status add_chunks(const Source& source);
  [[nodiscard]] Status add_frames(const Source& source, std::int64_t series_id);

  [[nodiscard]] Summary& bucket_of(std::int64_t step) {
    return buckets_[static_cast<std::size_t>((step - begin_) >> shift_)];
  }

  [[nodiscard]] bool within(std::int64_t step) const { return step >= begin_ && step < end_; }

  Connection& connection_;
  ChunkCodec codec_;
  // Range of the read in progress: whole buckets from begin_ to end_.
  std::int64_t begin_{0};
  std::int64_t end_{0};
  int shift_{0};
  std::vector<Summary> buckets_;
};

}  // namespace muster::store
