// SPDX-License-Identifier: Apache-2.0
#include "launcher/src/environment.h"
#include "launcher/src/format.h"
#include "launcher/src/output_pump.h"
#include "launcher/src/rank_process.h"
#include "launcher/src/restart_policy.h"
#include "launcher/src/team.h"

#include <muster/checkpoint/checkpoint.h>
#include <muster/common/file.h>
#include <muster/common/mutex.h>
#include <muster/common/random.h>
#include <muster/launcher/launcher.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <utility>

namespace muster::launcher {

namespace fs = std::filesystem;

namespace {

// How long to wait for the output of dead ranks, whose pipes another process may hold open.
constexpr auto kDrainTimeout = std::chrono::milliseconds{500};

// Where a rank leaves why it ends with 93, and for whom.
constexpr const char* kReasonName = "RANK_REASON";
constexpr std::size_t kReasonBytesMax = 4096;

// A port that was free a moment ago. The ranks' rendezvous binds it; losing the race shows as a
// failed start and costs one restart.
Expected<int> free_port() {
  const FileDescriptor socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (!socket.valid() || ::bind(socket.get(), generic, size) != 0 ||
      ::getsockname(socket.get(), generic, &size) != 0) {
    return io_error("looking for a free port", errno);
  }
  return ntohs(address.sin_port);
}

Status check_options(const LauncherOptions& options) {
  if (options.program.empty()) {
    return invalid_argument("no program to run: put it behind '--'");
  }
  if (options.process_count < 1) {
    return invalid_argument("the number of processes must be at least 1");
  }
  if (options.checkpoint_root.empty()) {
    return invalid_argument("a checkpoint root is needed: generations are kept there");
  }
  if (options.restarts_max < 0 || options.no_progress_restarts_max < 0) {
    return invalid_argument("limits of restarts cannot be negative");
  }
  return {};
}

class ProcessLauncher final : public Launcher {
 public:
  ProcessLauncher(
      LauncherOptions options,
      std::string program_path,
      FileLock lock,
      FileDescriptor stop_event,
      std::unique_ptr<EventSink> sink,
      const Clock& clock)
      : options_(std::move(options)),
        program_path_(std::move(program_path)),
        run_folder_(options_.checkpoint_root / options_.run_id),
        lock_(std::move(lock)),
        stop_event_(std::move(stop_event)),
        sink_(std::move(sink)),
        clock_(clock),
        pump_(options_.console_fd, clock) {}

  Expected<int> run() override;

  void request_stop() override { ::eventfd_write(stop_event_.get(), 1); }

  [[nodiscard]] LauncherSnapshot snapshot() const override {
    const MutexLock lock{mutex_};
    return snapshot_;
  }

  [[nodiscard]] const LauncherOptions& options() const override { return options_; }

 private:
  struct Ending {
    bool restart{false};
    std::chrono::nanoseconds delay{0};
    int exit_code{0};
    std::string reason;
  };

  Expected<GenerationSetup> prepare_generation();
  Status start_ranks(const GenerationSetup& setup, Team& team);
  Status start_rank(const GenerationSetup& setup, int rank, Team& team);
  Expected<TeamEnd> run_generation();
  Ending judge(const TeamEnd& end, RestartPolicy& policy);
  bool stop_requested_within(std::chrono::nanoseconds delay);
  int finish(int exit_code, const std::string& reason);
  std::int64_t newest_committed_step() const;
  void note_first_process();
  void report(const char* kind, Severity severity, std::string reason, int rank = -1);

  const LauncherOptions options_;
  const std::string program_path_;
  const fs::path run_folder_;
  FileLock lock_;
  FileDescriptor stop_event_;
  std::unique_ptr<EventSink> sink_;
  const Clock& clock_;
  OutputPump pump_;
  Generation generation_;

  mutable Mutex mutex_;
  LauncherSnapshot snapshot_ MUSTER_GUARDED_BY(mutex_);
};

Expected<int> ProcessLauncher::run() {
  // Processes that outlive the first one of their rank become children of this process.
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
    return io_error("becoming the parent of what ranks leave", errno);
  }
  RestartPolicy policy{options_, newest_committed_step()};
  while (true) {
    const auto end = run_generation();
    if (!end) {
      finish(kExitFailed, end.status().to_string());
      return end.status();
    }
    const Ending ending = judge(*end, policy);
    if (!ending.restart) {
      return finish(ending.exit_code, ending.reason);
    }
    if (ending.delay.count() > 0) {
      pump_.announce("next start in " + format_seconds(ending.delay));
    }
    if (stop_requested_within(ending.delay)) {
      return finish(kExitPreempted, "asked to stop between two generations");
    }
  }
}

// Durable number first, then the checkpoint all ranks will load.
Expected<GenerationSetup> ProcessLauncher::prepare_generation() {
  GenerationSetup setup;
  MUSTER_ASSIGN_OR_RETURN(
      setup.generation, checkpoint::allocate_generation(options_.checkpoint_root, options_.run_id));
  MUSTER_ASSIGN_OR_RETURN(
      setup.run_uid, checkpoint::run_uid(options_.checkpoint_root, options_.run_id));
  std::vector<std::string> rejected;
  const auto newest =
      checkpoint::newest_verified(options_.checkpoint_root, options_.run_id, &rejected);
  for (const std::string& reason : rejected) {
    pump_.announce("not resuming from a damaged checkpoint: " + reason);
    report(event_kind::kFinding, Severity::kError, "damaged checkpoint: " + reason);
  }
  if (newest) {
    setup.resume_from = fs::absolute(newest->path);
  } else if (newest.status().code() != StatusCode::kNotFound) {
    return newest.status();
  }
  MUSTER_ASSIGN_OR_RETURN(setup.master_port, free_port());
  std::error_code ignored;
  fs::remove(run_folder_ / kReasonName, ignored);  // Of an earlier generation.
  return setup;
}

Status ProcessLauncher::start_ranks(const GenerationSetup& setup, Team& team) {
  {
    const MutexLock lock{mutex_};
    snapshot_.generation = setup.generation;
    snapshot_.resume_from = setup.resume_from;
    snapshot_.pids.assign(static_cast<std::size_t>(options_.process_count), 0);
    snapshot_.running = true;
  }
  for (int rank = 0; rank < options_.process_count; ++rank) {
    if (stop_requested_within({})) {
      return aborted("asked to stop while ranks started");
    }
    MUSTER_RETURN_IF_ERROR(start_rank(setup, rank, team));
  }
  std::string pids = "ranks 0.." + std::to_string(options_.process_count - 1) + " run as pids";
  for (const pid_t pid : snapshot().pids) {
    pids += " " + std::to_string(pid);
  }
  pump_.announce(pids);
  return {};
}

Status ProcessLauncher::start_rank(const GenerationSetup& setup, int rank, Team& team) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    return io_error("starting rank " + std::to_string(rank), errno);
  }
  FileDescriptor read_end{ends[0]};
  const FileDescriptor write_end{ends[1]};
  const auto inherited = inherited_environment();
  const SpawnRequest request{
      rank,
      program_path_,
      options_.program,
      rank_environment(options_, setup, rank, random_hex_id(), inherited)};
  MUSTER_ASSIGN_OR_RETURN(RankProcess process, RankProcess::start(request, write_end.get()));
  {
    const MutexLock lock{mutex_};
    snapshot_.pids[static_cast<std::size_t>(rank)] = process.pid();
  }
  note_first_process();
  team.add(std::move(process));
  const fs::path log = options_.log_directory /
                       ("gen-" + std::to_string(setup.generation.value())) /
                       ("rank-" + std::to_string(rank) + ".log");
  return pump_.add(std::to_string(rank), std::move(read_end), log);
}

Expected<TeamEnd> ProcessLauncher::run_generation() {
  MUSTER_ASSIGN_OR_RETURN(const GenerationSetup setup, prepare_generation());
  const bool first = generation_.value() == 0;
  generation_ = setup.generation;
  const std::string from = setup.resume_from.empty()
                               ? "from the start"
                               : "from " + setup.resume_from.filename().string();
  const std::string what = "generation " + std::to_string(generation_.value()) + ": " +
                           std::to_string(options_.process_count) + " ranks " + from;
  pump_.announce(what);
  if (first) {
    report(event_kind::kRunStarted, Severity::kInfo, what);
  }
  Team team{options_, pump_, clock_, [this](const RankExit& exit) {
              report(event_kind::kRankLost, Severity::kError, describe(exit), exit.rank);
            }};
  // On an error the team's destructor kills what has started. No step can have been made before
  // all ranks have started: there is nothing to save.
  const Status started = start_ranks(setup, team);
  if (started.code() == StatusCode::kAborted) {
    TeamEnd end;
    end.kind = ExitKind::kPreempted;
    end.stopped = true;
    end.reason = started.message();
    return end;
  }
  MUSTER_RETURN_IF_ERROR(started);
  const TeamEnd end = team.supervise(stop_event_.get(), [this](int rank) {
    const MutexLock lock{mutex_};
    snapshot_.pids[static_cast<std::size_t>(rank)] = 0;
  });
  pump_.drain(Deadline::after(kDrainTimeout, clock_));
  const MutexLock lock{mutex_};
  snapshot_.running = false;
  return end;
}

ProcessLauncher::Ending ProcessLauncher::judge(const TeamEnd& end, RestartPolicy& policy) {
  switch (end.kind) {
    case ExitKind::kDone:
      return {false, {}, kExitDone, "all ranks are done"};
    case ExitKind::kPreempted:
      return {false, {}, kExitPreempted, "preempted: " + end.reason};
    case ExitKind::kNeverRestart: {
      const std::string why =
          muster::read_file(run_folder_ / kReasonName, kReasonBytesMax).value_or("");
      return {false, {}, kExitNeverRestart, end.reason + (why.empty() ? "" : ": ") + why};
    }
    case ExitKind::kRollback:
    case ExitKind::kFailed:
      break;
  }
  if (end.stopped) {
    return {false, {}, kExitFailed, "stopped before all ranks had saved: " + end.reason};
  }
  const RestartDecision decision = policy.decide(clock_.now(), newest_committed_step());
  if (!decision.restart) {
    return {false, {}, decision.exit_code, decision.reason + "; last: " + end.reason};
  }
  report(event_kind::kRestart, Severity::kWarning, "restarting: " + end.reason, end.rank);
  const MutexLock lock{mutex_};
  snapshot_.restarts.push_back(
      {generation_, Generation{0}, end.rank, end.reason, end.noticed_at, {}, {}});
  return {true, decision.delay, 0, {}};
}

bool ProcessLauncher::stop_requested_within(std::chrono::nanoseconds delay) {
  pollfd stop{stop_event_.get(), POLLIN, 0};
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(delay).count();
  return ::poll(&stop, 1, static_cast<int>(ms)) == 1;
}

int ProcessLauncher::finish(int exit_code, const std::string& reason) {
  const std::string line = "ended with code " + std::to_string(exit_code) + ": " + reason;
  pump_.announce(line);
  report(
      event_kind::kRunEnded, exit_code == kExitDone ? Severity::kInfo : Severity::kWarning, line);
  // Batch systems keep one number of many processes; the sentence stays in a file.
  const Status written = write_file_durably(run_folder_ / "EXIT_REASON", line + "\n");
  if (!written.ok()) {
    pump_.announce("the reason could not be written: " + written.to_string());
  }
  const MutexLock lock{mutex_};
  snapshot_.running = false;
  snapshot_.exit_code = exit_code;
  snapshot_.reason = reason;
  return exit_code;
}

std::int64_t ProcessLauncher::newest_committed_step() const {
  const auto all = checkpoint::list(options_.checkpoint_root, options_.run_id);
  if (!all) {
    return -1;
  }
  for (const checkpoint::CheckpointInfo& info : *all) {
    if (info.validity.ok()) {
      return info.step.value();
    }
  }
  return -1;
}

void ProcessLauncher::note_first_process() {
  const MutexLock lock{mutex_};
  if (!snapshot_.restarts.empty() && snapshot_.restarts.back().next.value() == 0) {
    RestartRecord& record = snapshot_.restarts.back();
    record.next = snapshot_.generation;
    record.first_new_process_at = clock_.now();
    record.resume_from = snapshot_.resume_from;
  }
}

void ProcessLauncher::report(const char* kind, Severity severity, std::string reason, int rank) {
  if (!sink_) {
    return;
  }
  Event event;
  event.kind = kind;
  event.severity = severity;
  event.wall_unix_ns = unix_ns(clock_.wall_now());
  event.reason = std::move(reason);
  event.inputs["process_count"] = options_.process_count;
  if (rank >= 0) {
    event.inputs["rank"] = rank;
  }
  event.labels["source"] = "launcher";
  sink_->report(generation_, std::move(event));
}

}  // namespace

Expected<std::unique_ptr<Launcher>> Launcher::create(
    LauncherOptions options, std::unique_ptr<EventSink> sink, const Clock& clock) {
  MUSTER_RETURN_IF_ERROR(check_options(options));
  MUSTER_ASSIGN_OR_RETURN(std::string program_path, find_program(options.program.front()));
  MUSTER_RETURN_IF_ERROR(
      checkpoint::current_generation(options.checkpoint_root, options.run_id).status());
  // Ranks may change their working directory, so they get absolute paths.
  options.checkpoint_root = fs::absolute(options.checkpoint_root);
  const fs::path run_folder = options.checkpoint_root / options.run_id;
  options.log_directory =
      fs::absolute(options.log_directory.empty() ? run_folder / "logs" : options.log_directory);
  options.spool_directory = fs::absolute(
      options.spool_directory.empty() ? run_folder / "spool" : options.spool_directory);
  for (const fs::path& folder : {run_folder, options.log_directory, options.spool_directory}) {
    MUSTER_RETURN_IF_ERROR(muster::create_directories(folder));
  }
  auto lock = FileLock::acquire(
      run_folder / "LAUNCHER.lock", "muster run, pid " + std::to_string(::getpid()));
  if (!lock) {
    return lock.status().context("run '" + options.run_id + "' has a launcher already");
  }
  FileDescriptor stop_event{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  if (!stop_event.valid()) {
    return io_error("eventfd", errno);
  }
  return std::unique_ptr<Launcher>{std::make_unique<ProcessLauncher>(
      std::move(options),
      std::move(program_path),
      std::move(lock).value(),
      std::move(stop_event),
      std::move(sink),
      clock)};
}

}  // namespace muster::launcher
