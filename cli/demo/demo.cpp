// SPDX-License-Identifier: Apache-2.0
#include "cli/demo/demo.h"

#include "cli/demo/acceptance.h"
#include "cli/demo/service.h"
#include "cli/demo/status_line.h"
#include "cli/demo/watch.h"

#include <muster/common/file.h>
#include <muster/common/random.h>
#include <muster/common/text.h>
#include <muster/launcher/launcher.h>
#include <muster/launcher/wire_event_sink.h>

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <optional>
#include <thread>

namespace muster::demo {

namespace {

constexpr int kLookMs = 100;
constexpr auto kSettleTimeout = std::chrono::seconds{10};

using Seconds = std::chrono::duration<double>;

// Ctrl-C and SIGTERM as something to wait for, with the wait between two looks.
class Interrupt {
 public:
  Interrupt() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
    fd_ = FileDescriptor{::signalfd(-1, &set, SFD_CLOEXEC)};
  }

  // True if a signal arrived within the timeout; -1 waits without limit.
  [[nodiscard]] bool wait(int timeout_ms) const {
    pollfd entry{.fd = fd_.get(), .events = POLLIN, .revents = 0};
    if (::poll(&entry, 1, timeout_ms) <= 0) {
      return false;
    }
    signalfd_siginfo info{};
    return ::read(fd_.get(), &info, sizeof(info)) == sizeof(info);
  }

 private:
  FileDescriptor fd_;
};

// "moba:16,3,last_full=1" in words; anything else as it is.
std::string describe_attention(const std::string& argument) {
  long block = 0;
  int top_k = 0;
  int last_full = 0;
  const int read =
      std::sscanf(argument.c_str(), "moba:%ld,%d,last_full=%d", &block, &top_k, &last_full);
  if (read < 2) {
    return argument;
  }
  const std::string last = last_full == 1 ? "layer" : std::to_string(last_full) + " layers";
  return argument + " (a byte sees " + std::to_string(top_k) + " blocks of " +
         std::to_string(block) + (read == 3 ? "; full attention in the last " + last + ")" : ")");
}

class Demo {
 public:
  explicit Demo(DemoOptions options)
      : options_(std::move(options)),
        watch_(options_.folder / "muster.db"),
        line_(::isatty(STDOUT_FILENO) == 1) {}

  int run();

 private:
  Status start();
  Status create_launcher();
  void follow();
  void look();
  void kill_when_due(const Glimpse& glimpse);
  void time_the_restart(const Glimpse& glimpse);
  Status gather(DemoFacts& facts);
  [[nodiscard]] int judge(const DemoFacts& facts) const;
  void stay_up();

  const Clock& clock_{Clock::system()};
  Interrupt interrupt_;  // First: threads started later inherit the blocked signals.
  DemoOptions options_;
  std::unique_ptr<CollectorService> collector_;
  std::unique_ptr<launcher::Launcher> launcher_;
  Watch watch_;
  StatusLine line_;
  MonotonicTime started_at_;
  std::optional<MonotonicTime> killed_at_;
  std::optional<MonotonicTime> training_again_at_;
  std::int64_t killed_generation_{0};
  int launcher_exit_code_{-1};
  std::string launcher_reason_;
  bool interrupted_{false};
};

Status Demo::create_launcher() {
  launcher::LauncherOptions job;
  job.program = {
      options_.trainer.string(),
      "--data",
      options_.data.string(),
      "--steps",
      std::to_string(options_.steps),
      "--seed",
      std::to_string(options_.seed),
      "--checkpoint-interval",
      std::to_string(options_.checkpoint_interval),
      "--attention",
      options_.attention,
      "--ep",
      "muster",
      "--qk-clip-tau",
      "100",
      "--inject-nan",
      std::to_string(options_.nan_rank) + ":" + std::to_string(options_.nan_step)};
  job.process_count = options_.ranks;
  job.run_id = kRunId;
  job.checkpoint_root = options_.folder / "checkpoints";
  job.log_directory = options_.folder / "logs";
  job.spool_directory = options_.folder / "spool";
  job.collector = collector_->agent_address();
  job.console_fd = -1;
  auto sink = std::make_unique<launcher::WireEventSink>(launcher::WireEventSinkOptions{
      .collector = job.collector,
      .token = {},
      .run_id = job.run_id,
      .incarnation = random_hex_id(),
      .world_size = job.process_count,
      .checkpoint_root = job.checkpoint_root});
  MUSTER_ASSIGN_OR_RETURN(launcher_, launcher::Launcher::create(std::move(job), std::move(sink)));
  return {};
}

Status Demo::start() {
  MUSTER_RETURN_IF_ERROR(muster::create_directories(options_.folder));
  MUSTER_ASSIGN_OR_RETURN(
      collector_,
      CollectorService::start(
          options_.folder / "muster.db", options_.http, options_.folder / "collector.log"));
  MUSTER_RETURN_IF_ERROR(create_launcher());
  std::printf(
      "muster demo: %d ranks train a mixture-of-experts language model on %s\n"
      "  attention   %s\n"
      "  experts     the same work on every rank; busy ones are copied for the step (--ep muster)\n"
      "  dashboard   %s\n"
      "  logs        %s\n"
      "  planned     NaN gradient on rank %d at step %lld, kill -9 of rank %d at step %lld\n\n",
      options_.ranks,
      options_.data.string().c_str(),
      describe_attention(options_.attention).c_str(),
      collector_->url().c_str(),
      (options_.folder / "logs").string().c_str(),
      options_.nan_rank,
      static_cast<long long>(options_.nan_step),
      options_.kill_rank,
      static_cast<long long>(options_.kill_step));
  std::fflush(stdout);
  return {};
}

void Demo::kill_when_due(const Glimpse& glimpse) {
  if (killed_at_ || glimpse.step < options_.kill_step) {
    return;
  }
  const launcher::LauncherSnapshot now = launcher_->snapshot();
  const auto rank = static_cast<std::size_t>(options_.kill_rank);
  if (!now.running || rank >= now.pids.size() || now.pids[rank] <= 0) {
    return;
  }
  killed_generation_ = glimpse.generation;
  killed_at_ = clock_.now();
  ::kill(now.pids[rank], SIGKILL);
  line_.note(
      "kill -9 of rank " + std::to_string(options_.kill_rank) + " (pid " +
      std::to_string(now.pids[rank]) + ") after step " + std::to_string(glimpse.step));
}

void Demo::time_the_restart(const Glimpse& glimpse) {
  if (!killed_at_ || training_again_at_ || glimpse.generation <= killed_generation_) {
    return;
  }
  training_again_at_ = clock_.now();
  line_.note(concat(
      "training again ",
      fixed(Seconds(*training_again_at_ - *killed_at_).count(), 2),
      " s after the kill, generation ",
      glimpse.generation));
}

void Demo::look() {
  if (const auto glimpse = watch_.look()) {
    line_.show(status_text(*glimpse, options_.steps, options_.ranks));
    kill_when_due(*glimpse);
    time_the_restart(*glimpse);
  }
}

void Demo::follow() {
  std::atomic<bool> ended{false};
  std::thread job([&] {
    const auto code = launcher_->run();
    launcher_exit_code_ = code.value_or(1);
    launcher_reason_ = code ? launcher_->snapshot().reason : code.status().to_string();
    ended = true;
  });
  while (!ended) {
    if (interrupt_.wait(kLookMs)) {
      interrupted_ = true;
      line_.note("stopping: the ranks save and end (press Ctrl-C again to kill them)");
      launcher_->request_stop();
    }
    look();
  }
  job.join();
  const Deadline deadline = Deadline::after(kSettleTimeout);
  while (!interrupted_ && launcher_exit_code_ == 0 && !deadline.expired() &&
         !watch_.has_all_of(options_.steps - 1, options_.ranks)) {
    (void)interrupt_.wait(kLookMs);
  }
  line_.clear();
}

Status Demo::gather(DemoFacts& facts) {
  facts.launcher_exit_code = launcher_exit_code_;
  facts.launcher_reason = launcher_reason_;
  facts.seconds = Seconds(clock_.now() - started_at_).count();
  for (const launcher::RestartRecord& one : launcher_->snapshot().restarts) {
    RestartFact fact;
    fact.reason = one.reason;
    fact.resumed_from = one.resume_from.filename().string();
    const std::size_t digits = fact.resumed_from.find_first_of("0123456789");
    const std::size_t end = fact.resumed_from.find_first_not_of("0123456789", digits);
    if (digits != std::string::npos) {
      const std::string number = fact.resumed_from.substr(digits, end - digits);
      fact.resumed_step = parse<std::int64_t>(number).value_or(0);
    }
    if (one.failed.value() == killed_generation_ && killed_at_ && training_again_at_) {
      fact.seconds = Seconds(*training_again_at_ - *killed_at_).count();
    } else {
      fact.seconds = Seconds(one.first_new_process_at - one.killed_at).count();
    }
    facts.restarts.push_back(std::move(fact));
  }
  return watch_.collect(facts);
}

int Demo::judge(const DemoFacts& facts) const {
  std::fputs(summary_table(options_, facts).c_str(), stdout);
  const auto broken = broken_promises(options_, facts);
  for (const std::string& promise : broken) {
    std::printf("  BROKEN: %s\n", promise.c_str());
  }
  std::printf(
      "%s\n",
      broken.empty()
          ? "\nThe job skipped the NaN on every rank, resumed from its checkpoint and learned."
          : "\nThe demo failed; the logs lie beside the database.");
  return broken.empty() ? 0 : 1;
}

void Demo::stay_up() {
  std::printf(
      "\ncollector and dashboard stay up at %s (Ctrl-C ends them)\n", collector_->url().c_str());
  std::fflush(stdout);
  (void)interrupt_.wait(-1);
}

int Demo::run() {
  started_at_ = clock_.now();
  if (const Status status = start(); !status.ok()) {
    std::fprintf(stderr, "muster demo: %s\n", status.to_string().c_str());
    return 1;
  }
  follow();
  DemoFacts facts;
  if (const Status status = gather(facts); !status.ok()) {
    std::fprintf(
        stderr,
        "muster demo: the job ended with exit code %d (%s), and its record cannot be read: %s\n",
        launcher_exit_code_,
        launcher_reason_.c_str(),
        status.to_string().c_str());
    return 1;
  }
  const int code = judge(facts);
  if (options_.keep && !interrupted_) {
    stay_up();
  }
  collector_->stop();
  return interrupted_ ? 130 : code;
}

}  // namespace

int run_demo(DemoOptions options) {
  if (options.checkpoint_interval == 0) {
    options.checkpoint_interval = std::max<std::int64_t>(1, options.steps / 12);
  }
  if (options.nan_step < 0) {
    options.nan_step = options.steps / 5;
  }
  if (options.kill_step < 0) {
    options.kill_step = options.steps * 11 / 20;
  }
  Demo demo{std::move(options)};
  return demo.run();
}

}  // namespace muster::demo
