// SPDX-License-Identifier: Apache-2.0
// Senders: runs, generations, sessions and streams, held in memory while a session is open and
// written by `flush` once per commit.
#pragma once

#include "collector/store/src/connection.h"

#include <muster/common/clock.h>
#include <muster/common/expected.h>
#include <muster/common/ids.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>

namespace muster::store {

struct RunState {
  std::int64_t run_id{0};
  std::int32_t world_size{0};
  std::int64_t last_seen_unix_ns{0};
  std::int64_t sample_count_added{0};  // Since the last flush.
  std::optional<float> last_loss;      // Since the last flush.
  std::int64_t loss_generation{-1};
  std::int64_t loss_step{-1};
  bool dirty{false};
};

// A rank in a generation.
struct StreamState {
  std::int64_t stream_id{0};
  std::int64_t step_first{-1};
  std::int64_t step_last{-1};
  bool dirty{false};
};

struct SessionState {
  RunState* run{nullptr};
  StreamState* stream{nullptr};  // Null for a peer that is not a rank.
  std::uint64_t acked_seq{0};
  std::int64_t step{-1};
  std::int64_t dropped_count{0};
  std::int64_t last_seen_unix_ns{0};
  bool dirty{false};
};

class SessionTable {
 public:
  SessionTable(Connection& connection, const Clock& clock)
      : connection_(connection), clock_(clock) {}

  // Makes or finds the rows of run, generation, session and stream.
  [[nodiscard]] Expected<SessionState*> open(const Identity& identity, std::int32_t world_size);
  // Nothing happens when it is not open.
  [[nodiscard]] Status close(const Identity& identity);
  // kFailedPrecondition when it is not open. The pointer lives until close or clear.
  [[nodiscard]] Expected<SessionState*> find(const Identity& identity);
  [[nodiscard]] SessionState* find_if_open(const Identity& identity);
  // kNotFound when the run has never had a session.
  [[nodiscard]] Expected<RunState*> run(const std::string& run_id);

  // True, and the session moved on, when `seq` is new; false for a duplicate.
  [[nodiscard]] bool accept(SessionState& session, std::uint64_t seq);
  void touch(SessionState& session);

  [[nodiscard]] Status flush();
  // Forgets everything that was not flushed, open sessions included.
  void clear();

 private:
  using StreamKey = std::tuple<std::string, std::int64_t, std::int32_t>;
  using SessionKey = std::tuple<std::string, std::int64_t, std::int32_t, std::string>;

  [[nodiscard]] static SessionKey key_of(const Identity& identity);
  [[nodiscard]] Expected<RunState*> open_run(const Identity& identity, std::int32_t world_size);
  [[nodiscard]] Expected<StreamState*> open_stream(const Identity& identity, std::int64_t run_id);
  [[nodiscard]] Status read_session(
      const Identity& identity, std::int64_t run_id, SessionState& session);
  [[nodiscard]] Status flush_session(const SessionKey& key, SessionState& session);
  [[nodiscard]] Status flush_stream(StreamState& stream);
  [[nodiscard]] Status flush_run(RunState& run);

  [[nodiscard]] std::int64_t wall_now() const { return unix_ns(clock_.wall_now()); }

  Connection& connection_;
  const Clock& clock_;
  std::map<std::string, RunState> runs_;
  std::map<StreamKey, StreamState> streams_;
  std::map<SessionKey, SessionState> sessions_;
};

}  // namespace muster::store
