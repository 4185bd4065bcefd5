// muster ckpt list | show | verify.
#include "cli/commands/subcommands.h"
#include "cli/text/table.h"
#include "cli/text/units.h"

#include <muster/checkpoint/checkpoint.h>
#include <muster/common/clock.h>

#include <CLI/CLI.hpp>

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <utility>

namespace muster::cli {

namespace fs = std::filesystem;

namespace {

using checkpoint::CheckpointInfo;

constexpr std::size_t kValueBytesShown = 60;

// Without a trailing slash, so that its last part is the folder's name.
fs::path clean(const fs::path& folder) {
  const fs::path whole = fs::absolute(folder).lexically_normal();
  return whole.has_filename() ? whole : whole.parent_path();
}

bool is_checkpoint(const fs::path& folder) {
  return folder.filename().string().starts_with("step-") || fs::exists(folder / "MANIFEST.json");
}

// The checkpoints of a run folder, or the one that `folder` is.
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

Expected<int> list(const fs::path& folder) {
  MUSTER_ASSIGN_OR_RETURN(const auto all, find(folder));
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
         info.validity.ok() ? "complete" : "DAMAGED: " + info.validity.message()});
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
  int damaged = 0;
  for (const CheckpointInfo& info : all) {
    const auto started = std::chrono::steady_clock::now();
    const Status status = verify_one(info);
    const double took =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
    const std::string name = info.path.filename().string();
    if (status.ok()) {
      std::printf(
          "%s: intact, %s in %.2f s\n", name.c_str(), format_bytes(info.bytes).c_str(), took);
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
      {"list", "One line per checkpoint; sizes are checked, contents are not", list},
      {"show", "Tensors and values of a checkpoint (of a run: the newest)", show},
      {"verify", "Check every byte against its hash; names what is damaged", verify}};
  command.footer(
      "DIR is a run's folder (<checkpoint-root>/<run>) or one checkpoint in it.\n"
      "The exit code is 1 when something is damaged.\n\n"
      "Examples:\n"
      "  muster ckpt list checkpoints/moby\n"
      "  muster ckpt verify checkpoints/moby/step-120.gen-2");
  command.require_subcommand(1);
  const auto folder = std::make_shared<std::string>();
  for (const Entry& entry : kEntries) {
    command.add_subcommand(entry.name, entry.summary)
        ->add_option("DIR", *folder, "Run folder or checkpoint")
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
