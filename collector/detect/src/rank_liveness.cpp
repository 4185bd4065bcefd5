// SPDX-License-Identifier: Apache-2.0
#include <muster/common/text.h>
#include <muster/detect/rank_liveness.h>

#include <algorithm>
#include <string>

namespace muster::detect {

namespace {

// Weight of the newest interval in the smoothed one.
constexpr double kSmoothing = 0.2;

double seconds(std::chrono::nanoseconds duration) {
  return std::chrono::duration<double>(duration).count();
}

double smooth(double before, double now) {
  return before <= 0 ? now : before + kSmoothing * (now - before);
}

}  // namespace

void RankLiveness::observe(
    std::int64_t generation, std::int32_t rank, std::int64_t step, MonotonicTime at) {
  if (generation_ && generation < *generation_) {
    return;
  }
  if (!generation_ || generation > *generation_) {
    generation_ = generation;
    ranks_.clear();
    step_ = -1;
    step_at_ = at;
    step_interval_s_ = 0;
    stalled_ = false;
  }
  const auto [found, fresh] = ranks_.try_emplace(rank);
  RankState& state = found->second;
  if (fresh) {
    state.last_received_at = at;
  }
  if (at > state.last_received_at) {
    // A silence that was reported as a loss does not count as a usual interval.
    if (!state.lost) {
      state.interval_s = smooth(state.interval_s, seconds(at - state.last_received_at));
    }
    state.last_received_at = at;
  }
  state.lost = false;
  state.step = std::max(state.step, step);
  if (step > step_) {
    if (step_ >= 0 && !stalled_ && at > step_at_) {
      step_interval_s_ =
          smooth(step_interval_s_, seconds(at - step_at_) / static_cast<double>(step - step_));
    }
    step_ = step;
    step_at_ = at;
    stalled_ = false;
  }
}

void RankLiveness::forget(std::int64_t generation, std::int32_t rank) {
  if (generation_ == generation) {
    ranks_.erase(rank);
  }
}

std::chrono::nanoseconds RankLiveness::allowance(const RankState& state) const {
  return std::clamp(
      nanoseconds_from(options_.silence_intervals * state.interval_s),
      options_.silence_min,
      options_.silence_max);
}

std::vector<Finding> RankLiveness::judge(MonotonicTime now) {
  std::vector<Finding> findings;
  for (auto& [rank, state] : ranks_) {
    const std::chrono::nanoseconds silence = now - state.last_received_at;
    const std::chrono::nanoseconds allowed = allowance(state);
    if (state.lost || silence <= allowed) {
      continue;
    }
    state.lost = true;
    Finding& finding = findings.emplace_back();
    finding.rule = "rank_lost";
    finding.severity = Severity::kError;
    finding.step = state.step;
    finding.subject = "rank " + std::to_string(rank);
    finding.reason = concat(
        "rank ",
        rank,
        " was silent for ",
        fixed(seconds(silence), 1),
        " s (allowed ",
        fixed(seconds(allowed), 1),
        " s), last at step ",
        state.step);
    finding.inputs = {
        {"rank", static_cast<double>(rank)},
        {"silence_seconds", seconds(silence)},
        {"allowed_seconds", seconds(allowed)},
        {"usual_interval_seconds", state.interval_s},
        {"step", static_cast<double>(state.step)}};
  }
  judge_progress(now, findings);
  return findings;
}

void RankLiveness::judge_progress(MonotonicTime now, std::vector<Finding>& findings) {
  const bool heard =
      std::any_of(ranks_.begin(), ranks_.end(), [](const auto& rank) { return !rank.second.lost; });
  const std::chrono::nanoseconds allowed = std::max(
      options_.progress_min, nanoseconds_from(options_.progress_intervals * step_interval_s_));
  const std::chrono::nanoseconds stall = now - step_at_;
  // Before the first step a job loads data and compiles; how long that takes is not known here.
  if (stalled_ || !heard || step_ < 0 || stall <= allowed) {
    return;
  }
  stalled_ = true;
  std::string lagging;
  for (const auto& [rank, state] : ranks_) {
    if (state.step < step_ && lagging.size() < 100) {
      lagging += (lagging.empty() ? "; behind: rank " : ", ") + std::to_string(rank);
    }
  }
  Finding& finding = findings.emplace_back();
  finding.rule = "no_progress";
  finding.severity = Severity::kError;
  finding.step = step_;
  finding.subject = "job";
  finding.reason = concat(
      "no step after step ",
      step_,
      " for ",
      fixed(seconds(stall), 1),
      " s (allowed ",
      fixed(seconds(allowed), 1),
      " s)",
      lagging);
  finding.inputs = {
      {"stall_seconds", seconds(stall)},
      {"allowed_seconds", seconds(allowed)},
      {"usual_step_seconds", step_interval_s_},
      {"step", static_cast<double>(step_)}};
}

}  // namespace muster::detect
