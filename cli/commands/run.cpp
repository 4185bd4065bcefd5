// SPDX-License-Identifier: Apache-2.0
// muster run: the launcher on the command line.
#include "cli/commands/subcommands.h"

#include <muster/common/address.h>
#include <muster/common/log.h>
#include <muster/common/random.h>
#include <muster/common/signals.h>
#include <muster/launcher/launcher.h>
#include <muster/launcher/wire_event_sink.h>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <thread>
#include <utility>

namespace muster::cli {

namespace {

using launcher::Launcher;
using launcher::LauncherOptions;

constexpr const char* kExamples =
    "Everything behind '--' is the program of one rank and its arguments.\n"
    "\n"
    "Examples:\n"
    "  muster run --nproc-per-node 4 -- ./train --steps 1000\n"
    "  muster run --nproc-per-node 4 --run-id moby --checkpoint-root /data/ckpt \\\n"
    "      --collector 127.0.0.1:29600 -- python train.py\n"
    "\n"
    "Exit codes: 0 done, 75 preempted and saved, 93 must not be restarted, 1 failed, 2 bad usage.\n"
    "SIGTERM, SIGINT and SIGHUP ask all ranks to save and end, however often they come; a SIGINT\n"
    "after the first signal kills them.";

struct RunFlags {
  LauncherOptions options;
  double restart_window_s{3600};
  double grace_s{30};
  double failure_grace_s{2};
  int node_count{1};
  int node_rank{0};
  bool force{false};
};

// More ranks than these are a slip of the finger.
constexpr int kLocalRanksMax = 4096;
constexpr int kLocalRanksPerCoreMax = 64;

// The handler's way to the launcher of this process.
std::atomic<Launcher*> running_launcher{nullptr};

std::atomic<bool> stop_requested{false};

// A second request kills the ranks, and only Ctrl-C means that.
void handle_stop_signal(int number) {
  Launcher* launcher = running_launcher.load();
  if (launcher != nullptr && (!stop_requested.exchange(true) || number == SIGINT)) {
    launcher->request_stop();
  }
}

void install_stop_handlers() {
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) {
    handle_signal(number, handle_stop_signal);
  }
  ::signal(SIGPIPE, SIG_IGN);
}

Status check_numbers(const RunFlags& flags) {
  if (!(flags.restart_window_s > 0)) {
    return invalid_argument(
        "--restart-window must be more than 0 seconds, got ", flags.restart_window_s);
  }
  if (!(flags.grace_s >= 0) || !(flags.failure_grace_s >= 0)) {
    return invalid_argument(
        "--grace and --failure-grace must be at least 0 seconds, got ",
        flags.grace_s,
        " and ",
        flags.failure_grace_s);
  }
  if (flags.options.process_count < 1) {
    return invalid_argument("--nproc-per-node must be at least 1");
  }
  const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  const int usual = std::min(kLocalRanksMax, kLocalRanksPerCoreMax * cores);
  if (flags.options.process_count > usual && !flags.force) {
    return invalid_argument(
        "--nproc-per-node must be at most ",
        usual,
        " on this host of ",
        cores,
        " cores, got ",
        flags.options.process_count,
        "; --force starts them all the same");
  }
  if (flags.options.restarts_max < 0 || flags.options.no_progress_restarts_max < 0) {
    return invalid_argument("--max-restarts and --no-progress-limit cannot be negative");
  }
  return {};
}

Status check_one_host(const RunFlags& flags) {
  // Nothing in this process writes the environment.
  const char* slurm_nodes = std::getenv("SLURM_NNODES");  // NOLINT(concurrency-mt-unsafe)
  const int slurm_count = slurm_nodes == nullptr ? 1 : std::atoi(slurm_nodes);
  if (flags.node_count != 1 || flags.node_rank != 0) {
    return unimplemented(
        "ranks on several hosts cannot be started yet; use one host and leave --nnodes and "
        "--node-rank out");
  }
  if (slurm_count > 1) {
    return unimplemented(
        "this Slurm job has ",
        slurm_count,
        " nodes, ranks can be started on one host only; ask for one node");
  }
  return {};
}

std::unique_ptr<launcher::EventSink> make_sink(const LauncherOptions& options, std::string token) {
  if (options.collector.empty()) {
    return nullptr;
  }
  return std::make_unique<launcher::WireEventSink>(launcher::WireEventSinkOptions{
      options.collector,
      std::move(token),
      options.run_id,
      random_hex_id(),
      options.process_count,
      options.checkpoint_root});
}

Expected<int> run(RunFlags& flags, const Tail& program) {
  MUSTER_RETURN_IF_ERROR(check_numbers(flags));
  MUSTER_RETURN_IF_ERROR(check_one_host(flags));
  LauncherOptions& options = flags.options;
  options.program = program;
  options.restart_window = nanoseconds_from(flags.restart_window_s);
  options.grace = nanoseconds_from(flags.grace_s);
  options.failure_grace = nanoseconds_from(flags.failure_grace_s);
  options.jitter_seed = std::hash<std::string>{}(random_hex_id());
  if (options.run_id.empty()) {
    options.run_id = "run-" + random_hex_id().substr(0, 8);
  }
  if (!options.collector.empty()) {
    MUSTER_RETURN_IF_ERROR(parse_peer_address(options.collector).status().context("--collector"));
  }
  MUSTER_ASSIGN_OR_RETURN(std::string token, read_token(options.token_file));
  auto sink = make_sink(options, std::move(token));
  MUSTER_ASSIGN_OR_RETURN(const auto launcher, Launcher::create(options, std::move(sink)));
  running_launcher = launcher.get();
  install_stop_handlers();
  auto code = launcher->run();
  running_launcher = nullptr;
  return code;
}

void declare_limits(CLI::App& command, RunFlags& flags) {
  LauncherOptions& options = flags.options;
  command.add_option("--max-restarts", options.restarts_max, "Restarts allowed within the window")
      ->capture_default_str();
  command.add_option("--restart-window", flags.restart_window_s, "Length of the window, seconds")
      ->capture_default_str();
  command
      .add_option(
          "--no-progress-limit",
          options.no_progress_restarts_max,
          "Restarts in a row without a newer committed step, then give up with 93")
      ->capture_default_str();
  command.add_option("--grace", flags.grace_s, "Seconds ranks have to save when asked to stop")
      ->capture_default_str();
  command
      .add_option(
          "--failure-grace",
          flags.failure_grace_s,
          "Seconds the others have to end when a rank died")
      ->capture_default_str();
}

}  // namespace

Action declare_run(CLI::App& command, const Tail& tail) {
  const auto flags = std::make_shared<RunFlags>();
  LauncherOptions& options = flags->options;
  options.checkpoint_root = "checkpoints";
  command.footer(kExamples);
  command.add_option("--nproc-per-node", options.process_count, "Ranks to start on this host")
      ->required();
  command.add_flag("--force", flags->force, "Start more than 4,096 ranks, or 64 per core");
  command.add_option("--run-id", options.run_id, "Name of the run; the same one resumes it");
  command
      .add_option(
          "--checkpoint-root", options.checkpoint_root, "Folder of checkpoints and generations")
      ->capture_default_str();
  command.add_option("--collector", options.collector, "HOST:PORT of `muster collector`")
      ->envname("MUSTER_COLLECTOR");
  command.add_option("--token-file", options.token_file, "File with the collector's token")
      ->envname("MUSTER_TOKEN_FILE");
  command.add_option(
      "--log-dir", options.log_directory, "Output of the ranks [<checkpoint-root>/<run>/logs]");
  command.add_option(
      "--spool",
      options.spool_directory,
      "Where samples wait while the collector is down [<checkpoint-root>/<run>/spool]");
  declare_limits(command, *flags);
  command.add_option("--nnodes", flags->node_count, "Hosts of the job; only 1 so far");
  command.add_option("--node-rank", flags->node_rank, "This host's number; only 0 so far");
  return [flags, &tail]() -> int {
    init_logging("launcher", LogLevel::kWarning);
    if (tail.empty()) {
      return fail("run", invalid_argument("no program to run: put it behind '--'"));
    }
    const auto code = run(*flags, tail);
    return code ? *code : fail("run", code.status());
  };
}

}  // namespace muster::cli
