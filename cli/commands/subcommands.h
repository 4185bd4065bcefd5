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

// What stands behind "--" on the command line; only some subcommands take it.
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

// In the order of the help text.
[[nodiscard]] std::span<const Subcommand> subcommands();

Action declare_run(CLI::App& command, const Tail& tail);
Action declare_ckpt(CLI::App& command, const Tail& tail);
Action declare_collector(CLI::App& command, const Tail& tail);
Action declare_status(CLI::App& command, const Tail& tail);
Action declare_send(CLI::App& command, const Tail& tail);
Action declare_demo(CLI::App& command, const Tail& tail);
Action declare_plan(CLI::App& command, const Tail& tail);

inline constexpr int kExitError = 1;
inline constexpr int kExitUsage = 2;

// "muster <command>: <message>" on stderr; kExitUsage for kInvalidArgument, else kExitError.
int fail(std::string_view command, const Status& status);

// The first line of a token file; empty when `path` is. kInvalidArgument for a file without one.
[[nodiscard]] Expected<std::string> read_token(const std::filesystem::path& path);

}  // namespace muster::cli
