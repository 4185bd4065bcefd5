// SPDX-License-Identifier: Apache-2.0
// A store in memory that does what the contract says and fails when it is told to.
//
// Tests look into `state`, which outlives the store and is guarded by its mutex.
#pragma once

#include <muster/store/store.h>

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace muster::collector {

struct FakeStoreState {
  std::mutex mutex;
  std::condition_variable changed;

  // Commits wait while the gate is closed; `commit_waiting` says that one does.
  bool gate_open{true};
  bool commit_waiting{false};
  int commits_to_fail{0};

  int commit_count{0};
  int frames_stored{0};
  int frame_calls{0};
  std::vector<Event> events;
  std::vector<Command> commands;
  std::map<std::string, std::uint64_t> acked;  // By incarnation, committed.
  std::map<std::string, std::uint64_t> uncommitted;

  void open_gate();
  void close_gate();
  // False when no commit came to wait within a test's patience.
  [[nodiscard]] bool wait_for_waiting_commit();
};

class FakeStore final : public store::Store {
 public:
  explicit FakeStore(std::shared_ptr<FakeStoreState> state) : state_(std::move(state)) {}

  [[nodiscard]] std::int64_t epoch() const override { return 7; }

  [[nodiscard]] Expected<std::uint64_t> open_session(
      const Identity& identity, std::int32_t world_size) override;

  void close_session(const Identity& identity) override;
  [[nodiscard]] Status register_schema(
      const Identity& identity, const MetricSchema& schema) override;
  [[nodiscard]] Status add_frames(
      const Identity& identity,
      std::uint64_t schema_hash,
      std::uint64_t first_seq,
      const std::vector<SampleFrame>& frames) override;
  [[nodiscard]] Status add_event(
      const Identity& identity, std::uint64_t seq, const Event& event) override;
  void note_heartbeat(
      const Identity& identity, std::int64_t step, std::int64_t dropped_count) override;
  [[nodiscard]] Expected<Command> add_command(const std::string& run_id, Command command) override;
  [[nodiscard]] Status add_command_report(
      const Identity& identity, std::uint64_t seq, const CommandReport& report) override;
  [[nodiscard]] Expected<std::vector<Command>> commands_for(
      const std::string& run_id, std::int64_t generation, std::uint64_t after_id) override;
  [[nodiscard]] Status commit() override;

  [[nodiscard]] Expected<bool> compact() override { return false; }

  [[nodiscard]] Counters counters() const override { return {}; }

 private:
  std::shared_ptr<FakeStoreState> state_;
};

}  // namespace muster::collector
