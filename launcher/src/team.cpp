// SPDX-License-Identifier: Apache-2.0
#include "launcher/src/team.h"

#include "launcher/src/format.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <csignal>
#include <limits>
#include <utility>

namespace muster::launcher {

namespace {

// Orphans have no descriptor to wait on.
constexpr auto kLingerLook = std::chrono::milliseconds{20};

int poll_timeout_ms(const std::optional<Deadline>& deadline, const Clock& clock) {
  if (!deadline) {
    return -1;
  }
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline->remaining(clock)).count();
  return static_cast<int>(std::min<std::int64_t>(left, std::numeric_limits<int>::max()));
}

}  // namespace

Team::Team(
    const LauncherOptions& options,
    OutputPump& pump,
    const Clock& clock,
    std::function<void(const RankExit&)> on_first_failure)
    : options_(options),
      pump_(pump),
      clock_(clock),
      on_first_failure_(std::move(on_first_failure)) {}

TeamEnd Team::supervise(int stop_event, const std::function<void(int rank)>& on_exit) {
  while (any_alive()) {
    wait_for_something(stop_event);
    handle_stop(stop_event);
    for (RankProcess& process : processes_) {
      const bool lingered = process.lingers();
      if (const auto exit = process.reap()) {
        on_exit(exit->rank);
        handle_exit(*exit);
      } else if (process.lingers() && !lingered) {
        begin_to_linger(process);
      }
    }
    handle_deadline();
  }
  return end_;
}

bool Team::any_alive() const {
  return std::any_of(
      processes_.begin(), processes_.end(), [](const RankProcess& p) { return p.alive(); });
}

void Team::wait_for_something(int stop_event) {
  std::vector<pollfd> watched{{stop_event, POLLIN, 0}};
  for (const RankProcess& process : processes_) {
    if (process.alive() && !process.lingers()) {
      watched.push_back({process.pidfd(), POLLIN, 0});
    }
  }
  ::poll(watched.data(), watched.size(), poll_timeout_ms(next_deadline(), clock_));
}

std::optional<Deadline> Team::next_deadline() const {
  std::optional<Deadline> next = kill_at_;
  if (std::any_of(processes_.begin(), processes_.end(), [](const RankProcess& process) {
        return process.lingers();
      })) {
    const Deadline look{clock_.now() + kLingerLook};
    next = next && next->at < look.at ? next : look;
  }
  return next;
}

void Team::begin_to_linger(RankProcess& process) {
  const RankExit exit = process.first_exit();
  const ExitKind kind = kind_of(exit);
  if (ended_by_sigterm(exit.wait_status)) {
    process.signal(SIGTERM);  // A shell between launcher and trainer: the trainer still saves.
  } else if (kind != ExitKind::kDone && kind != ExitKind::kPreempted && !end_.stopped) {
    process.signal(SIGKILL);
    return;
  }
  pump_.announce(
      "rank " + std::to_string(exit.rank) + " (pid " + std::to_string(exit.pid) +
      ") has ended; waiting for what it started: " + process.leftovers());
  linger_until_.insert_or_assign(exit.rank, Deadline::after(options_.grace, clock_));
}

void Team::end_what_lingers(const RankProcess& process, std::chrono::nanoseconds grace) {
  const std::string who = process.leftovers();
  if (!who.empty()) {
    pump_.announce(
        "rank " + std::to_string(process.rank()) + " left " + who + ", which did not end within " +
        format_seconds(grace) + " and is killed");
  }
  process.signal(SIGKILL);
}

void Team::handle_stop(int stop_event) {
  eventfd_t requests = 0;
  if (::eventfd_read(stop_event, &requests) != 0) {
    return;
  }
  const bool first = std::exchange(stop_count_, stop_count_ + requests) == 0;
  end_.stopped = true;
  if (stop_count_ >= 2) {
    pump_.announce("asked to stop again: killing the ranks now");
    kill_rest();
  } else if (first && end_.kind == ExitKind::kDone) {
    pump_.announce("asked to stop: the ranks save and end");
    ask_to_end(options_.grace);
  }
}

void Team::handle_exit(const RankExit& exit) {
  const ExitKind kind = kind_of(exit);
  if (kind == ExitKind::kDone) {
    return;
  }
  const bool failure = kind != ExitKind::kPreempted;
  const bool first_failure = end_.kind == ExitKind::kDone || end_.kind == ExitKind::kPreempted;
  const bool decides =
      end_.kind == ExitKind::kDone || (failure && first_failure) || kind == ExitKind::kNeverRestart;
  if (decides) {
    end_.noticed_at = clock_.now();
    end_.kind = kind;
    end_.rank = exit.rank;
    end_.reason = describe(exit);
  }
  if (failure && first_failure) {
    pump_.announce(describe(exit));
    on_first_failure_(exit);
    // Collectives lack a peer now: there is nothing left to save, unless a stop is under way.
    ask_to_end(options_.failure_grace);
  } else if (!failure && !kill_at_) {
    // One rank saved at a step all agreed on; the others are expected to follow.
    kill_at_ = Deadline::after(options_.grace, clock_);
    grace_ = options_.grace;
  }
}

void Team::handle_deadline() {
  for (const RankProcess& process : processes_) {
    const auto until = linger_until_.find(process.rank());
    if (process.lingers() && until != linger_until_.end() && until->second.expired(clock_)) {
      end_what_lingers(process, options_.grace);
      linger_until_.erase(until);
    }
  }
  if (!kill_at_ || !kill_at_->expired(clock_)) {
    return;
  }
  for (const RankProcess& process : processes_) {
    if (process.lingers() && !ended_by_sigterm(process.first_exit().wait_status)) {
      end_what_lingers(process, grace_);
    } else if (process.alive()) {
      pump_.announce(
          "rank " + std::to_string(process.rank()) + " (pid " + std::to_string(process.pid()) +
          ") did not end within " + format_seconds(grace_) + " and is killed");
      if (end_.kind == ExitKind::kDone || end_.kind == ExitKind::kPreempted) {
        end_.kind = ExitKind::kFailed;
        end_.rank = process.rank();
        end_.reason = "rank " + std::to_string(process.rank()) + " did not save and end within " +
                      format_seconds(grace_);
        end_.noticed_at = clock_.now();
      }
    }
  }
  kill_rest();
}

void Team::ask_to_end(std::chrono::nanoseconds grace) {
  for (const RankProcess& process : processes_) {
    process.signal(SIGTERM);
  }
  kill_at_ = Deadline::after(grace, clock_);
  grace_ = grace;
}

void Team::kill_rest() {
  for (const RankProcess& process : processes_) {
    process.signal(SIGKILL);
  }
  kill_at_.reset();
}

}  // namespace muster::launcher
