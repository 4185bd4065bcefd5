// SPDX-License-Identifier: Apache-2.0
// Contents of a run's folder: list, verify, newest_verified, describe.
#include "checkpoint/src/layout.h"
#include "checkpoint/src/reader.h"

#include <muster/checkpoint/checkpoint.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace muster::checkpoint {

namespace fs = std::filesystem;

namespace {

std::int64_t total_bytes(const Manifest& manifest) {
  return std::accumulate(
      manifest.files.begin(),
      manifest.files.end(),
      std::int64_t{0},
      [](std::int64_t sum, const FileEntry& file) {
        return sum + static_cast<std::int64_t>(file.bytes);
      });
}

CheckpointInfo inspect(const fs::path& folder) {
  CheckpointInfo info;
  info.path = folder;
  if (const auto name = parse_step_folder(folder.filename().string())) {
    info.step = name->step;
    info.generation = name->generation;
  }
  const auto manifest = read_manifest(folder);
  if (!manifest) {
    info.validity = manifest.status();
    return info;
  }
  info.run_id = manifest->run_id;
  info.step = manifest->step;
  info.generation = manifest->generation;
  info.world_size = manifest->world_size;
  info.bytes = total_bytes(*manifest);
  info.pinned = manifest->pinned;
  info.committed_unix_ns = manifest->committed_unix_ns;
  info.validity = check_files(folder, *manifest);
  return info;
}

}  // namespace

Expected<std::vector<CheckpointInfo>> list(const fs::path& root, const std::string& run_id) {
  MUSTER_RETURN_IF_ERROR(check_run_id(run_id));
  const fs::path run_folder = root / run_id;
  std::error_code error;
  if (!fs::is_directory(run_folder, error)) {
    return not_found(run_folder.string() + ": no such run folder");
  }
  std::vector<CheckpointInfo> found;
  for (auto entry = fs::directory_iterator{run_folder, error}; !error && entry != fs::end(entry);
       entry.increment(error)) {
    const auto name = parse_step_folder(entry->path().filename().string());
    if (name && !name->unfinished) {
      found.push_back(inspect(entry->path()));
      found.back().run_id = run_id;
    }
  }
  if (error) {
    return io_error(run_folder.string(), error.value());
  }
  std::sort(found.begin(), found.end(), [](const CheckpointInfo& a, const CheckpointInfo& b) {
    return std::tie(b.step, b.generation) < std::tie(a.step, a.generation);
  });
  return found;
}

Status verify(const fs::path& checkpoint, const VerifyProgress& progress) {
  MUSTER_ASSIGN_OR_RETURN(const Manifest manifest, read_manifest(checkpoint));
  MUSTER_RETURN_IF_ERROR(check_files(checkpoint, manifest));
  const std::int64_t total = total_bytes(manifest);
  std::int64_t done = 0;
  for (int rank = 0; rank < manifest.world_size; ++rank) {
    MUSTER_ASSIGN_OR_RETURN(const RankRecord record, read_record(checkpoint, manifest, rank));
    const auto count = [&](std::uint64_t bytes) {
      done += static_cast<std::int64_t>(bytes);
      if (progress) {
        progress(record.file, done, total);
      }
    };
    MUSTER_RETURN_IF_ERROR(check_data(checkpoint, record, count));
  }
  return {};
}

Expected<CheckpointInfo> newest_verified(
    const fs::path& root, const std::string& run_id, std::vector<std::string>* rejected) {
  MUSTER_ASSIGN_OR_RETURN(const std::vector<CheckpointInfo> all, list(root, run_id));
  for (const CheckpointInfo& info : all) {
    const Status status = info.validity.ok() ? verify(info.path) : info.validity;
    if (status.ok()) {
      return info;
    }
    if (rejected != nullptr) {
      rejected->push_back(info.path.filename().string() + ": " + status.to_string());
    }
  }
  return not_found((root / run_id).string() + " has no intact checkpoint");
}

Expected<CheckpointDetails> describe(const fs::path& checkpoint) {
  CheckpointDetails details;
  details.info = inspect(checkpoint);
  MUSTER_RETURN_IF_ERROR(details.info.validity);
  MUSTER_ASSIGN_OR_RETURN(const Manifest manifest, read_manifest(checkpoint));
  for (int rank = 0; rank < manifest.world_size; ++rank) {
    MUSTER_ASSIGN_OR_RETURN(RankRecord record, read_record(checkpoint, manifest, rank));
    CheckpointDetails::RankPart part;
    for (PieceRecord& piece : record.pieces) {
      part.tensors.push_back(std::move(piece));
    }
    part.values = std::move(record.values);
    details.ranks.push_back(std::move(part));
  }
  return details;
}

}  // namespace muster::checkpoint
