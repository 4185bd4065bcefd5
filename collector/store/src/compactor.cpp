#include "src/compactor.h"

#include "src/keys.h"
#include "src/schema_table.h"
#include "src/summary.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

namespace muster::store {

namespace {

// Series per pass over the frames: 1024 of them take 4.2 MB.
constexpr std::size_t kSlabSeries = 1024;

struct Slot {
  std::size_t position{0};
  std::size_t series{0};  // Index into Stretch::series.
};

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
  std::int64_t stream_id{0};
  std::int64_t chunk{-1};  // -1: nothing is ready.
  std::int64_t run_id{0};
  std::int64_t generation{0};
  std::int64_t rank{0};
  bool stored_before{false};
  std::map<std::int64_t, std::vector<Slot>> slots;  // By schema id, ascending by series.
  std::vector<std::int64_t> series;                 // Ascending series ids.
  std::map<std::int64_t, std::int64_t> times;       // Step to sender's clock, of all frames.
  std::int64_t frame_count{0};                      // Not counting those stored before.

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
  for (std::size_t first = 0; first < stretch.series.size(); first += kSlabSeries) {
    MUSTER_RETURN_IF_ERROR(fill_slab(stretch, first));
    MUSTER_RETURN_IF_ERROR(store_slab(stretch, first));
  }
  MUSTER_RETURN_IF_ERROR(store_times(stretch));
  MUSTER_RETURN_IF_ERROR(remove_frames(stretch));
  // A stretch of empty frames is work done as well.
  return std::max<std::int64_t>(
      stretch.frame_count * static_cast<std::int64_t>(stretch.series.size()), 1);
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
      connection_.use("SELECT wall_unix_ns FROM stretches WHERE stretch_key = ?"));
  before->bind(1, chunk_key(stretch.stream_id, stretch.chunk));
  MUSTER_ASSIGN_OR_RETURN(stretch.stored_before, before->step());
  if (stretch.stored_before) {
    MUSTER_RETURN_IF_ERROR(read_times(before->blob(0), stretch.step_first(), stretch.times));
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
    stretch.slots.try_emplace(select->integer(1));
    stretch.times.emplace(frame_step(select->integer(0)), select->integer(2));
  }
}

Status Compactor::map_columns(Stretch& stretch) {
  std::map<std::int64_t, std::vector<SchemaColumn>> columns;
  for (const auto& [schema_id, slots] : stretch.slots) {
    MUSTER_ASSIGN_OR_RETURN(
        columns[schema_id], read_columns(connection_, schema_id, stretch.run_id, stretch.rank));
    for (const SchemaColumn& column : columns[schema_id]) {
      stretch.series.push_back(column.series_id);
    }
  }
  std::sort(stretch.series.begin(), stretch.series.end());
  stretch.series.erase(
      std::unique(stretch.series.begin(), stretch.series.end()), stretch.series.end());
  for (auto& [schema_id, slots] : stretch.slots) {
    for (const SchemaColumn& column : columns[schema_id]) {
      const auto at =
          std::lower_bound(stretch.series.begin(), stretch.series.end(), column.series_id);
      slots.push_back({column.position, static_cast<std::size_t>(at - stretch.series.begin())});
    }
  }
  return {};
}

Status Compactor::fill_slab(const Stretch& stretch, std::size_t slab_first) {
  const std::size_t slab_end = std::min(stretch.series.size(), slab_first + kSlabSeries);
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
    const std::vector<Slot>& slots = stretch.slots.at(select->integer(1));
    const std::span<const std::byte> samples = select->blob(2);
    const auto offset = static_cast<std::size_t>(frame_step(key)) % kChunkSteps;
    const auto before = [](const Slot& slot, std::size_t series) { return slot.series < series; };
    auto slot = std::lower_bound(slots.begin(), slots.end(), slab_first, before);
    for (; slot != slots.end() && slot->series < slab_end; ++slot) {
      if ((slot->position + 1) * sizeof(float) > samples.size()) {
        return data_loss("frame " + std::to_string(key) + " is shorter than its schema");
      }
      Chunk& chunk = slab_[slot->series - slab_first];
      std::memcpy(
          &chunk.values[offset], samples.data() + slot->position * sizeof(float), sizeof(float));
      chunk.present.set(offset);
    }
  }
}

Status Compactor::store_slab(const Stretch& stretch, std::size_t slab_first) {
  for (std::size_t i = 0; i < slab_.size(); ++i) {
    MUSTER_ASSIGN_OR_RETURN(
        const std::int64_t track, track_of(stretch.series[slab_first + i], stretch.generation));
    if (stretch.stored_before) {
      MUSTER_RETURN_IF_ERROR(merge_stored(chunk_key(track, stretch.chunk), slab_[i]));
    }
    MUSTER_RETURN_IF_ERROR(store_chunk(track, stretch.chunk, slab_[i]));
    MUSTER_RETURN_IF_ERROR(store_block(track, stretch.chunk / kChunksPerBlock));
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

Status Compactor::store_chunk(std::int64_t track, std::int64_t chunk_index, const Chunk& chunk) {
  const std::int64_t key = chunk_key(track, chunk_index);
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse samples,
      connection_.use("INSERT OR REPLACE INTO chunks (chunk_key, samples) VALUES (?, ?)"));
  samples->bind(1, key).bind(2, codec_.encode(chunk));
  MUSTER_RETURN_IF_ERROR(samples->run());

  std::vector<std::byte> summaries;
  summaries.reserve(kEntriesPerChunk * kSummaryBytes);
  for (std::int64_t entry = 0; entry < kEntriesPerChunk; ++entry) {
    const std::int64_t offset = entry << kPyramidBits;
    const std::int64_t step = (chunk_index << kChunkBits) + offset;
    Summary summary;
    for (std::int64_t i = 0; i < kPyramidSteps; ++i) {
      if (chunk.present[static_cast<std::size_t>(offset + i)]) {
        summary.add(step + i, chunk.values[static_cast<std::size_t>(offset + i)]);
      }
    }
    append_summary(summary, step, summaries);
  }
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse pyramid,
      connection_.use("INSERT OR REPLACE INTO pyramid_64 (chunk_key, summaries) VALUES (?, ?)"));
  pyramid->bind(1, key).bind(2, std::span<const std::byte>{summaries});
  return pyramid->run();
}

Status Compactor::store_block(std::int64_t track, std::int64_t block) {
  Summary summary;
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse select,
      connection_.use(
          "SELECT chunk_key, summaries FROM pyramid_64 WHERE chunk_key BETWEEN ? AND ?"));
  const std::int64_t first = block * kChunksPerBlock;
  select->bind(1, chunk_key(track, first)).bind(2, chunk_key(track, first + kChunksPerBlock - 1));
  while (true) {
    MUSTER_ASSIGN_OR_RETURN(const bool has_row, select->step());
    if (!has_row) {
      break;
    }
    const std::int64_t step = chunk_of_key(select->integer(0)) << kChunkBits;
    MUSTER_RETURN_IF_ERROR(for_each_summary(
        select->blob(1), step, [&summary](const Summary& part) { summary.merge(part); }));
  }
  std::vector<std::byte> bytes;
  append_summary(summary, block << kBlockBits, bytes);
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse insert,
      connection_.use("INSERT OR REPLACE INTO pyramid_4096 (block_key, summary) VALUES (?, ?)"));
  insert->bind(1, block_key(track, block)).bind(2, std::span<const std::byte>{bytes});
  return insert->run();
}

Status Compactor::store_times(const Stretch& stretch) {
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
      connection_.use(
          "INSERT OR REPLACE INTO stretches (stretch_key, wall_unix_ns) VALUES (?, ?)"));
  insert->bind(1, chunk_key(stretch.stream_id, stretch.chunk));
  insert->bind(2, std::span<const std::byte>{bytes});
  return insert->run();
}

Expected<std::int64_t> Compactor::track_of(std::int64_t series_id, std::int64_t generation) {
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse insert,
      connection_.use("INSERT OR IGNORE INTO tracks (series_id, generation) VALUES (?, ?)"));
  insert->bind(1, series_id).bind(2, generation);
  MUSTER_RETURN_IF_ERROR(insert->run());
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse select,
      connection_.use("SELECT track_id FROM tracks WHERE series_id = ? AND generation = ?"));
  select->bind(1, series_id).bind(2, generation);
  MUSTER_ASSIGN_OR_RETURN(const bool has_row, select->step());
  if (!has_row) {
    return internal_error("the track of series " + std::to_string(series_id) + " was not made");
  }
  return select->integer(0);
}

Status Compactor::remove_frames(const Stretch& stretch) {
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse remove, connection_.use("DELETE FROM frames WHERE frame_key BETWEEN ? AND ?"));
  remove->bind(1, stretch.key_first()).bind(2, stretch.key_last());
  return remove->run();
}

}  // namespace muster::store
