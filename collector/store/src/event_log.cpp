// SPDX-License-Identifier: Apache-2.0
#include "collector/store/src/event_log.h"

#include "collector/store/src/map_codec.h"

namespace muster::store {

Status insert_event(
    Connection& connection, std::int64_t run_id, const Identity& identity, const Event& event) {
  const std::vector<std::byte> inputs = encode_map(event.inputs);
  const std::vector<std::byte> labels = encode_map(event.labels);
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse insert,
      connection.use(
          "INSERT INTO events (run_id, generation, rank, kind, severity, step, "
          "wall_unix_ns, reason, inputs, labels) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"));
  insert->bind(1, run_id).bind(2, identity.generation.value());
  insert->bind(3, std::int64_t{identity.rank.value()}).bind(4, event.kind);
  insert->bind(5, static_cast<std::int64_t>(event.severity)).bind(6, event.step);
  insert->bind(7, event.wall_unix_ns).bind(8, event.reason);
  insert->bind(9, std::span{inputs}).bind(10, std::span{labels});
  return insert->run();
}

Expected<std::vector<StoredEvent>> read_events(
    Connection& connection,
    const std::string& run_id,
    std::int64_t after_event_id,
    std::int32_t limit) {
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse select,
      connection.use("SELECT event_id, generation, rank, kind, severity, step, wall_unix_ns, "
                     "reason, inputs, labels FROM events WHERE run_id = (SELECT run_id FROM runs "
                     "WHERE name = ?) AND event_id > ? ORDER BY event_id LIMIT ?"));
  select->bind(1, run_id).bind(2, after_event_id).bind(3, std::int64_t{limit > 0 ? limit : 0});
  std::vector<StoredEvent> events;
  while (true) {
    MUSTER_ASSIGN_OR_RETURN(const bool has_row, select->step());
    if (!has_row) {
      return events;
    }
    StoredEvent stored;
    stored.event_id = select->integer(0);
    stored.generation = select->integer(1);
    stored.rank = static_cast<std::int32_t>(select->integer(2));
    stored.event.kind = select->text(3);
    stored.event.severity = static_cast<Severity>(select->integer(4));
    stored.event.step = select->integer(5);
    stored.event.wall_unix_ns = select->integer(6);
    stored.event.reason = select->text(7);
    MUSTER_ASSIGN_OR_RETURN(stored.event.inputs, decode_number_map(select->blob(8)));
    MUSTER_ASSIGN_OR_RETURN(stored.event.labels, decode_text_map(select->blob(9)));
    events.push_back(std::move(stored));
  }
}

}  // namespace muster::store
