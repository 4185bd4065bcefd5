// SPDX-License-Identifier: Apache-2.0
#include "collector/src/liveness.h"

#include <muster/common/text.h>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace muster::collector {

namespace {

constexpr std::size_t kRunsMax = 1024;

bool is_agent(const wire::Hello& hello) {
  return hello.role == wire::PeerRole::kAgent;
}

detect::Finding rank_lost(
    Rank rank, Generation generation, std::int64_t step, std::chrono::nanoseconds silence) {
  const double seconds = std::chrono::duration<double>(silence).count();
  const std::string name = "rank " + std::to_string(rank.value());
  detect::Finding finding;
  finding.rule = "rank_lost";
  finding.severity = Severity::kError;
  finding.step = step;
  finding.subject = name;
  finding.reason = concat(
      name,
      " of generation ",
      generation.value(),
      " lost its connection without a goodbye and has not come back while the run continues; its "
      "last step was ",
      step);
  finding.inputs = {
      {"generation", static_cast<double>(generation.value())},
      {"last_step", static_cast<double>(step)},
      {"rank", static_cast<double>(rank.value())},
      {"silent_seconds", seconds}};
  return finding;
}

}  // namespace

Liveness::Run* Liveness::newest_run_of(const wire::Hello& hello) {
  const auto found = runs_.find(hello.identity.run_id);
  if (found == runs_.end() || hello.role == wire::PeerRole::kOperator) {
    return nullptr;
  }
  const bool older = is_agent(hello) && hello.identity.generation < found->second.generation;
  return older ? nullptr : &found->second;
}

void Liveness::opened(const wire::Hello& hello, MonotonicTime now) {
  if (hello.role == wire::PeerRole::kOperator) {
    return;
  }
  if (!runs_.contains(hello.identity.run_id) && runs_.size() >= kRunsMax) {
    forget_oldest();
  }
  Run& run = runs_[hello.identity.run_id];
  run.last_received_at = std::max(run.last_received_at, now);
  if (!is_agent(hello) || hello.identity.generation < run.generation) {
    return;
  }
  if (hello.identity.generation > run.generation) {
    run.generation = hello.identity.generation;
    run.ranks.clear();
  }
  RankState& rank = run.ranks[hello.identity.rank];
  rank = {.connected = true, .reported = rank.reported, .step = rank.step};
}

void Liveness::heard(const wire::Hello& hello, std::int64_t step, MonotonicTime now) {
  Run* run = newest_run_of(hello);
  if (run == nullptr) {
    return;
  }
  run->last_received_at = std::max(run->last_received_at, now);
  if (is_agent(hello)) {
    RankState& rank = run->ranks[hello.identity.rank];
    rank.step = std::max(rank.step, step);
    run->progress.observe(
        hello.identity.generation.value(), hello.identity.rank.value(), step, now);
  }
}

void Liveness::closed(const wire::Hello& hello, bool said_goodbye, MonotonicTime now) {
  Run* run = newest_run_of(hello);
  if (run == nullptr || !is_agent(hello)) {
    return;
  }
  RankState& rank = run->ranks[hello.identity.rank];
  rank.connected = false;
  rank.may_leave = rank.may_leave || said_goodbye;
  rank.closed_at = now;
  run->progress.forget(hello.identity.generation.value(), hello.identity.rank.value());
}

void Liveness::dismissed(const std::string& run_id) {
  const auto found = runs_.find(run_id);
  if (found == runs_.end()) {
    return;
  }
  for (auto& [number, rank] : found->second.ranks) {
    rank.may_leave = rank.may_leave || rank.connected;
  }
}

std::vector<LivenessFinding> Liveness::judge(MonotonicTime now) {
  std::vector<LivenessFinding> findings;
  for (auto& [run_id, run] : runs_) {
    for (auto& [number, rank] : run.ranks) {
      const bool gone = !rank.connected && !rank.may_leave && !rank.reported;
      if (gone && now - rank.closed_at >= lost_after_ && run.last_received_at > rank.closed_at) {
        rank.reported = true;
        findings.push_back(
            {run_id,
             run.generation,
             rank_lost(number, run.generation, rank.step, now - rank.closed_at)});
      }
    }
    for (detect::Finding& finding : run.progress.judge(now)) {
      // Lost ranks are judged above, by their connections.
      if (finding.rule != "rank_lost") {
        findings.push_back({run_id, run.generation, std::move(finding)});
      }
    }
  }
  return findings;
}

void Liveness::forget_oldest() {
  const auto oldest =
      std::min_element(runs_.begin(), runs_.end(), [](const auto& a, const auto& b) {
        return a.second.last_received_at < b.second.last_received_at;
      });
  runs_.erase(oldest);
}

}  // namespace muster::collector
