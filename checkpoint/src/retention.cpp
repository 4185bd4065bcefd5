// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/src/retention.h"

#include "checkpoint/src/layout.h"

#include <muster/checkpoint/checkpoint.h>

#include <string_view>
#include <vector>

namespace muster::checkpoint {

namespace fs = std::filesystem;

namespace {

Status move_to_trash(Disk& disk, const fs::path& folder) {
  const fs::path trash =
      folder.parent_path() / (std::string{kTrashPrefix} + folder.filename().string());
  MUSTER_RETURN_IF_ERROR(remove_tree(disk, trash));
  MUSTER_RETURN_IF_ERROR(disk.rename(folder, trash));
  return remove_tree(disk, trash);
}

}  // namespace

Status apply_retention(Disk& disk, const fs::path& root, const std::string& run_id, int keep_last) {
  MUSTER_ASSIGN_OR_RETURN(const std::vector<CheckpointInfo> all, list(root, run_id));
  std::vector<fs::path> intact;
  for (const CheckpointInfo& info : all) {
    if (info.validity.ok() && !info.pinned) {
      intact.push_back(info.path);
    }
  }
  const auto keep = static_cast<std::size_t>(keep_last);
  if (intact.size() <= keep) {
    return {};
  }
  MUSTER_RETURN_IF_ERROR(verify(intact.front()).context("nothing deleted"));
  for (std::size_t i = keep; i < intact.size(); ++i) {
    MUSTER_RETURN_IF_ERROR(move_to_trash(disk, intact[i]));
  }
  return {};
}

Status collect_garbage(Disk& disk, const fs::path& run_folder, Generation current) {
  std::vector<fs::path> garbage;
  std::error_code error;
  for (auto entry = fs::directory_iterator{run_folder, error}; !error && entry != fs::end(entry);
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const auto folder = parse_step_folder(name);
    if (name.starts_with(kTrashPrefix) ||
        (folder && folder->unfinished && folder->generation < current)) {
      garbage.push_back(entry->path());
    }
  }
  if (error) {
    return io_error(run_folder.string(), error.value());
  }
  for (const fs::path& path : garbage) {
    MUSTER_RETURN_IF_ERROR(remove_tree(disk, path));
  }
  return {};
}

}  // namespace muster::checkpoint
