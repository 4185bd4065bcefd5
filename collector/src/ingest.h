// SPDX-License-Identifier: Apache-2.0
// Applies tasks to the store, the detectors and the policy, and collects the answers.
//
// Belongs to the writer thread. Nothing is answered before the commit that holds it: answers
// collect until `committed`. Findings, actions and commands are part of the transaction of the
// frames they come from, so that a crash loses all of them or none, and a repeated frame finds
// nothing twice.
#pragma once

#include "collector/src/history.h"
#include "collector/src/judge.h"
#include "collector/src/metrics.h"
#include "collector/src/schema_view.h"
#include "collector/src/task.h"

#include <muster/common/clock.h>
#include <muster/policy/policy.h>
#include <muster/store/store.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace muster::collector {

// Reads the stored history of a run when the run is first seen.
using HistoryReader = std::function<History(const std::string& run_id)>;

class Ingest {
 public:
  // All references must outlive it.
  Ingest(
      store::Store& store,
      const Policy& policy,
      const Clock& clock,
      Metrics& metrics,
      HistoryReader read_history);

  // An error is the store's, never a peer's: everything since the last commit is void. A peer's
  // mistake is answered with a Goodbye.
  [[nodiscard]] Status handle(Task& task);

  // True if a peer or caller is waiting for an answer from this transaction.
  [[nodiscard]] bool urgent() const { return !answers_.empty() || !promises_.empty(); }

  // The answers of the transaction that was just committed.
  [[nodiscard]] std::vector<Answer> committed();

  // Call when the transaction is void: drops sessions and runs, and fails callers in issue().
  void failed(const Status& status);

 private:
  struct Session {
    std::shared_ptr<const Peer> peer;
    std::map<std::uint64_t, std::shared_ptr<const SchemaView>> schemas;
    std::uint64_t last_seq{0};
    bool repeats_reported{false};
    bool refused{false};  // A Goodbye was sent; later frames are ignored.
  };

  struct Run {
    explicit Run(const Policy& policy) : judge(policy) {}

    Judge judge;
    std::string ended;  // Why, once its launcher or rank 0 said so; until a process joins again.
    Generation generation;  // Newest.
    std::int64_t step{-1};  // Newest of it.
  };

  // Warns once if steps of this process were stored from another one.
  [[nodiscard]] Status note_repeats(Session& session, std::int64_t repeats);
  // Warns once where the run is not the first of its name.
  [[nodiscard]] Status keep_line(const store::RunLine& line);
  void close(std::uint64_t session_id, const SessionClosed& closed);
  [[nodiscard]] Status add(Session& session, const SessionOpened& opened);
  [[nodiscard]] Status add(Session& session, const wire::SchemaMessage& message);
  [[nodiscard]] Status add(Session& session, const wire::SampleBatch& batch);
  [[nodiscard]] Status add(Session& session, const wire::EventMessage& message);
  [[nodiscard]] Status add(Session& session, const wire::CommandReportMessage& message);
  [[nodiscard]] Status add(Session& session, const wire::Heartbeat& heartbeat);
  [[nodiscard]] Status add(Session& session, const wire::CommandRequest& request);
  [[nodiscard]] Status add(const FindingRaised& raised);
  [[nodiscard]] Status add(IssueRequest& request);

  [[nodiscard]] Status judge(
      const Identity& identity, const SchemaView& view, std::span<const SampleFrame> frames);
  [[nodiscard]] Status record(
      const std::string& run_id, Generation generation, const detect::Finding& finding);
  [[nodiscard]] Expected<CommandId> command(const wire::CommandRequest& request);
  [[nodiscard]] Expected<CommandId> store_command(const std::string& run_id, Command command);

  [[nodiscard]] Run& run_of(const std::string& run_id);
  [[nodiscard]] bool accepts_seq(Session& session, std::uint64_t first, std::uint64_t count);
  void note_step(const Identity& identity, std::int64_t step);
  void stored(Session& session, std::uint64_t seq);
  void reply(const Session& session, wire::Message message);
  void refuse(Session& session, std::string reason, bool retry);

  store::Store& store_;
  const Policy& policy_;
  const Clock& clock_;
  Metrics& metrics_;
  HistoryReader read_history_;

  std::map<std::uint64_t, Session> sessions_;
  std::map<std::string, Run> runs_;

  // Of the open transaction.
  std::vector<Answer> answers_;
  std::set<std::uint64_t> unacked_;
  std::vector<std::pair<std::promise<Expected<CommandId>>, CommandId>> promises_;
};

}  // namespace muster::collector
