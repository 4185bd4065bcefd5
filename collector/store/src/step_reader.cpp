// SPDX-License-Identifier: Apache-2.0
#include "collector/store/src/step_reader.h"

#include "collector/store/src/keys.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <unordered_map>
#include <utility>

namespace muster::store {

namespace {

constexpr std::size_t kColumnsKept = 256;  // Senders of a job, with room for another.

}  // namespace

Expected<StepValues> StepReader::read(
    std::int64_t run_id, const std::string& metric, std::int64_t generation, std::int64_t step) {
  StepValues found;
  found.generation = generation;
  MUSTER_RETURN_IF_ERROR(find_series(run_id, metric, found));
  MUSTER_RETURN_IF_ERROR(find_steps(run_id, found));
  found.step = step < 0 ? found.step_last : step;
  if (found.step < 0 || found.step >= kStepLimit) {
    return found;
  }
  for (const Sender& sender : senders_) {
    if (sender.stream_id < 0) {
      continue;
    }
    MUSTER_ASSIGN_OR_RETURN(const bool in_frame, read_frame(sender, run_id, found));
    if (!in_frame) {
      MUSTER_RETURN_IF_ERROR(read_chunks(sender, found));
    }
  }
  return found;
}

Status StepReader::find_series(std::int64_t run_id, const std::string& metric, StepValues& found) {
  senders_.clear();
  slots_.clear();
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse select,
      connection_.use("SELECT series_id, sender, slot, rank, layer, idx, grp, unit FROM series "
                      "WHERE run_id = ?1 AND name = ?2 ORDER BY sender, layer, idx, grp LIMIT ?3"));
  select->bind(1, run_id).bind(2, metric);
  select->bind(3, static_cast<std::int64_t>(kStepValuesMax) + 1);
  while (true) {
    MUSTER_ASSIGN_OR_RETURN(const bool has_row, select->step());
    if (!has_row) {
      return {};
    }
    if (found.values.size() == kStepValuesMax) {
      return resource_exhausted(
          metric, " has more than ", kStepValuesMax, " series; ask for ranges of some of them");
    }
    const std::int64_t sender = select->integer(1);
    if (senders_.empty() || senders_.back().rank != sender) {
      senders_.push_back({sender, -1, found.values.size(), found.values.size()});
    }
    ++senders_.back().end;
    slots_.push_back(select->integer(2));
    StepValue& value = found.values.emplace_back();
    value.series_id = select->integer(0);
    value.rank = static_cast<std::int32_t>(select->integer(3));
    value.layer = static_cast<std::int32_t>(select->integer(4));
    value.index = static_cast<std::int32_t>(select->integer(5));
    value.group = select->text(6);
    found.unit = select->text(7);
  }
}

// From the first step that any sender has to the last that all have, of those that have any.
Status StepReader::find_steps(std::int64_t run_id, StepValues& found) {
  for (Sender& sender : senders_) {
    MUSTER_ASSIGN_OR_RETURN(
        StatementUse select,
        connection_.use("SELECT stream_id, step_first, step_last FROM streams WHERE run_id = ?1 "
                        "AND generation = ?2 AND rank = ?3 AND step_last >= 0"));
    select->bind(1, run_id).bind(2, found.generation).bind(3, sender.rank);
    MUSTER_ASSIGN_OR_RETURN(const bool has_row, select->step());
    if (!has_row) {
      continue;
    }
    sender.stream_id = select->integer(0);
    const std::int64_t first = select->integer(1);
    const std::int64_t last = select->integer(2);
    found.step_first = found.step_first < 0 ? first : std::min(found.step_first, first);
    found.step_last = found.step_last < 0 ? last : std::min(found.step_last, last);
  }
  return {};
}

Expected<bool> StepReader::read_frame(
    const Sender& sender, std::int64_t run_id, StepValues& found) {
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse select,
      connection_.use("SELECT schema_id, samples FROM frames WHERE frame_key = ?"));
  select->bind(1, frame_key(sender.stream_id, found.step));
  MUSTER_ASSIGN_OR_RETURN(const bool has_row, select->step());
  if (!has_row) {
    return false;
  }
  MUSTER_ASSIGN_OR_RETURN(
      const std::vector<SchemaColumn>* columns,
      columns_of(select->integer(0), run_id, sender.rank));
  std::unordered_map<std::int64_t, std::size_t> offsets;  // By series.
  for (const SchemaColumn& column : *columns) {
    offsets.emplace(column.series_id, column.position * sizeof(float));
  }
  const std::span<const std::byte> samples = select->blob(1);
  for (std::size_t i = sender.begin; i < sender.end; ++i) {
    StepValue& value = found.values[i];
    const auto offset = offsets.find(value.series_id);
    if (offset == offsets.end()) {
      continue;
    }
    if (offset->second + sizeof(float) > samples.size()) {
      return data_loss("a frame is shorter than its schema");
    }
    std::memcpy(&value.value, samples.data() + offset->second, sizeof(float));
    value.present = true;
  }
  return true;
}

Expected<const std::vector<SchemaColumn>*> StepReader::columns_of(
    std::int64_t schema_id, std::int64_t run_id, std::int64_t rank) {
  const std::tuple key{schema_id, run_id, rank};
  auto found = columns_.find(key);
  if (found == columns_.end()) {
    MUSTER_ASSIGN_OR_RETURN(
        std::vector<SchemaColumn> columns, read_columns(connection_, schema_id, run_id, rank));
    if (columns_.size() >= kColumnsKept) {
      columns_.clear();
    }
    found = columns_.emplace(key, std::move(columns)).first;
  }
  return &found->second;
}

Status StepReader::read_chunks(const Sender& sender, StepValues& found) {
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse select,
      connection_.use("SELECT c.samples FROM stretches s CROSS JOIN chunks c "
                      "ON c.chunk_key = s.stretch_id << 20 | ?2 "
                      "WHERE s.stream_id = ?1 AND s.chunk = ?3"));
  const auto place = static_cast<std::size_t>(found.step & (kChunkSteps - 1));
  Chunk chunk;
  for (std::size_t i = sender.begin; i < sender.end; ++i) {
    select->reset();
    select->bind(1, sender.stream_id).bind(2, slots_[i]).bind(3, found.step >> kChunkBits);
    MUSTER_ASSIGN_OR_RETURN(const bool has_row, select->step());
    if (!has_row) {
      continue;
    }
    MUSTER_RETURN_IF_ERROR(codec_.decode(select->blob(0), chunk));
    if (place < chunk.values.size() && chunk.present[place]) {
      found.values[i].value = chunk.values[place];
      found.values[i].present = true;
    }
  }
  return {};
}

}  // namespace muster::store
