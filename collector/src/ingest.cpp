// SPDX-License-Identifier: Apache-2.0
#include "collector/src/ingest.h"

#include <muster/common/log.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <type_traits>

namespace muster::collector {

namespace {

// Faults of the request, not of the disk: they are reported to the peer, and ingest continues.
bool is_callers_fault(StatusCode code) {
  return code == StatusCode::kInvalidArgument || code == StatusCode::kNotFound ||
         code == StatusCode::kAlreadyExists || code == StatusCode::kFailedPrecondition;
}

// Without the frames that were sent again: those found what they had to find.
std::span<const SampleFrame> fresh_frames(const wire::SampleBatch& batch, std::uint64_t last_seq) {
  const std::uint64_t known = last_seq < batch.first_seq ? 0 : last_seq - batch.first_seq + 1;
  return std::span{batch.frames}.subspan(std::min<std::size_t>(known, batch.frames.size()));
}

Status check_request(const wire::CommandRequest& request) {
  if (request.kind == CommandKind::kSetQkClipThreshold &&
      !(std::isfinite(request.argument) && request.argument >= 0)) {
    return invalid_argument(
        "a QK-clip threshold must be a finite number >= 0 (0 switches the clip off)");
  }
  return {};
}

}  // namespace

Ingest::Ingest(
    store::Store& store,
    const Policy& policy,
    const Clock& clock,
    Metrics& metrics,
    HistoryReader read_history)
    : store_(store),
      policy_(policy),
      clock_(clock),
      metrics_(metrics),
      read_history_(std::move(read_history)) {}

Status Ingest::handle(Task& task) {
  return std::visit(
      [&](auto& work) -> Status {
        using Content = std::decay_t<decltype(work)>;
        if constexpr (
            std::is_same_v<Content, FindingRaised> || std::is_same_v<Content, IssueRequest>) {
          return add(work);
        } else if constexpr (std::is_same_v<Content, SessionClosed>) {
          close(task.peer->session_id, work);
          return {};
        } else {
          if constexpr (std::is_same_v<Content, SessionOpened>) {
            sessions_[task.peer->session_id].peer = task.peer;
          }
          const auto found = sessions_.find(task.peer->session_id);
          if (found == sessions_.end() || found->second.refused) {
            return {};
          }
          Status status = add(found->second, work);
          if (!status.ok() && is_callers_fault(status.code())) {
            // A session that the store does not know any more starts over; bad data stays bad.
            refuse(found->second, status.message(), status.code() != StatusCode::kInvalidArgument);
            return {};
          }
          return status;
        }
      },
      task.work);
}

Status Ingest::add(Session& session, const SessionOpened& /*opened*/) {
  const wire::Hello& hello = session.peer->hello;
  if (hello.role != wire::PeerRole::kOperator) {
    static_cast<void>(run_of(hello.identity.run_id));  // Reads the history before the session.
    MUSTER_ASSIGN_OR_RETURN(
        session.last_seq, store_.open_session(hello.identity, hello.world_size));
    MUSTER_RETURN_IF_ERROR(keep_line(session.peer->line));
  }
  reply(
      session,
      wire::Welcome{
          std::min(hello.version, wire::kProtocolVersion), store_.epoch(), session.last_seq});
  if (hello.role != wire::PeerRole::kAgent) {
    return {};
  }
  Run& run = run_of(hello.identity.run_id);
  run.ended.clear();
  if (hello.identity.generation > run.generation) {
    run.generation = hello.identity.generation;
    run.step = -1;
  }
  MUSTER_ASSIGN_OR_RETURN(
      const std::vector<Command> commands,
      store_.commands_for(
          hello.identity.run_id, hello.identity.generation.value(), hello.last_applied_command));
  for (const Command& command : commands) {
    reply(session, wire::CommandMessage{command});
  }
  return {};
}

Status Ingest::keep_line(const store::RunLine& line) {
  if (line.uid.empty() && line.base.empty()) {
    return {};
  }
  MUSTER_ASSIGN_OR_RETURN(const bool fresh, store_.keep_line(line));
  if (!fresh || line.base.empty()) {
    return {};
  }
  Event event;
  event.kind = event_kind::kFinding;
  event.severity = Severity::kWarning;
  event.wall_unix_ns = unix_ns(clock_.wall_now());
  event.reason = "another run used the name '" + line.base + "' before; this one is kept as '" +
                 line.name + "', and the first one shows as '" + line.base + "#1'";
  log_warning("event=name_used_again run=" + line.base + " line=" + line.name);
  return store_.add_event({line.name, line.generation, Rank{-1}, ""}, 0, event);
}

void Ingest::close(std::uint64_t session_id, const SessionClosed& closed) {
  const auto found = sessions_.find(session_id);
  if (found == sessions_.end()) {
    return;
  }
  const wire::Hello& hello = found->second.peer->hello;
  if (hello.role != wire::PeerRole::kOperator && !closed.superseded) {
    store_.close_session(hello.identity);
  }
  sessions_.erase(found);
}

Status Ingest::add(Session& session, const wire::SchemaMessage& message) {
  const std::uint64_t hash = message.schema.hash();
  if (session.schemas.contains(hash)) {
    return {};
  }
  MUSTER_RETURN_IF_ERROR(store_.register_schema(session.peer->hello.identity, message.schema));
  session.schemas.emplace(hash, std::make_shared<const SchemaView>(message.schema));
  return {};
}

Status Ingest::add(Session& session, const wire::SampleBatch& batch) {
  if (batch.frames.empty()) {
    return {};
  }
  const auto schema = session.schemas.find(batch.schema_hash);
  if (schema == session.schemas.end()) {
    return invalid_argument("samples came before the schema that describes them");
  }
  const SchemaView& view = *schema->second;
  if (batch.frames.front().values.size() != view.schema().metrics.size()) {
    return invalid_argument(
        "frames have ",
        batch.frames.front().values.size(),
        " values, their schema has ",
        view.schema().metrics.size());
  }
  if (!accepts_seq(session, batch.first_seq, batch.frames.size())) {
    return {};
  }
  const Identity& identity = session.peer->hello.identity;
  const std::int64_t duplicates = store_.counters().duplicates;
  MUSTER_RETURN_IF_ERROR(
      store_.add_frames(identity, batch.schema_hash, batch.first_seq, batch.frames));
  const std::span<const SampleFrame> fresh = fresh_frames(batch, session.last_seq);
  const auto resent = static_cast<std::int64_t>(batch.frames.size() - fresh.size());
  MUSTER_RETURN_IF_ERROR(note_repeats(session, store_.counters().duplicates - duplicates - resent));
  MUSTER_RETURN_IF_ERROR(judge(identity, view, fresh));
  metrics_.report_frames(identity, schema->second, fresh);
  note_step(identity, batch.frames.back().step);
  stored(session, batch.first_seq + batch.frames.size() - 1);
  return {};
}

Status Ingest::note_repeats(Session& session, std::int64_t repeats) {
  if (repeats <= 0 || std::exchange(session.repeats_reported, true)) {
    return {};
  }
  const Identity& identity = session.peer->hello.identity;
  Event event;
  event.kind = event_kind::kFinding;
  event.severity = Severity::kWarning;
  event.wall_unix_ns = unix_ns(clock_.wall_now());
  event.reason = "rank " + std::to_string(identity.rank.value()) + " sent steps that generation " +
                 std::to_string(identity.generation.value()) +
                 " has from another process; they are left out. Was a checkpoint folder copied, or "
                 "a name used twice without `muster run`?";
  return store_.add_event(identity, 0, event);
}

Status Ingest::add(Session& session, const wire::EventMessage& message) {
  const bool launcher = session.peer->hello.role == wire::PeerRole::kLauncher;
  if (!(launcher && message.seq == 0) && !accepts_seq(session, message.seq, 1)) {
    return {};
  }
  const Identity& identity = session.peer->hello.identity;
  MUSTER_RETURN_IF_ERROR(store_.add_event(identity, message.seq, message.event));
  if (message.event.kind == event_kind::kRunEnded) {
    run_of(identity.run_id).ended = message.event.reason;
  }
  if (!launcher && identity.rank == Rank{0} && message.seq > session.last_seq) {
    run_of(identity.run_id).judge.note(identity.generation, message.event);
  }
  stored(session, message.seq);
  return {};
}

Status Ingest::add(Session& session, const wire::CommandReportMessage& message) {
  if (!accepts_seq(session, message.seq, 1)) {
    return {};
  }
  MUSTER_RETURN_IF_ERROR(
      store_.add_command_report(session.peer->hello.identity, message.seq, message.report));
  stored(session, message.seq);
  return {};
}

Status Ingest::add(Session& session, const wire::Heartbeat& heartbeat) {
  const wire::Hello& hello = session.peer->hello;
  if (hello.role != wire::PeerRole::kAgent) {
    return {};
  }
  const wire::DropReport& drops = heartbeat.drops;
  const auto dropped =
      static_cast<std::int64_t>(drops.ring_full + drops.outbox_full + drops.spool_full);
  store_.note_heartbeat(hello.identity, heartbeat.step, dropped);
  metrics_.report_dropped(hello.identity, dropped);
  note_step(hello.identity, heartbeat.step);
  return {};
}

Status Ingest::add(Session& session, const wire::CommandRequest& request) {
  if (session.peer->hello.role == wire::PeerRole::kAgent) {
    return invalid_argument("an agent may not issue commands");
  }
  const Expected<CommandId> id = command(request);
  if (!id.ok() && is_callers_fault(id.status().code())) {
    refuse(session, id.status().message(), false);
    return {};
  }
  if (id.ok()) {
    reply(session, wire::CommandAccepted{*id});
  }
  return id.status();
}

Status Ingest::add(const FindingRaised& raised) {
  return record(raised.run_id, raised.generation, raised.finding);
}

Status Ingest::add(IssueRequest& request) {
  Expected<CommandId> id = command(request.request);
  if (id.ok()) {
    promises_.emplace_back(std::move(request.promise), *id);
    return {};
  }
  const bool refused = is_callers_fault(id.status().code());
  const Status status = id.status();
  request.promise.set_value(std::move(id));
  return refused ? Status{} : status;
}

Status Ingest::judge(
    const Identity& identity, const SchemaView& view, std::span<const SampleFrame> frames) {
  Run& run = run_of(identity.run_id);
  if (identity.generation < run.generation) {
    return {};
  }
  for (const SampleFrame& frame : frames) {
    const detect::WaitRow row{
        identity.generation.value(), frame.step, identity.rank.value(), view.wait_row(frame)};
    for (const detect::Finding& finding : run.judge.observe(row)) {
      MUSTER_RETURN_IF_ERROR(record(identity.run_id, identity.generation, finding));
    }
  }
  if (identity.rank != Rank{0}) {
    return {};
  }
  for (const SampleFrame& frame : frames) {
    const auto observation = view.observe(identity.generation, frame);
    if (!observation.has_value()) {
      return {};
    }
    for (const detect::Finding& finding : run.judge.observe(*observation)) {
      MUSTER_RETURN_IF_ERROR(record(identity.run_id, identity.generation, finding));
    }
  }
  return {};
}

Status Ingest::record(
    const std::string& run_id, Generation generation, const detect::Finding& finding) {
  Run& run = run_of(run_id);
  const Judgement judgement = run.judge.decide(finding, unix_ns(clock_.wall_now()));
  const Identity collector{run_id, generation, Rank{-1}, ""};
  MUSTER_RETURN_IF_ERROR(store_.add_event(collector, 0, judgement.finding));
  for (const Event& action : judgement.actions) {
    MUSTER_RETURN_IF_ERROR(store_.add_event(collector, 0, action));
  }
  for (const Command& planned : judgement.commands) {
    MUSTER_RETURN_IF_ERROR(store_command(run_id, planned).status());
  }
  metrics_.report_finding(finding.rule);
  return {};
}

Expected<CommandId> Ingest::command(const wire::CommandRequest& request) {
  MUSTER_RETURN_IF_ERROR(check_request(request));
  const Expected<std::string> line = store_.find_line(request.run_id);
  if (!line) {
    return line.status().code() != StatusCode::kNotFound
               ? line.status()
               : not_found(
                     "run '",
                     request.run_id,
                     "' is not known to this collector; `muster status` lists runs");
  }
  const bool for_the_moment =
      request.kind == CommandKind::kStop || request.kind == CommandKind::kSkipStep;
  if (const Run& run = run_of(*line); for_the_moment && !run.ended.empty()) {
    return failed_precondition(
        "run '", request.run_id, "' has ended (", run.ended, "); send this when it runs again");
  }
  const std::int64_t newest = std::max<std::int64_t>(run_of(*line).step, 0);
  Command command;
  command.kind = request.kind;
  command.argument = request.argument;
  const bool expires = request.expires_steps >= 0 &&
                       request.expires_steps <= std::numeric_limits<std::int64_t>::max() - newest;
  command.expires_step = expires ? newest + request.expires_steps : -1;
  command.reason = request.reason;
  command.issuer = request.issuer.empty() ? "operator" : request.issuer;
  return store_command(*line, std::move(command));
}

Expected<CommandId> Ingest::store_command(const std::string& run_id, Command command) {
  command.collector_epoch = store_.epoch();
  MUSTER_ASSIGN_OR_RETURN(Command stored, store_.add_command(run_id, std::move(command)));
  const CommandId id = stored.id;
  answers_.emplace_back(Broadcast{run_id, run_of(run_id).generation, std::move(stored)});
  return id;
}

Ingest::Run& Ingest::run_of(const std::string& run_id) {
  const auto found = runs_.find(run_id);
  if (found != runs_.end()) {
    return found->second;
  }
  Run& run = runs_.emplace(run_id, Run{policy_}).first->second;
  const History history = read_history_(run_id);
  run.ended = history.ended;
  run.generation = history.generation;
  run.step = history.last_step;
  run.judge.replay(history.observations, history.generation, history.events);
  return run;
}

// Agents number what they send from 1; 0 would pass the store's dedupe.
bool Ingest::accepts_seq(Session& session, std::uint64_t first, std::uint64_t count) {
  constexpr auto kSeqMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (first >= 1 && first <= kSeqMax - count) {
    return true;
  }
  refuse(
      session,
      "sequence numbers start at 1 and end below 2^63, not " + std::to_string(first),
      false);
  return false;
}

void Ingest::note_step(const Identity& identity, std::int64_t step) {
  Run& run = run_of(identity.run_id);
  if (identity.generation == run.generation) {
    run.step = std::max(run.step, step);
  }
}

void Ingest::stored(Session& session, std::uint64_t seq) {
  session.last_seq = std::max(session.last_seq, seq);
  unacked_.insert(session.peer->session_id);
}

void Ingest::reply(const Session& session, wire::Message message) {
  answers_.emplace_back(Reply{session.peer->session_id, std::move(message)});
}

// Frames of the session in this transaction are acknowledged before its Goodbye.
void Ingest::refuse(Session& session, std::string reason, bool retry) {
  session.refused = true;
  if (unacked_.erase(session.peer->session_id) > 0) {
    reply(session, wire::Ack{session.last_seq});
  }
  reply(session, wire::Goodbye{std::move(reason), retry});
}

std::vector<Answer> Ingest::committed() {
  for (const std::uint64_t session_id : unacked_) {
    if (const auto found = sessions_.find(session_id); found != sessions_.end()) {
      reply(found->second, wire::Ack{found->second.last_seq});
    }
  }
  unacked_.clear();
  for (auto& [promise, id] : promises_) {
    promise.set_value(id);
  }
  promises_.clear();
  return std::exchange(answers_, {});
}

void Ingest::failed(const Status& status) {
  for (auto& [promise, id] : promises_) {
    promise.set_value(Expected<CommandId>{status});
  }
  promises_.clear();
  answers_.clear();
  unacked_.clear();
  sessions_.clear();
  runs_.clear();
}

}  // namespace muster::collector
