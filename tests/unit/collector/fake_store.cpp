// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/collector/fake_store.h"

#include "tests/unit/collector/scripted_client.h"

#include <algorithm>

namespace muster::collector {

void FakeStoreState::open_gate() {
  const std::lock_guard lock{mutex};
  gate_open = true;
  changed.notify_all();
}

void FakeStoreState::close_gate() {
  const std::lock_guard lock{mutex};
  gate_open = false;
}

bool FakeStoreState::wait_for_waiting_commit() {
  std::unique_lock lock{mutex};
  return changed.wait_for(lock, kPatience, [this] { return commit_waiting; });
}

Expected<std::uint64_t> FakeStore::open_session(
    const Identity& identity, std::int32_t /*world_size*/) {
  const std::lock_guard lock{state_->mutex};
  return state_->acked[identity.incarnation];
}

void FakeStore::close_session(const Identity& /*identity*/) {}

Status FakeStore::register_schema(const Identity& /*identity*/, const MetricSchema& /*schema*/) {
  return {};
}

Status FakeStore::add_frames(
    const Identity& identity,
    std::uint64_t /*schema_hash*/,
    std::uint64_t first_seq,
    const std::vector<SampleFrame>& frames) {
  const std::lock_guard lock{state_->mutex};
  std::uint64_t& seq = state_->uncommitted[identity.incarnation];
  seq = std::max(seq, first_seq + frames.size() - 1);
  ++state_->frame_calls;
  state_->frames_stored += static_cast<int>(frames.size());
  state_->changed.notify_all();
  return {};
}

Status FakeStore::add_event(const Identity& identity, std::uint64_t seq, const Event& event) {
  const std::lock_guard lock{state_->mutex};
  state_->uncommitted[identity.incarnation] = seq;
  state_->events.push_back(event);
  return {};
}

void FakeStore::note_heartbeat(
    const Identity& /*identity*/, std::int64_t /*step*/, std::int64_t /*dropped_count*/) {}

Expected<Command> FakeStore::add_command(const std::string& /*run_id*/, Command command) {
  const std::lock_guard lock{state_->mutex};
  command.id = CommandId{state_->commands.size() + 1};
  state_->commands.push_back(command);
  return command;
}

Status FakeStore::add_command_report(
    const Identity& identity, std::uint64_t seq, const CommandReport& /*report*/) {
  const std::lock_guard lock{state_->mutex};
  state_->uncommitted[identity.incarnation] = seq;
  return {};
}

Expected<std::vector<Command>> FakeStore::commands_for(
    const std::string& /*run_id*/, std::int64_t /*generation*/, std::uint64_t after_id) {
  const std::lock_guard lock{state_->mutex};
  std::vector<Command> commands;
  for (const Command& command : state_->commands) {
    if (command.id.value() > after_id) {
      commands.push_back(command);
    }
  }
  return commands;
}

Status FakeStore::commit() {
  std::unique_lock lock{state_->mutex};
  state_->commit_waiting = !state_->gate_open;
  state_->changed.notify_all();
  state_->changed.wait(lock, [this] { return state_->gate_open; });
  state_->commit_waiting = false;
  if (state_->commits_to_fail > 0) {
    --state_->commits_to_fail;
    state_->uncommitted.clear();
    return Status{StatusCode::kResourceExhausted, "disk full"};
  }
  ++state_->commit_count;
  for (const auto& [incarnation, seq] : state_->uncommitted) {
    state_->acked[incarnation] = std::max(state_->acked[incarnation], seq);
  }
  state_->uncommitted.clear();
  return {};
}

}  // namespace muster::collector
