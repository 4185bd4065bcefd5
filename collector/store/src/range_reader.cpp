// SPDX-License-Identifier: Apache-2.0
#include "collector/store/src/range_reader.h"

#include "collector/store/src/keys.h"
#include "collector/store/src/schema_table.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>

namespace muster::store {

namespace {

// The smallest power of two, as its exponent, whose aligned buckets cover the range in at most
// `buckets_max`.
int choose_shift(std::int64_t begin, std::int64_t end, std::int64_t buckets_max) {
  int shift = 0;
  while (((end - 1) >> shift) - (begin >> shift) + 1 > buckets_max) {
    ++shift;
  }
  return shift;
}

}  // namespace

Expected<SeriesRange> RangeReader::read(
    const std::string& run_id,
    std::int64_t series_id,
    std::int64_t generation,
    std::int64_t step_begin,
    std::int64_t step_end,
    std::int32_t buckets_max) {
  if (buckets_max < 2) {
    return invalid_argument("a range needs room for at least 2 buckets");
  }
  MUSTER_ASSIGN_OR_RETURN(const Source source, find(run_id, series_id, generation));
  SeriesRange range;
  range.series_id = series_id;
  range.generation = generation;
  range.step_begin = std::clamp<std::int64_t>(step_begin, 0, kStepLimit);
  range.step_end = step_end < 0 ? source.step_last + 1 : std::min(step_end, kStepLimit);
  range.step_end = std::max(range.step_end, range.step_begin);

  // Steps without any sample cost no resolution.
  begin_ = std::max(range.step_begin, source.step_first);
  end_ = std::min(range.step_end, source.step_last + 1);
  if (source.stream_id < 0 || begin_ >= end_) {
    return range;
  }
  shift_ = choose_shift(begin_, end_, buckets_max);
  range.bucket_steps = std::int64_t{1} << shift_;
  begin_ = begin_ >> shift_ << shift_;
  end_ = (((end_ - 1) >> shift_) + 1) << shift_;
  buckets_.assign(static_cast<std::size_t>((end_ - begin_) >> shift_), Summary{});
  MUSTER_RETURN_IF_ERROR(add_transposed(source));
  MUSTER_RETURN_IF_ERROR(add_frames(source, series_id));
  for (const Summary& summary : buckets_) {
    if (!summary.empty()) {
      range.buckets.push_back(to_bucket(summary));
    }
  }
  return range;
}

Expected<RangeReader::Source> RangeReader::find(
    const std::string& run_id, std::int64_t series_id, std::int64_t generation) {
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse select,
      connection_.use("SELECT s.run_id, s.sender, s.slot, ifnull(st.stream_id, -1), "
                      "ifnull(st.step_first, -1), ifnull(st.step_last, -1) "
                      "FROM series s JOIN runs r ON r.run_id = s.run_id "
                      "LEFT JOIN streams st ON st.run_id = s.run_id AND st.generation = ?3 "
                      "AND st.rank = s.sender WHERE s.series_id = ?2 AND r.name = ?1"));
  select->bind(1, run_id).bind(2, series_id).bind(3, generation);
  MUSTER_ASSIGN_OR_RETURN(const bool has_row, select->step());
  if (!has_row) {
    return not_found("run \"", run_id, "\" has no series ", series_id);
  }
  Source source;
  source.run_id = select->integer(0);
  source.sender = select->integer(1);
  source.slot = select->integer(2);
  source.stream_id = select->integer(3);
  source.step_first = select->integer(4);
  source.step_last = select->integer(5);
  return source;
}

Status RangeReader::add_transposed(const Source& source) {
  if (shift_ >= kBlockBits) {
    return add_blocks(source);
  }
  return shift_ >= kPyramidBits ? add_pyramid(source) : add_chunks(source);
}

Expected<StatementUse> RangeReader::select(const char* sql, const Source& source) {
  MUSTER_ASSIGN_OR_RETURN(StatementUse statement, connection_.use(sql));
  statement->bind(1, source.stream_id).bind(2, source.slot);
  statement->bind(3, begin_ >> kChunkBits).bind(4, (end_ - 1) >> kChunkBits);
  return statement;
}

Status RangeReader::add_blocks(const Source& source) {
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse rows,
      select(
          "SELECT b.block, p.summary FROM (SELECT DISTINCT chunk >> 2 AS block FROM stretches "
          "WHERE stream_id = ?1 AND chunk BETWEEN ?3 AND ?4) b "
          "CROSS JOIN pyramid_4096 p ON p.stream_id = ?1 AND p.block = b.block AND p.slot = ?2",
          source));
  while (true) {
    MUSTER_ASSIGN_OR_RETURN(const bool has_row, rows->step());
    if (!has_row) {
      return {};
    }
    const std::int64_t step = rows->integer(0) << kBlockBits;
    const std::span<const std::byte> bytes = rows->blob(1);
    if (bytes.size() != kSummaryBytes) {
      return data_loss("the pyramid over step ", step, " has a wrong size");
    }
    bucket_of(step).merge(read_summary(bytes.first<kSummaryBytes>(), step));
  }
}

Status RangeReader::add_pyramid(const Source& source) {
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse rows,
      select(
          "SELECT s.chunk, p.summaries FROM stretches s CROSS JOIN pyramid_64 p "
          "ON p.chunk_key = s.stretch_id << 20 | ?2 "
          "WHERE s.stream_id = ?1 AND s.chunk BETWEEN ?3 AND ?4",
          source));
  while (true) {
    MUSTER_ASSIGN_OR_RETURN(const bool has_row, rows->step());
    if (!has_row) {
      return {};
    }
    const std::int64_t step = rows->integer(0) << kChunkBits;
    MUSTER_RETURN_IF_ERROR(for_each_summary(rows->blob(1), step, [this](const Summary& part) {
      if (within(part.step_first)) {
        bucket_of(part.step_first).merge(part);
      }
    }));
  }
}

Status RangeReader::add_chunks(const Source& source) {
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse rows,
      select(
          "SELECT s.chunk, c.samples FROM stretches s CROSS JOIN chunks c "
          "ON c.chunk_key = s.stretch_id << 20 | ?2 "
          "WHERE s.stream_id = ?1 AND s.chunk BETWEEN ?3 AND ?4",
          source));
  Chunk chunk;
  while (true) {
    MUSTER_ASSIGN_OR_RETURN(const bool has_row, rows->step());
    if (!has_row) {
      return {};
    }
    MUSTER_RETURN_IF_ERROR(codec_.decode(rows->blob(1), chunk));
    const std::int64_t first = rows->integer(0) << kChunkBits;
    for (std::size_t i = 0; i < chunk.values.size(); ++i) {
      const std::int64_t step = first + static_cast<std::int64_t>(i);
      if (chunk.present[i] && within(step)) {
        bucket_of(step).add(step, chunk.values[i]);
      }
    }
  }
}

Status RangeReader::add_frames(const Source& source, std::int64_t series_id) {
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse select,
      connection_.use("SELECT frame_key, schema_id, samples FROM frames "
                      "WHERE frame_key BETWEEN ? AND ?"));
  select->bind(1, frame_key(source.stream_id, begin_));
  select->bind(2, frame_key(source.stream_id, end_ - 1));
  // Offset of the series in the frames of each schema; nullopt if they do not have it.
  std::map<std::int64_t, std::optional<std::size_t>> offsets;
  while (true) {
    MUSTER_ASSIGN_OR_RETURN(const bool has_row, select->step());
    if (!has_row) {
      return {};
    }
    const auto [found, fresh] = offsets.try_emplace(select->integer(1));
    if (fresh) {
      MUSTER_ASSIGN_OR_RETURN(
          const std::vector<SchemaColumn> columns,
          read_columns(connection_, found->first, source.run_id, source.sender));
      for (const SchemaColumn& column : columns) {
        if (column.series_id == series_id) {
          found->second = column.position * sizeof(float);
        }
      }
    }
    if (!found->second) {
      continue;
    }
    const std::span<const std::byte> samples = select->blob(2);
    if (*found->second + sizeof(float) > samples.size()) {
      return data_loss("a frame is shorter than its schema");
    }
    float value = 0;
    std::memcpy(&value, samples.data() + *found->second, sizeof(value));
    const std::int64_t step = frame_step(select->integer(0));
    bucket_of(step).add(step, value);
  }
}

}  // namespace muster::store
