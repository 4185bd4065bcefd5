// SPDX-License-Identifier: Apache-2.0
// Detection of lost ranks and of jobs that have stopped moving.
//
// Sans-I/O: time comes in as an argument (receiver-side, monotonic), findings go out as values. Not
// thread-safe; the owner serialises calls.
//
// A rank is lost when its connection ended without a Goodbye, it has not come back for
// `lost_after`, its generation is the newest of the run, the launcher had not told it to go, and
// another peer of the run has been heard since: when everybody falls silent at once it is the
// collector's network.
#pragma once

#include <muster/common/clock.h>
#include <muster/common/ids.h>
#include <muster/detect/detector.h>
#include <muster/detect/rank_liveness.h>
#include <muster/wire/messages.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace muster::collector {

struct LivenessFinding {
  std::string run_id;
  Generation generation;
  detect::Finding finding;  // rule "rank_lost", subject "rank <r>"; rule "no_progress"
};

class Liveness {
 public:
  explicit Liveness(std::chrono::nanoseconds lost_after) : lost_after_(lost_after) {}

  // Agents and launchers; operators are not part of a run.
  void opened(const wire::Hello& hello, MonotonicTime now);

  // Anything received; `step` is the newest finished one, -1 when the message has none.
  void heard(const wire::Hello& hello, std::int64_t step, MonotonicTime now);
  void closed(const wire::Hello& hello, bool said_goodbye, MonotonicTime now);

  // Call when the launcher reports the end of a generation (it ended, or will be restarted): ranks
  // that are still connected may leave without a goodbye. Ranks lost before stay lost.
  void dismissed(const std::string& run_id);

  // Each lost rank once per generation; each stall once.
  [[nodiscard]] std::vector<LivenessFinding> judge(MonotonicTime now);

 private:
  struct RankState {
    bool connected{false};
    bool may_leave{false};  // It sent a goodbye, or was dismissed.
    bool reported{false};
    std::int64_t step{-1};
    MonotonicTime closed_at{};
  };

  struct Run {
    Generation generation;
    MonotonicTime last_received_at{};
    std::map<Rank, RankState> ranks;
    detect::RankLiveness progress{detect::LivenessOptions{}};
  };

  [[nodiscard]] Run* newest_run_of(const wire::Hello& hello);
  void forget_oldest();

  std::chrono::nanoseconds lost_after_;
  std::map<std::string, Run> runs_;
};

}  // namespace muster::collector
