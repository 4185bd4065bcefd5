// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/subcommands.h"

#include <muster/common/file.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <string>

namespace muster::cli {

namespace {

constexpr std::array kSubcommands{
    Subcommand{"demo", "Train, break and recover a small job in two minutes", false, declare_demo},
    Subcommand{
        "run",
        "Start the ranks of a training job and restart them after a failure",
        true,
        declare_run},
    Subcommand{
        "collector", "Store, judge and show the telemetry of the ranks", false, declare_collector},
    Subcommand{
        "status",
        "Show the runs, ranks and events in a collector's database",
        false,
        declare_status},
    Subcommand{"send", "Send a command to a run", false, declare_send},
    Subcommand{"ckpt", "List, show and verify checkpoints", false, declare_ckpt},
    Subcommand{"plan", "Show what a model costs per rank, before any run", false, declare_plan},
    Subcommand{"completion", "Print a completion script for a shell", false, declare_completion},
};

}  // namespace

std::span<const Subcommand> subcommands() {
  return kSubcommands;
}

int fail(std::string_view command, const Status& status) {
  std::error_code gone;
  static_cast<void>(std::filesystem::current_path(gone));
  const std::string what =
      status.message() + (gone ? "; the working folder does not exist any more" : "");
  std::fprintf(
      stderr, "muster %.*s: %s\n", static_cast<int>(command.size()), command.data(), what.c_str());
  return status.code() == StatusCode::kInvalidArgument ? kExitUsage : kExitError;
}

Expected<std::string> read_token(const std::filesystem::path& path) {
  if (path.empty()) {
    return std::string{};
  }
  MUSTER_ASSIGN_OR_RETURN(std::string token, read_file(path, 4096));
  token.erase(std::min(token.find_first_of("\r\n"), token.size()));
  if (token.empty()) {
    return invalid_argument(
        "the first line of " + path.string() + " must be a token, got an empty line");
  }
  return token;
}

}  // namespace muster::cli
