// SPDX-License-Identifier: Apache-2.0
// muster: one executable, one subcommand per job. See `muster --help`.
#include "cli/commands/subcommands.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace muster::cli {

namespace {

// Arguments of the started program are cut off before parsing.
Tail split_tail(std::vector<std::string>& arguments) {
  const auto mark = std::find(arguments.begin(), arguments.end(), "--");
  Tail tail;
  if (mark != arguments.end()) {
    tail.assign(mark + 1, arguments.end());
    arguments.erase(mark, arguments.end());
  }
  return tail;
}

// "run", "ckpt list": the innermost subcommand that was named.
std::string parsed_command(const CLI::App& app) {
  std::string name;
  const CLI::App* level = &app;
  while (!level->get_subcommands().empty()) {
    level = level->get_subcommands().front();
    name += " " + level->get_name();
  }
  return name;
}

// An unknown argument is a likelier mistake than a missing one, so it is named first.
std::string usage_problem(const CLI::App& app, const CLI::ParseError& error, bool has_tail) {
  const std::vector<std::string> unknown = app.remaining(true);
  if (!unknown.empty()) {
    if (app.got_subcommand("run") && !has_tail && !unknown.front().starts_with('-')) {
      return "unknown argument '" + unknown.front() +
             "'; the program of a rank stands behind '--': "
             "muster run … -- " +
             unknown.front();
    }
    const bool subcommand = app.get_subcommands().empty() && !unknown.front().starts_with('-');
    return (subcommand ? "no subcommand '" : "unknown argument '") + unknown.front() + "'";
  }
  std::string text = error.what();
  text.erase(std::min(text.find('\n'), text.size()));
  return text;
}

int refuse(const CLI::App& app, const std::string& problem) {
  const std::string command = parsed_command(app);
  std::fprintf(
      stderr,
      "muster%s: %s; 'muster%s --help' shows what it takes\n",
      command.c_str(),
      problem.c_str(),
      command.c_str());
  return kExitUsage;
}

int dispatch(std::vector<std::string> arguments) {
  const Tail tail = split_tail(arguments);
  CLI::App app{"Keeps large training runs alive and honest.", "muster"};
  app.set_version_flag("--version", std::string{"muster "} + MUSTER_VERSION);
  app.require_subcommand(1);
  std::vector<std::pair<const Subcommand*, Action>> actions;
  for (const Subcommand& subcommand : subcommands()) {
    CLI::App* command =
        app.add_subcommand(std::string{subcommand.name}, std::string{subcommand.summary});
    actions.emplace_back(&subcommand, subcommand.declare(*command, tail));
  }
  try {
    std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back.
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    return error.get_exit_code() == 0 ? app.exit(error)
                                      : refuse(app, usage_problem(app, error, !tail.empty()));
  }
  for (const auto& [subcommand, action] : actions) {
    if (!app.got_subcommand(std::string{subcommand->name})) {
      continue;
    }
    if (!tail.empty() && !subcommand->takes_tail) {
      return refuse(app, "it takes no program behind '--'");
    }
    return action();
  }
  return refuse(app, "no subcommand");
}

}  // namespace

}  // namespace muster::cli

int main(int argc, char** argv) {
  try {
    return muster::cli::dispatch({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::error_code gone;
    static_cast<void>(std::filesystem::current_path(gone));
    std::fprintf(
        stderr,
        "muster: %s\n",
        gone ? "the working folder does not exist any more; change to another one" : error.what());
    return muster::cli::kExitError;
  }
}
