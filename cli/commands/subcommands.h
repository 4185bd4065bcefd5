// SPDX-License-Identifier: Apache-2.0
// The subcommands of `muster`, one file each.
#pragma once

#include <muster/common/expected.h>

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace muster::cli {

// The arguments after "--" on the command line; only some subcommands accept them.
using Tail = std::vector<std::string>;

// Runs after parsing; returns the exit code.
using Action = std::function<int()>;

struct Subcommand {
  std::string_view name;
  std::string_view summary;
  bool takes_tail;
  // Adds its options to `command`; they live as long as the returned action.
  Action (*declare)(CLI::App& command, const Tail& tail);
};

// All subcommands, in the order of the help text.
[[nodiscard]] std::span<const Subcommand> subcommands();

Action declare_run(CLI::App& command, const Tail& tail);
Action declare_ckpt(CLI::App& command, const Tail& tail);
Action declare_collector(CLI::App& command, const Tail& tail);
Action declare_status(CLI::App& command, const Tail& tail);
Action declare_send(CLI::App& command, const Tail& tail);
Action declare_demo(CLI::App& command, const Tail& tail);
Action declare_plan(CLI::App& command, const Tail& tail);
Action declare_completion(CLI::App& command, const Tail& tail);

inline constexpr int kExitError = 1;
inline constexpr int kExitUsage = 2;

// Prints "muster <command>: <message>" to stderr. Returns kExitUsage for kInvalidArgument, else
// kExitError.
int fail(std::string_view command, const Status& status);

// Returns the first line of a token file, or an empty text if `path` is empty. kInvalidArgument if
// that line is empty.
[[nodiscard]] Expected<std::string> read_token(const std::filesystem::path& path);

}  // namespace muster::cli
