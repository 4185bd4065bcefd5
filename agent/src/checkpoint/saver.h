// One rank's checkpoint writer as the step loop uses it: carries out the verdict's begin, commit
// and abandon, feeds the prepared and failed lanes, and tells what became of each checkpoint.
//
// The training thread owns it. `apply` copies the state (the only stall); everything else
// polls.
#pragma once

#include <muster/agent/agent.h>
#include <muster/checkpoint/checkpoint.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace muster::agent {

// The reason on ranks that do not know more; the failing rank tells the cause.
inline constexpr const char* kFailedElsewhere = "another rank could not write its part";

// What became of a checkpoint, once it is known on this rank.
struct SaveOutcome {
  std::int64_t sequence{0};
  std::int64_t step{0};
  bool committed{false};  // On rank 0: durable. On others: they were told to commit.
  bool pinned{false};
  std::string reason;  // Why not committed.
  std::int64_t stall_ns{0};
  std::int64_t snapshot_bytes{0};
};

class Saver {
 public:
  // Without a checkpoint root every call does nothing.
  [[nodiscard]] static Expected<std::unique_ptr<Saver>> create(const AgentOptions& options);

  void fill_lanes(LocalLanes& lanes);

  // `step`: the next step to run. `state` is called only when a checkpoint begins.
  void apply(
      const Verdict& verdict,
      std::int64_t step,
      const std::function<checkpoint::RankState()>& state);

  // One outcome since the last call; call until it gives nothing.
  [[nodiscard]] std::optional<SaveOutcome> next_outcome();

  // Blocks until the writer is idle. Not in a step.
  [[nodiscard]] Status wait(std::chrono::nanoseconds timeout);

  // Whether the last checkpoint begun is on disk; without one, success.
  [[nodiscard]] Status last_result() const;

 private:
  void resolve_commit();
  [[nodiscard]] std::string failure() const;

  std::unique_ptr<checkpoint::Writer> writer_;
  SaveOutcome active_;      // Begun, not yet resolved by the verdict; none if sequence is 0.
  SaveOutcome committing_;  // Told to commit, not yet durable.
  std::int64_t failed_sequence_{0};
  std::vector<SaveOutcome> outcomes_;
  Status last_result_;
};

}  // namespace muster::agent
