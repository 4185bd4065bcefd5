// SPDX-License-Identifier: Apache-2.0
#include "collector/store/src/compactor.h"

#include "collector/store/src/keys.h"
#include "collector/store/src/schema_table.h"
#include "collector/store/src/summary.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

namespace muster::store {

namespace {

// Series per pass over the frames: 1024 of them take 4.2 MB.
constexpr std::size_t kSlabSeries = 1024;

Status read_times(
    std::span<const std::byte> bytes,
    std::int64_t step_first,
    std::map<std::int64_t, std::int64_t>& times) {
  if (bytes.size() < kPresenceBytes) {
    return data_loss("a stretch ends within its presence bits");
  }
  const std::bitset<kChunkSteps> present = read_presence(bytes.first<kPresenceBytes>());
  bytes = bytes.subspan(kPresenceBytes);
  if (bytes.size() != present.count() * sizeof(std::int64_t)) {
    return data_loss("a stretch has another number of times than presence bits");
  }
  for (std::size_t i = 0; i < kChunkSteps; ++i) {
    if (present[i]) {
      std::int64_t wall = 0;
      std::memcpy(&wall, bytes.data(), sizeof(wall));
      bytes = bytes.subspan(sizeof(wall));
      times.emplace(step_first + static_cast<std::int64_t>(i), wall);
    }
  }
  return {};
}

}  // namespace

struct Compactor::Stretch {
  struct Column {
    std::size_t position{0};
    std::size_t index{0};  // Into slots.
  };

  std::int64_t stream_id{0};
  std::int64_t chunk{-1};  // -1: nothing is ready.
  std::int64_t run_id{0};
  std::int64_t generation{0};
  std::int64_t rank{0};
  std::int64_t stretch_id{-1};                          // -1: not stored before.
  std::map<std::int64_t, std::vector<Column>> columns;  // By schema id, ascending by slot.
  std::vector<std::int64_t> slots;                      // Slots of all series in it, ascending.
  std::map<std::int64_t, std::int64_t> times;           // Step to sender's clock, of all frames.
  std::int64_t frame_count{0};                          // Not counting those stored before.
  bool stored_before{false};

  [[nodiscard]] std::int64_t step_first() const { return chunk << kChunkBits; }

  [[nodiscard]] std::int64_t key_first() const { return frame_key(stream_id, step_first()); }

  [[nodiscard]] std::int64_t key_last() const {
    return frame_key(stream_id, step_first() + kChunkSteps - 1);
  }
};

Expected<std::set<std::int64_t>> Compactor::find_ready() {
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse select,
      connection_.use("SELECT stream_id FROM streams s WHERE "
                      "(SELECT frame_key >> 10 FROM frames WHERE frame_key >= s.stream_id << 35 "
                      "AND frame_key < (s.stream_id + 1) << 35 ORDER BY frame_key LIMIT 1) < "
                      "(SELECT frame_key >> 10 FROM frames WHERE frame_key >= s.stream_id << 35 "
                      "AND frame_key < (s.stream_id + 1) << 35 ORDER BY frame_key DESC LIMIT 1)"));
  std::set<std::int64_t> ready;
  while (true) {
    MUSTER_ASSIGN_OR_RETURN(const bool has_row, select->step());
    if (!has_row) {
      return ready;
    }
    ready.insert(select->integer(0));
  }
}

Expected<std::int64_t> Compactor::compact_one(std::int64_t stream_id) {
  MUSTER_ASSIGN_OR_RETURN(Stretch stretch, find_stretch(stream_id));
  if (stretch.chunk < 0) {
    return std::int64_t{0};
  }
  MUSTER_RETURN_IF_ERROR(read_outline(stretch));
  MUSTER_RETURN_IF_ERROR(map_columns(stretch));
  MUSTER_RETURN_IF_ERROR(store_outline(stretch));
  for (std::size_t first = 0; first < stretch.slots.size(); first += kSlabSeries) {
    MUSTER_RETURN_IF_ERROR(fill_slab(stretch, first));
    MUSTER_RETURN_IF_ERROR(store_slab(stretch, first));
  }
  MUSTER_RETURN_IF_ERROR(remove_frames(stretch));
  // A stretch of empty frames is work done as well.
  return std::max<std::int64_t>(
      stretch.frame_count * static_cast<std::int64_t>(stretch.slots.size()), 1);
}

Expected<Compactor::Stretch> Compactor::find_stretch(std::int64_t stream_id) {
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse select,
      connection_.use("SELECT run_id, generation, rank, "
                      "(SELECT frame_key FROM frames WHERE frame_key >= ?1 << 35 "
                      "AND frame_key < (?1 + 1) << 35 ORDER BY frame_key LIMIT 1), "
                      "(SELECT frame_key FROM frames WHERE frame_key >= ?1 << 35 "
                      "AND frame_key < (?1 + 1) << 35 ORDER BY frame_key DESC LIMIT 1) "
                      "FROM streams WHERE stream_id = ?1"));
  select->bind(1, stream_id);
  MUSTER_ASSIGN_OR_RETURN(const bool has_row, select->step());
  Stretch stretch;
  stretch.stream_id = stream_id;
  if (!has_row || select->is_null(3)) {
    return stretch;
  }
  stretch.run_id = select->integer(0);
  stretch.generation = select->integer(1);
  stretch.rank = select->integer(2);
  const std::int64_t first = frame_step(select->integer(3)) >> kChunkBits;
  const std::int64_t last = frame_step(select->integer(4)) >> kChunkBits;
  if (first < last) {
    stretch.chunk = first;
  }
  return stretch;
}

Status Compactor::read_outline(Stretch& stretch) {
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse before,
      connection_.use(
          "SELECT stretch_id, wall_unix_ns FROM stretches WHERE stream_id = ? AND chunk = ?"));
  before->bind(1, stretch.stream_id).bind(2, stretch.chunk);
  MUSTER_ASSIGN_OR_RETURN(stretch.stored_before, before->step());
  if (stretch.stored_before) {
    stretch.stretch_id = before->integer(0);
    MUSTER_RETURN_IF_ERROR(read_times(before->blob(1), stretch.step_first(), stretch.times));
  }
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse select,
      connection_.use("SELECT frame_key, schema_id, wall_unix_ns FROM frames "
                      "WHERE frame_key BETWEEN ? AND ?"));
  select->bind(1, stretch.key_first()).bind(2, stretch.key_last());
  while (true) {
    MUSTER_ASSIGN_OR_RETURN(const bool has_row, select->step());
    if (!has_row) {
      return {};
    }
    ++stretch.frame_count;
    stretch.columns.try_emplace(select->integer(1));
    stretch.times.emplace(frame_step(select->integer(0)), select->integer(2));
  }
}

Status Compactor::map_columns(Stretch& stretch) {
  std::map<std::int64_t, std::vector<SchemaColumn>> found;
  for (const auto& [schema_id, columns] : stretch.columns) {
    MUSTER_ASSIGN_OR_RETURN(
        found[schema_id], read_columns(connection_, schema_id, stretch.run_id, stretch.rank));
    for (const SchemaColumn& column : found[schema_id]) {
      stretch.slots.push_back(column.slot);
    }
  }
  std::sort(stretch.slots.begin(), stretch.slots.end());
  stretch.slots.erase(std::unique(stretch.slots.begin(), stretch.slots.end()), stretch.slots.end());
  for (auto& [schema_id, columns] : stretch.columns) {
    for (const SchemaColumn& column : found[schema_id]) {
      const auto at = std::lower_bound(stretch.slots.begin(), stretch.slots.end(), column.slot);
      columns.push_back({column.position, static_cast<std::size_t>(at - stretch.slots.begin())});
    }
  }
  return {};
}

Status Compactor::store_outline(Stretch& stretch) {
  std::bitset<kChunkSteps> present;
  for (const auto& [step, wall] : stretch.times) {
    present.set(static_cast<std::size_t>(step) % kChunkSteps);
  }
  std::vector<std::byte> bytes;
  append_presence(present, bytes);
  for (const auto& [step, wall] : stretch.times) {
    const std::size_t at = bytes.size();
    bytes.resize(at + sizeof(wall));
    std::memcpy(bytes.data() + at, &wall, sizeof(wall));
  }
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse insert,
      connection_.use("INSERT INTO stretches (stream_id, chunk, wall_unix_ns) VALUES (?, ?, ?) "
                      "ON CONFLICT DO UPDATE SET wall_unix_ns = excluded.wall_unix_ns"));
  insert->bind(1, stretch.stream_id).bind(2, stretch.chunk);
  insert->bind(3, std::span<const std::byte>{bytes});
  MUSTER_RETURN_IF_ERROR(insert->run());
  if (!stretch.stored_before) {
    stretch.stretch_id = connection_.last_insert_rowid();
  }
  return {};
}

Status Compactor::fill_slab(const Stretch& stretch, std::size_t slab_first) {
  const std::size_t slab_end = std::min(stretch.slots.size(), slab_first + kSlabSeries);
  slab_.resize(slab_end - slab_first);
  for (Chunk& chunk : slab_) {
    chunk.present.reset();
  }
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse select,
      connection_.use("SELECT frame_key, schema_id, samples FROM frames "
                      "WHERE frame_key BETWEEN ? AND ?"));
  select->bind(1, stretch.key_first()).bind(2, stretch.key_last());
  while (true) {
    MUSTER_ASSIGN_OR_RETURN(const bool has_row, select->step());
    if (!has_row) {
      return {};
    }
    const std::int64_t key = select->integer(0);
    const std::vector<Stretch::Column>& columns = stretch.columns.at(select->integer(1));
    const std::span<const std::byte> samples = select->blob(2);
    const auto offset = static_cast<std::size_t>(frame_step(key)) % kChunkSteps;
    const auto before = [](const Stretch::Column& column, std::size_t at) {
      return column.index < at;
    };
    auto column = std::lower_bound(columns.begin(), columns.end(), slab_first, before);
    for (; column != columns.end() && column->index < slab_end; ++column) {
      if ((column->position + 1) * sizeof(float) > samples.size()) {
        return data_loss("frame ", key, " is shorter than its schema");
      }
      Chunk& chunk = slab_[column->index - slab_first];
      std::memcpy(
          &chunk.values[offset], samples.data() + column->position * sizeof(float), sizeof(float));
      chunk.present.set(offset);
    }
  }
}

Status Compactor::store_slab(const Stretch& stretch, std::size_t slab_first) {
  for (std::size_t i = 0; i < slab_.size(); ++i) {
    const std::int64_t slot = stretch.slots[slab_first + i];
    const std::int64_t key = chunk_key(stretch.stretch_id, slot);
    if (stretch.stored_before) {
      MUSTER_RETURN_IF_ERROR(merge_stored(key, slab_[i]));
    }
    MUSTER_RETURN_IF_ERROR(store_chunk(key, stretch.step_first(), slab_[i]));
    MUSTER_RETURN_IF_ERROR(store_block(stretch, slot));
  }
  return {};
}

Status Compactor::merge_stored(std::int64_t key, Chunk& fresh) {
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse select, connection_.use("SELECT samples FROM chunks WHERE chunk_key = ?"));
  select->bind(1, key);
  MUSTER_ASSIGN_OR_RETURN(const bool has_row, select->step());
  if (!has_row) {
    return {};
  }
  Chunk stored;
  MUSTER_RETURN_IF_ERROR(codec_.decode(select->blob(0), stored));
  for (std::size_t i = 0; i < kChunkSteps; ++i) {
    if (stored.present[i]) {
      fresh.values[i] = stored.values[i];
      fresh.present.set(i);
    }
  }
  return {};
}

Status Compactor::store_chunk(std::int64_t key, std::int64_t step_first, const Chunk& chunk) {
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse samples,
      connection_.use("INSERT OR REPLACE INTO chunks (chunk_key, samples) VALUES (?, ?)"));
  samples->bind(1, key).bind(2, codec_.encode(chunk));
  MUSTER_RETURN_IF_ERROR(samples->run());

  std::vector<std::byte> summaries;
  summaries.reserve(kEntriesPerChunk * kSummaryBytes);
  for (std::int64_t entry = 0; entry < kEntriesPerChunk; ++entry) {
    const std::int64_t offset = entry << kPyramidBits;
    Summary summary;
    for (std::int64_t i = offset; i < offset + kPyramidSteps; ++i) {
      if (chunk.present[static_cast<std::size_t>(i)]) {
        summary.add(step_first + i, chunk.values[static_cast<std::size_t>(i)]);
      }
    }
    append_summary(summary, step_first + offset, summaries);
  }
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse pyramid,
      connection_.use("INSERT OR REPLACE INTO pyramid_64 (chunk_key, summaries) VALUES (?, ?)"));
  pyramid->bind(1, key).bind(2, std::span<const std::byte>{summaries});
  return pyramid->run();
}

Status Compactor::store_block(const Stretch& stretch, std::int64_t slot) {
  const std::int64_t block = stretch.chunk / kChunksPerBlock;
  Summary summary;
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse select,
      connection_.use("SELECT s.chunk, p.summaries FROM stretches s CROSS JOIN pyramid_64 p "
                      "ON p.chunk_key = s.stretch_id << 20 | ?4 "
                      "WHERE s.stream_id = ?1 AND s.chunk BETWEEN ?2 AND ?3"));
  const std::int64_t first = block * kChunksPerBlock;
  select->bind(1, stretch.stream_id).bind(2, first).bind(3, first + kChunksPerBlock - 1);
  select->bind(4, slot);
  while (true) {
    MUSTER_ASSIGN_OR_RETURN(const bool has_row, select->step());
    if (!has_row) {
      break;
    }
    MUSTER_RETURN_IF_ERROR(for_each_summary(
        select->blob(1), select->integer(0) << kChunkBits, [&summary](const Summary& part) {
          summary.merge(part);
        }));
  }
  std::vector<std::byte> bytes;
  append_summary(summary, block << kBlockBits, bytes);
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse insert,
      connection_.use("INSERT OR REPLACE INTO pyramid_4096 (stream_id, block, slot, summary) "
                      "VALUES (?, ?, ?, ?)"));
  insert->bind(1, stretch.stream_id).bind(2, block).bind(3, slot);
  insert->bind(4, std::span<const std::byte>{bytes});
  return insert->run();
}

Status Compactor::remove_frames(const Stretch& stretch) {
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse remove, connection_.use("DELETE FROM frames WHERE frame_key BETWEEN ? AND ?"));
  remove->bind(1, stretch.key_first()).bind(2, stretch.key_last());
  return remove->run();
}

}  // namespace muster::store
