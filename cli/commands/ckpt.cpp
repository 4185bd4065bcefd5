// SPDX-License-Identifier: Apache-2.0
// muster ckpt list | show | verify.
#include "cli/commands/subcommands.h"
#include "cli/text/table.h"
#include "cli/text/units.h"

#include <muster/checkpoint/checkpoint.h>
#include <muster/common/clock.h>
#include <muster/common/text.h>

#include <CLI/CLI.hpp>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <utility>

namespace muster::cli {

namespace fs = std::filesystem;

namespace {

using checkpoint::CheckpointInfo;

constexpr std::size_t kValueBytesShown = 60;

struct Run {
  std::string name;
  std::vector<CheckpointInfo> checkpoints;  // newest first
  Status readable;
};

// Removes a trailing slash, so that the last part is the folder's name.
fs::path clean(const fs::path& folder) {
  const fs::path whole = fs::absolute(folder).lexically_normal();
  return whole.has_filename() ? whole : whole.parent_path();
}

bool is_checkpoint(const fs::path& folder) {
  std::error_code ignored;
  return folder.filename().string().starts_with("step-") ||
         fs::exists(folder / "MANIFEST.json", ignored);
}

// Returns the checkpoints of a run folder, newest first, or `folder` itself if it is one.
Expected<std::vector<CheckpointInfo>> find(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    return not_found(folder.string() + " is not a folder");
  }
  if (is_checkpoint(folder)) {
    CheckpointInfo info;
    info.path = folder;
    const auto details = checkpoint::describe(folder);
    if (details) {
      info = details->info;
    }
    info.validity = details.status();
    return std::vector{info};
  }
  MUSTER_ASSIGN_OR_RETURN(
      auto all, checkpoint::list(folder.parent_path(), folder.filename().string()));
  if (all.empty()) {
    return not_found(
        folder.string() + " has no checkpoints; give a run folder (<root>/<run>) or a checkpoint");
  }
  return all;
}

// The runs of a checkpoint root: one folder each, with checkpoints or at least a generation.
Expected<std::vector<Run>> find_runs(const fs::path& root) {
  std::vector<Run> runs;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator{root, error}) {
    std::error_code ignored;
    if (!entry.is_directory(ignored) || is_checkpoint(entry.path())) {
      continue;
    }
    const std::string name = entry.path().filename().string();
    auto found = checkpoint::list(root, name);
    if (found.status().code() == StatusCode::kInvalidArgument) {
      continue;  // The name cannot be a run's.
    }
    if (!found) {
      runs.push_back({name, {}, found.status()});
    } else if (!found->empty() || fs::exists(entry.path() / "GENERATION", ignored)) {
      runs.push_back({name, *std::move(found), {}});
    }
  }
  if (error) {
    return io_error(root.string(), error.value());
  }
  std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.name < b.name; });
  return runs;
}

std::string state_of(const CheckpointInfo& info) {
  return info.validity.ok() ? "complete" : "DAMAGED: " + info.validity.message();
}

// One line per run with its newest checkpoint.
int list_runs(const std::vector<Run>& runs) {
  const std::int64_t now = unix_ns(SystemClock{}.wall_now());
  Table table{
      {{"RUN"},
       {"CHECKPOINTS", Align::kRight},
       {"NEWEST STEP", Align::kRight},
       {"GENERATION", Align::kRight},
       {"RANKS", Align::kRight},
       {"SIZE", Align::kRight},
       {"AGE", Align::kRight},
       {"STATE"}}};
  bool damaged = false;
  for (const Run& run : runs) {
    if (run.checkpoints.empty()) {
      const std::string count = run.readable.ok() ? "0" : "-";
      const std::string state =
          run.readable.ok() ? "no checkpoint yet" : "UNREADABLE: " + run.readable.message();
      table.add({run.name, count, "-", "-", "-", "-", "-", state});
      damaged = damaged || !run.readable.ok();
      continue;
    }
    const CheckpointInfo& newest = run.checkpoints.front();
    const auto bad = std::count_if(
        run.checkpoints.begin() + 1, run.checkpoints.end(), [](const CheckpointInfo& one) {
          return !one.validity.ok();
        });
    damaged = damaged || !newest.validity.ok() || bad > 0;
    table.add(
        {run.name,
         std::to_string(run.checkpoints.size()),
         std::to_string(newest.step.value()),
         std::to_string(newest.generation.value()),
         std::to_string(newest.world_size),
         format_bytes(newest.bytes),
         format_age_of(newest.committed_unix_ns, now),
         bad == 0 ? state_of(newest) : concat(state_of(newest), "; ", bad, " older DAMAGED")});
  }
  std::fputs(table.to_string().c_str(), stdout);
  return damaged ? kExitError : 0;
}

Expected<int> list(const fs::path& folder) {
  auto found = find(folder);
  // A root may have any name, also one that a run cannot.
  std::error_code ignored;
  const StatusCode code = found.status().code();
  if ((code == StatusCode::kNotFound || code == StatusCode::kInvalidArgument) &&
      fs::is_directory(folder, ignored)) {
    MUSTER_ASSIGN_OR_RETURN(const auto runs, find_runs(folder));
    if (!runs.empty()) {
      return list_runs(runs);
    }
  }
  MUSTER_ASSIGN_OR_RETURN(const auto all, std::move(found));
  const std::int64_t now = unix_ns(SystemClock{}.wall_now());
  Table table{
      {{"STEP", Align::kRight},
       {"GENERATION", Align::kRight},
       {"RANKS", Align::kRight},
       {"SIZE", Align::kRight},
       {"AGE", Align::kRight},
       {"PINNED"},
       {"STATE"}}};
  bool damaged = false;
  for (const CheckpointInfo& info : all) {
    damaged = damaged || !info.validity.ok();
    table.add(
        {std::to_string(info.step.value()),
         std::to_string(info.generation.value()),
         std::to_string(info.world_size),
         format_bytes(info.bytes),
         format_age_of(info.committed_unix_ns, now),
         info.pinned ? "yes" : "",
         state_of(info)});
  }
  std::fputs(table.to_string().c_str(), stdout);
  return damaged ? kExitError : 0;
}

void print_rank(const checkpoint::CheckpointDetails::RankPart& part, std::size_t rank) {
  std::printf("\nrank %zu\n", rank);
  Table tensors{
      {{"TENSOR"}, {"DTYPE"}, {"SHAPE"}, {"GLOBAL SHAPE"}, {"OFFSET"}, {"SIZE", Align::kRight}}};
  for (const checkpoint::TensorSummary& tensor : part.tensors) {
    tensors.add(
        {tensor.name,
         tensor.dtype,
         format_shape(tensor.shape),
         format_shape(tensor.global_shape),
         format_shape(tensor.offset),
         format_bytes(tensor.bytes)});
  }
  std::fputs(tensors.to_string().c_str(), stdout);
  Table values{{{"VALUE"}, {"CONTENT"}}};
  for (const auto& [name, value] : part.values) {
    const bool long_value = value.size() > kValueBytesShown;
    values.add({name, long_value ? value.substr(0, kValueBytesShown) + "..." : value});
  }
  std::printf("\n%s", values.to_string().c_str());
}

Expected<int> show(const fs::path& folder) {
  MUSTER_ASSIGN_OR_RETURN(const auto all, find(folder));
  MUSTER_ASSIGN_OR_RETURN(const auto details, checkpoint::describe(all.front().path));
  const CheckpointInfo& info = details.info;
  const std::int64_t now = unix_ns(SystemClock{}.wall_now());
  std::printf(
      "%s\nrun %s, step %lld, generation %lld, %d ranks, %s, committed %s ago%s\n",
      info.path.c_str(),
      info.run_id.c_str(),
      static_cast<long long>(info.step.value()),
      static_cast<long long>(info.generation.value()),
      info.world_size,
      format_bytes(info.bytes).c_str(),
      format_age_of(info.committed_unix_ns, now).c_str(),
      info.pinned ? ", pinned" : "");
  for (std::size_t rank = 0; rank < details.ranks.size(); ++rank) {
    print_rank(details.ranks[rank], rank);
  }
  return 0;
}

// A percentage that moves on a terminal, a line per file elsewhere.
class Progress {
 public:
  explicit Progress(std::string name) : name_(std::move(name)) {}

  ~Progress() {
    if (terminal_ && percent_ >= 0) {
      std::fputs("\r\033[K", stderr);
    }
  }

  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  Progress(Progress&&) = delete;
  Progress& operator=(Progress&&) = delete;

  void update(const std::string& file, std::int64_t done, std::int64_t total) {
    const int percent = total == 0 ? 100 : static_cast<int>(100 * done / total);
    if (terminal_ && percent != percent_) {
      std::fprintf(stderr, "\r\033[K%s: %s, %d %%", name_.c_str(), file.c_str(), percent);
    } else if (!terminal_ && file != file_) {
      std::fprintf(stderr, "%s: checking %s\n", name_.c_str(), file.c_str());
    }
    percent_ = percent;
    file_ = file;
  }

 private:
  std::string name_;
  bool terminal_{::isatty(STDERR_FILENO) == 1};
  int percent_{-1};
  std::string file_;
};

Status verify_one(const CheckpointInfo& info) {
  Progress progress{info.path.filename().string()};
  return checkpoint::verify(
      info.path, [&](const std::string& file, std::int64_t done, std::int64_t total) {
        progress.update(file, done, total);
      });
}

Expected<int> verify(const fs::path& folder) {
  MUSTER_ASSIGN_OR_RETURN(const auto all, find(folder));
  const SystemClock clock;
  int damaged = 0;
  for (const CheckpointInfo& info : all) {
    const MonotonicTime started = clock.now();
    const Status status = verify_one(info);
    const double took = std::chrono::duration<double>(clock.now() - started).count();
    const std::string name = info.path.filename().string();
    if (status.ok()) {
      std::printf(
          "%s: intact, %s in %s s\n",
          name.c_str(),
          format_bytes(info.bytes).c_str(),
          fixed(took, 2).c_str());
    } else {
      ++damaged;
      std::printf("%s: DAMAGED: %s\n", name.c_str(), status.message().c_str());
    }
  }
  return damaged == 0 ? 0 : kExitError;
}

using Operation = Expected<int> (*)(const fs::path&);

}  // namespace

Action declare_ckpt(CLI::App& command, const Tail& /*tail*/) {
  struct Entry {
    const char* name;
    const char* summary;
    Operation run;
  };

  static constexpr Entry kEntries[] = {
      {"list", "List checkpoints, or the runs of a root; checks sizes, not contents", list},
      {"show", "Tensors and values of a checkpoint (of a run: the newest)", show},
      {"verify", "Check every byte against its hash and name what is damaged", verify}};
  command.footer(
      "DIR is a run's folder (<checkpoint-root>/<run>) or one checkpoint in it; `list` also takes\n"
      "the root and shows each run with its newest checkpoint.\n"
      "The exit code is 1 if something is damaged.\n\n"
      "Examples:\n"
      "  muster ckpt list checkpoints\n"
      "  muster ckpt list checkpoints/moby\n"
      "  muster ckpt verify checkpoints/moby/step-120.gen-2");
  command.require_subcommand(1);
  const auto folder = std::make_shared<std::string>();
  for (const Entry& entry : kEntries) {
    command.add_subcommand(entry.name, entry.summary)
        ->add_option("DIR", *folder, "Run folder, checkpoint or, for list, checkpoint root")
        ->required();
  }
  return [folder, &command]() -> int {
    for (const Entry& entry : kEntries) {
      if (command.got_subcommand(entry.name)) {
        const auto code = entry.run(clean(*folder));
        return code ? *code : fail(std::string{"ckpt "} + entry.name, code.status());
      }
    }
    return kExitUsage;
  };
}

}  // namespace muster::cli
