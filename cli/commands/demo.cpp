// SPDX-License-Identifier: Apache-2.0
// muster demo: the whole loop in two minutes, faults included.
#include "cli/demo/demo.h"

#include "cli/commands/subcommands.h"

#include <muster/common/clock.h>

#include <CLI/CLI.hpp>

#include <chrono>
#include <ctime>
#include <filesystem>
#include <memory>
#include <system_error>

namespace muster::cli {

namespace {

namespace fs = std::filesystem;

// moe_lm is in the folder of this program, in a build as in an installation.
fs::path trainer_beside_us() {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  return error ? fs::path{"moe_lm"} : self.parent_path() / "moe_lm";
}

fs::path fresh_folder() {
  const std::time_t now = std::chrono::system_clock::to_time_t(Clock::system().wall_now());
  std::tm parts{};
  ::localtime_r(&now, &parts);
  char name[32];
  std::strftime(name, sizeof(name), "demo-%Y%m%d-%H%M%S", &parts);
  return fs::path{"muster-runs"} / name;
}

Status check(const demo::DemoOptions& options) {
  if (!fs::exists(options.data)) {
    return not_found(
        options.data.string() +
        ": no such text; run 'make demo', which fetches Moby-Dick, or give --data FILE");
  }
  if (!fs::exists(options.trainer)) {
    return not_found(
        options.trainer.string() + ": no such program; build the target moe_lm or give --trainer");
  }
  if (fs::exists(options.folder / "muster.db")) {
    return already_exists(
        options.folder.string() + " holds a demo already; give another --folder or remove it");
  }
  if (options.steps < 20) {
    return invalid_argument("--steps must be at least 20, so that both faults fit in");
  }
  return {};
}

}  // namespace

Action declare_demo(CLI::App& command, const Tail& /*tail*/) {
  const auto options = std::make_shared<demo::DemoOptions>();
  options->data = MUSTER_DEMO_DATA;
  options->trainer = trainer_beside_us();
  options->folder = fresh_folder();
  command.footer(
      "Starts a collector with its dashboard on loopback, trains a small mixture-of-experts "
      "language\n"
      "model with block attention on four ranks, makes one rank's gradient NaN, kills another with "
      "-9,\n"
      "and prints what happened. Exit code 0 only if the loss fell below --loss-bound, every rank "
      "skipped\n"
      "the NaN step, and the killed job resumed from a committed checkpoint.\n\n"
      "Examples:\n"
      "  muster demo\n"
      "  muster demo --keep --http 127.0.0.1:29680\n"
      "  muster demo --data my.txt --steps 300");
  command.add_option("--data", options->data, "Text to train on: a file, or a folder of *.txt")
      ->capture_default_str();
  command.add_flag("--keep", options->keep, "Leave collector and dashboard up until Ctrl-C");
  command.add_option("--steps", options->steps, "Optimizer steps")->capture_default_str();
  command.add_option("--seed", options->seed, "Of initial weights and data order")
      ->capture_default_str();
  command.add_option("--attention", options->attention, "Of the trainer; see moe_lm --help")
      ->capture_default_str();
  command.add_option("--http", options->http, "HOST:PORT of the dashboard; port 0: any free one")
      ->capture_default_str();
  command.add_option("--folder", options->folder, "Database, checkpoints and logs")
      ->capture_default_str();
  command.add_option("--loss-bound", options->loss_bound, "Nats per byte the loss must fall below")
      ->capture_default_str();
  command.add_option("--trainer", options->trainer, "The moe_lm program")->capture_default_str();
  return [options]() -> int {
    if (const Status status = check(*options); !status.ok()) {
      return fail("demo", status);
    }
    return demo::run_demo(*options);
  };
}

}  // namespace muster::cli
