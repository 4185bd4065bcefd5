// SPDX-License-Identifier: Apache-2.0
#include "collector/store/src/run_lines.h"

namespace muster::store {

Expected<std::string> resolve_run(Connection& connection, const std::string& name) {
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse select,
      connection.use("SELECT r.name FROM runs r LEFT JOIN run_lines l ON l.run_id = r.run_id "
                     "WHERE l.base = ?1 OR r.name = ?1 OR r.name || '#1' = ?1 "
                     "ORDER BY l.base IS ?1 DESC, r.name = ?1 DESC, r.run_id DESC LIMIT 1"));
  select->bind(1, name);
  MUSTER_ASSIGN_OR_RETURN(const bool has_row, select->step());
  if (!has_row) {
    return not_found("run \"" + name + "\" is not in this database");
  }
  return select->text(0);
}

Expected<std::vector<RunLine>> read_run_lines(Connection& connection) {
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse select,
      connection.use("SELECT r.name, ifnull(l.base, ''), ifnull(l.uid, ''), "
                     "(SELECT ifnull(max(generation), 0) FROM generations g "
                     "WHERE g.run_id = r.run_id) FROM runs r "
                     "LEFT JOIN run_lines l ON l.run_id = r.run_id ORDER BY r.run_id"));
  std::vector<RunLine> lines;
  while (true) {
    MUSTER_ASSIGN_OR_RETURN(const bool has_row, select->step());
    if (!has_row) {
      return lines;
    }
    RunLine& line = lines.emplace_back();
    line.name = select->text(0);
    line.base = select->text(1);
    line.uid = select->text(2);
    line.generation = Generation{select->integer(3)};
  }
}

Expected<bool> write_run_line(Connection& connection, std::int64_t run_id, const RunLine& line) {
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse insert,
      connection.use("INSERT INTO run_lines (run_id, base, uid) VALUES (?, ?, ?) "
                     "ON CONFLICT DO NOTHING"));
  insert->bind(1, run_id).bind(2, line.base).bind(3, line.uid);
  MUSTER_RETURN_IF_ERROR(insert->run());
  return connection.changes() > 0;
}

}  // namespace muster::store
