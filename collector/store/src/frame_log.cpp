// SPDX-License-Identifier: Apache-2.0
#include "collector/store/src/frame_log.h"

#include "collector/store/src/chunk_codec.h"
#include "collector/store/src/keys.h"

#include <algorithm>
#include <span>

namespace muster::store {

namespace {

void note_loss(
    RunState& run, const SchemaInfo& schema, std::int64_t generation, const SampleFrame& frame) {
  const bool newer = generation > run.loss_generation ||
                     (generation == run.loss_generation && frame.step >= run.loss_step);
  if (schema.loss_position && newer) {
    run.last_loss = frame.values[*schema.loss_position];
    run.loss_generation = generation;
    run.loss_step = frame.step;
  }
}

// True when `step` begins a new stretch or falls into one that is already closed.
bool note_step(StreamState& stream, std::int64_t step) {
  const std::int64_t chunk_before = stream.step_last >> kChunkBits;
  const bool first = stream.step_last < 0;
  stream.step_first = first ? step : std::min(stream.step_first, step);
  stream.step_last = std::max(stream.step_last, step);
  stream.dirty = true;
  return !first && step >> kChunkBits != chunk_before;
}

}  // namespace

Status FrameLog::check(
    const SchemaInfo& schema, std::uint64_t first_seq, const std::vector<SampleFrame>& frames) {
  if (first_seq == 0) {
    return invalid_argument("frames need sequence numbers from 1");
  }
  for (const SampleFrame& frame : frames) {
    if (frame.values.size() != schema.metric_count) {
      return invalid_argument(
          "the frame of step ",
          frame.step,
          " has ",
          frame.values.size(),
          " values, its schema ",
          schema.metric_count);
    }
    if (frame.step < 0 || frame.step >= kStepLimit) {
      return invalid_argument("step ", frame.step, " of a frame is outside 0..", kStepLimit - 1);
    }
  }
  return {};
}

Expected<FrameLog::Added> FrameLog::add(
    SessionTable& sessions,
    SessionState& session,
    const FrameBatch& batch,
    std::set<std::int64_t>& ready) {
  Added added;
  const SchemaInfo& schema = batch.schema;
  const bool is_first_rank = batch.identity.rank.value() == 0;
  StreamState& stream = *session.stream;
  const auto samples_per_frame =
      static_cast<std::int64_t>(is_first_rank ? schema.metric_count : schema.rank_metric_count);
  for (std::size_t i = 0; i < batch.frames.size(); ++i) {
    const SampleFrame& frame = batch.frames[i];
    bool is_new = sessions.accept(session, batch.first_seq + i);
    if (is_new) {
      MUSTER_ASSIGN_OR_RETURN(is_new, insert(stream, schema.schema_id, frame));
    }
    if (!is_new) {
      ++added.duplicates;
      continue;
    }
    if (note_step(stream, frame.step)) {
      ready.insert(stream.stream_id);
    }
    session.step = std::max(session.step, frame.step);
    if (is_first_rank) {
      note_loss(*session.run, schema, batch.identity.generation.value(), frame);
    }
    ++added.frames;
    added.samples += samples_per_frame;
  }
  session.run->sample_count_added += added.samples;
  return added;
}

Expected<bool> FrameLog::insert(
    const StreamState& stream, std::int64_t schema_id, const SampleFrame& frame) {
  // A step beyond the last one cannot be there yet; only others need to be looked up.
  if (frame.step <= stream.step_last) {
    MUSTER_ASSIGN_OR_RETURN(const bool transposed, is_transposed(stream, frame.step));
    if (transposed) {
      return false;
    }
  }
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse insert,
      connection_.use("INSERT OR IGNORE INTO frames (frame_key, schema_id, wall_unix_ns, samples) "
                      "VALUES (?, ?, ?, ?)"));
  insert->bind(1, frame_key(stream.stream_id, frame.step)).bind(2, schema_id);
  insert->bind(3, frame.wall_unix_ns).bind(4, std::as_bytes(std::span{frame.values}));
  MUSTER_RETURN_IF_ERROR(insert->run());
  return connection_.changes() > 0;
}

Expected<bool> FrameLog::is_transposed(const StreamState& stream, std::int64_t step) {
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse select,
      connection_.use("SELECT wall_unix_ns FROM stretches WHERE stream_id = ? AND chunk = ?"));
  select->bind(1, stream.stream_id).bind(2, step >> kChunkBits);
  MUSTER_ASSIGN_OR_RETURN(const bool has_row, select->step());
  if (!has_row) {
    return false;
  }
  const std::span<const std::byte> times = select->blob(0);
  if (times.size() < kPresenceBytes) {
    return data_loss("a stretch ends within its presence bits");
  }
  const std::bitset<kChunkSteps> present = read_presence(times.first<kPresenceBytes>());
  return present.test(static_cast<std::size_t>(step) % kChunkSteps);
}

}  // namespace muster::store
