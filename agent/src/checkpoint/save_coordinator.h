// SPDX-License-Identifier: Apache-2.0
// Checkpoints of one rank as the step loop uses them: applies the verdict's begin, commit and
// abandon, feeds the prepared and failed lanes, reports the outcome of each checkpoint, and waits
// for the last one at the end of a run.
//
// The training thread owns it. `apply` copies the state, which is the only stall; within a step
// everything else polls.
#pragma once

#include <muster/agent/agent.h>
#include <muster/checkpoint/checkpoint.h>
#include <muster/comm/communicator.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace muster::agent {

// Reason on ranks that do not know the cause; the failing rank reports it.
inline constexpr const char* kFailedElsewhere = "another rank could not write its part";

// Outcome of a checkpoint, once this rank knows it.
struct SaveOutcome {
  std::int64_t sequence{0};
  std::int64_t step{0};
  bool committed{false};  // durable (rank 0), or asked to commit (other ranks)
  bool pinned{false};
  std::string reason;  // of a checkpoint that was not committed
  std::int64_t stall_ns{0};
  std::int64_t snapshot_bytes{0};
};

class SaveCoordinator {
 public:
  using Collect = std::function<checkpoint::RankState()>;
  using Report = std::function<void(const SaveOutcome&)>;

  // Without a checkpoint root every call but `finish` does nothing. `world` must outlive it.
  [[nodiscard]] static Expected<std::unique_ptr<SaveCoordinator>> create(
      const AgentOptions& options, comm::Communicator& world);

  SaveCoordinator(const AgentOptions& options, comm::Communicator& world);

  void fill_lanes(LocalLanes& lanes);

  // `step`: the next step to run. Calls `collect` only when a checkpoint begins.
  void apply(const Verdict& verdict, std::int64_t step, const Collect& collect);

  // Reports every outcome since the last call.
  void report_outcomes(const Report& report);

  // Collective, after the last step: resolves the checkpoint in flight, begins and resolves the one
  // that is still wanted, and waits until the last one is on disk. Every rank returns the same
  // success or failure. kDeadlineExceeded after `limit`.
  [[nodiscard]] Status finish(
      SharedState& state, const Collect& collect, const Report& report, Deadline limit);

 private:
  [[nodiscard]] Status resolve_last(
      SharedState& state, const Collect& collect, const Report& report, Deadline limit);
  [[nodiscard]] Expected<Verdict> resolve_round(SharedState& state, bool expired);
  [[nodiscard]] Status wait(std::chrono::nanoseconds timeout);
  void resolve_commit();
  void close(SaveOutcome& outcome);
  [[nodiscard]] std::string failure() const;

  comm::Communicator& world_;
  const std::int64_t generation_;
  const std::chrono::nanoseconds collective_timeout_;
  std::unique_ptr<checkpoint::Writer> writer_;  // null without a checkpoint root
  SaveOutcome active_;      // begun, not yet resolved by a verdict; sequence 0 if there is none
  SaveOutcome committing_;  // asked to commit, not yet durable
  std::int64_t failed_sequence_{0};
  std::vector<SaveOutcome> outcomes_;
  Status last_result_;  // of the last checkpoint begun; OK without one
};

}  // namespace muster::agent
