// SPDX-License-Identifier: Apache-2.0
#include "collector/store/src/command_log.h"

#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <map>

namespace muster::store {

namespace {

using DoubleBytes = std::array<std::byte, sizeof(double)>;

// Reads the columns id, epoch, kind, argument, expires_step, reason, issuer.
Expected<Command> read_command(StatementUse& row) {
  Command command;
  command.id = CommandId{static_cast<std::uint64_t>(row->integer(0))};
  command.collector_epoch = row->integer(1);
  command.kind = static_cast<CommandKind>(row->integer(2));
  const std::span<const std::byte> argument = row->blob(3);
  if (argument.size() != sizeof(double)) {
    return data_loss("the argument of command ", row->integer(0), " is damaged");
  }
  std::memcpy(&command.argument, argument.data(), sizeof(double));
  command.expires_step = row->integer(4);
  command.reason = row->text(5);
  command.issuer = row->text(6);
  return command;
}

Expected<std::vector<Command>> read_all(StatementUse& rows) {
  std::vector<Command> commands;
  while (true) {
    MUSTER_ASSIGN_OR_RETURN(const bool has_row, rows->step());
    if (!has_row) {
      return commands;
    }
    MUSTER_ASSIGN_OR_RETURN(Command command, read_command(rows));
    commands.push_back(std::move(command));
  }
}

void note_report(CommandStatus& status, StatementUse& report) {
  const auto state = static_cast<CommandState>(report->integer(2));
  ++status.ranks_armed;  // Whatever a rank reports, the command has reached it.
  status.ranks_applied += state == CommandState::kApplied ? 1 : 0;
  // One rank that refuses or misses a command is what people must see first.
  const auto weight = [](CommandState s) {
    switch (s) {
      case CommandState::kIssued:
        return 0;
      case CommandState::kArmed:
        return 1;
      case CommandState::kApplied:
        return 2;
      case CommandState::kExpired:
        return 3;
      case CommandState::kRejected:
        return 4;
    }
    return 0;
  };
  if (weight(state) > weight(status.state)) {
    status.state = state;
    status.reason = report->text(4);
  }
  if (state == CommandState::kApplied) {
    status.applied_step = report->integer(3);
  }
}

Status read_reports(
    Connection& connection,
    const std::string& run_id,
    std::map<std::uint64_t, CommandStatus*>& statuses) {
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse reports,
      connection.use("SELECT command_id, rank, state, step, reason FROM command_reports r "
                     "WHERE run_id = (SELECT run_id FROM runs WHERE name = ?) AND generation = "
                     "(SELECT max(generation) FROM command_reports n WHERE n.run_id = r.run_id "
                     "AND n.command_id = r.command_id) ORDER BY command_id, rank"));
  reports->bind(1, run_id);
  while (true) {
    MUSTER_ASSIGN_OR_RETURN(const bool has_row, reports->step());
    if (!has_row) {
      return {};
    }
    const auto found = statuses.find(static_cast<std::uint64_t>(reports->integer(0)));
    if (found != statuses.end()) {
      note_report(*found->second, reports);
    }
  }
}

}  // namespace

Status insert_command(
    Connection& connection, std::int64_t run_id, std::int64_t issued_unix_ns, Command& command) {
  const auto argument = std::bit_cast<DoubleBytes>(command.argument);
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse insert,
      connection.use("INSERT INTO commands (run_id, command_id, collector_epoch, kind, argument, "
                     "expires_step, reason, issuer, issued_unix_ns) VALUES (?1, (SELECT "
                     "ifnull(max(command_id), 0) + 1 FROM commands WHERE run_id = ?1), "
                     "?2, ?3, ?4, ?5, ?6, ?7, ?8) RETURNING command_id"));
  insert->bind(1, run_id).bind(2, command.collector_epoch);
  insert->bind(3, static_cast<std::int64_t>(command.kind)).bind(4, std::span{argument});
  insert->bind(5, command.expires_step).bind(6, command.reason).bind(7, command.issuer);
  insert->bind(8, issued_unix_ns);
  MUSTER_ASSIGN_OR_RETURN(const bool has_row, insert->step());
  if (!has_row) {
    return internal_error("a command was not stored");
  }
  command.id = CommandId{static_cast<std::uint64_t>(insert->integer(0))};
  return insert->step().status();
}

Status insert_command_report(
    Connection& connection,
    std::int64_t run_id,
    const Identity& identity,
    const CommandReport& report) {
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse upsert,
      connection.use("INSERT INTO command_reports (run_id, command_id, generation, rank, state, "
                     "step, parameter_digest, reason) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) "
                     "ON CONFLICT DO UPDATE SET state = ?5, step = ?6, parameter_digest = ?7, "
                     "reason = ?8 WHERE state <= 2 AND ?5 >= state"));
  upsert->bind(1, run_id).bind(2, static_cast<std::int64_t>(report.id.value()));
  upsert->bind(3, identity.generation.value()).bind(4, std::int64_t{identity.rank.value()});
  upsert->bind(5, static_cast<std::int64_t>(report.state)).bind(6, report.step);
  upsert->bind(7, static_cast<std::int64_t>(report.parameter_digest)).bind(8, report.reason);
  return upsert->run();
}

Status fix_command_list(
    Connection& connection, std::int64_t run_id, std::int64_t generation, bool& fixed_now) {
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse cut,
      connection.use("INSERT INTO generations (run_id, generation, started_unix_ns, command_cut) "
                     "SELECT ?1, ?2, last_seen_unix_ns, ifnull((SELECT max(command_id) FROM "
                     "commands WHERE run_id = ?1), 0) FROM runs WHERE run_id = ?1 "
                     "ON CONFLICT DO UPDATE SET command_cut = excluded.command_cut "
                     "WHERE command_cut IS NULL"));
  cut->bind(1, run_id).bind(2, generation);
  MUSTER_RETURN_IF_ERROR(cut->run());
  fixed_now = connection.changes() > 0;
  if (!fixed_now) {
    return {};
  }
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse carry,
      connection.use("INSERT INTO carried_commands (run_id, generation, command_id) "
                     "SELECT ?1, ?2, command_id FROM commands c WHERE run_id = ?1 AND NOT EXISTS "
                     "(SELECT 1 FROM command_reports r WHERE r.run_id = ?1 AND "
                     "r.command_id = c.command_id AND r.generation < ?2 AND r.state >= 3)"));
  carry->bind(1, run_id).bind(2, generation);
  return carry->run();
}

Expected<std::vector<Command>> read_commands_for(
    Connection& connection, std::int64_t run_id, std::int64_t generation, std::uint64_t after_id) {
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse select,
      connection.use("SELECT command_id, collector_epoch, kind, argument, expires_step, reason, "
                     "issuer FROM commands c WHERE run_id = ?1 AND command_id > ?3 AND "
                     "(command_id > (SELECT command_cut FROM generations WHERE run_id = ?1 AND "
                     "generation = ?2) OR EXISTS (SELECT 1 FROM carried_commands k WHERE "
                     "k.run_id = ?1 AND k.generation = ?2 AND k.command_id = c.command_id)) "
                     "ORDER BY command_id"));
  select->bind(1, run_id).bind(2, generation).bind(3, static_cast<std::int64_t>(after_id));
  return read_all(select);
}

Expected<std::vector<CommandStatus>> read_command_statuses(
    Connection& connection, const std::string& run_id) {
  std::vector<CommandStatus> statuses;
  {
    MUSTER_ASSIGN_OR_RETURN(
        StatementUse select,
        connection.use("SELECT command_id, collector_epoch, kind, argument, expires_step, reason, "
                       "issuer FROM commands WHERE run_id = (SELECT run_id FROM runs "
                       "WHERE name = ?) ORDER BY command_id"));
    select->bind(1, run_id);
    MUSTER_ASSIGN_OR_RETURN(std::vector<Command> commands, read_all(select));
    for (Command& command : commands) {
      statuses.emplace_back().command = std::move(command);
    }
  }
  std::map<std::uint64_t, CommandStatus*> by_id;
  for (CommandStatus& status : statuses) {
    by_id.emplace(status.command.id.value(), &status);
  }
  MUSTER_RETURN_IF_ERROR(read_reports(connection, run_id, by_id));
  return statuses;
}

}  // namespace muster::store
