// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/src/commit.h"

#include "checkpoint/src/generation.h"
#include "checkpoint/src/layout.h"
#include "checkpoint/src/manifest.h"
#include "checkpoint/src/rank_record.h"

#include <muster/common/hash.h>
#include <muster/common/log.h>

#include <span>
#include <utility>

namespace muster::checkpoint {

namespace fs = std::filesystem;

namespace {

// A record of another save in this folder would make a mixture; it is refused by name.
Status check_record(const SaveId& id, const RankRecord& record, int rank) {
  const bool same = record.identity.run_id == id.identity.run_id && record.step == id.step &&
                    record.identity.generation == id.identity.generation &&
                    record.sequence == id.sequence && record.world_size == id.world_size &&
                    record.identity.rank.value() == rank && record.file == data_name(rank);
  return same ? Status{} : data_loss("belongs to another save");
}

Status add_tensors(Manifest& manifest, const RankRecord& record) {
  for (const PieceRecord& piece : record.pieces) {
    const Pieces::Tensor tensor{piece.dtype, piece.global_shape};
    const auto [known, added] = manifest.tensors.emplace(piece.name, tensor);
    if (!added && known->second != tensor) {
      return failed_precondition(
          "tensor '" + piece.name + "' has another dtype or global shape on another rank");
    }
  }
  return {};
}

Status add_rank(Manifest& manifest, const SaveId& id, int rank) {
  const fs::path folder = id.unfinished_folder();
  const fs::path record_path = folder / record_name(rank);
  MUSTER_ASSIGN_OR_RETURN(const std::string text, read_regular_file(record_path));
  const auto record = decode_record(text);
  if (!record) {
    return record.status().context(record_path.string());
  }
  MUSTER_RETURN_IF_ERROR(check_record(id, *record, rank).context(record_path.string()));
  std::error_code error;
  const std::uint64_t bytes = fs::file_size(folder / record->file, error);
  if (error || bytes != record->file_bytes) {
    return data_loss(
        (folder / record->file).string(),
        " does not have the ",
        record->file_bytes,
        " bytes its rank wrote");
  }
  manifest.files.push_back({record->file, record->file_bytes, record->file_hash});
  manifest.files.push_back({record_name(rank), text.size(), to_hex(hash128(text))});
  return add_tensors(manifest, *record).context(record_path.string());
}

Expected<std::string> build_manifest(const SaveId& id, bool pinned, const Clock& clock) {
  Manifest manifest;
  manifest.run_id = id.identity.run_id;
  manifest.step = id.step;
  manifest.generation = id.identity.generation;
  manifest.world_size = id.world_size;
  manifest.sequence = id.sequence;
  manifest.pinned = pinned;
  manifest.committed_unix_ns = unix_ns(clock.wall_now());
  manifest.incarnation = id.identity.incarnation;
  for (int rank = 0; rank < id.world_size; ++rank) {
    MUSTER_RETURN_IF_ERROR(add_rank(manifest, id, rank));
  }
  return encode_manifest(manifest);
}

Status write_manifest(Disk& disk, const fs::path& folder, std::string_view text) {
  const fs::path path = folder / kManifestName;
  const fs::path temporary = path.string() + ".tmp";
  MUSTER_RETURN_IF_ERROR(write_new_file(disk, temporary, text));
  MUSTER_RETURN_IF_ERROR(disk.rename(temporary, path));
  return disk.fsync_directory(folder);
}

// Under the lock no newer generation can appear between the check and the rename.
Status publish(Disk& disk, const SaveId& id) {
  const std::string note = "rank " + std::to_string(id.identity.rank.value()) + " of generation " +
                           std::to_string(id.identity.generation.value()) +
                           " committing a checkpoint";
  MUSTER_ASSIGN_OR_RETURN(const FileLock lock, lock_generation(id.run_folder, note));
  MUSTER_RETURN_IF_ERROR(check_fence(id.run_folder, id.identity.generation));
  return disk.rename(id.unfinished_folder(), id.committed_folder());
}

// A hint for people and scripts: nothing in muster trusts it, so a failure only earns a line.
void update_latest(Disk& disk, const SaveId& id) {
  const fs::path path = id.run_folder / kLatestName;
  const fs::path temporary = path.string() + ".tmp";
  Status status = write_new_file(disk, temporary, id.committed_folder().filename().string() + "\n");
  if (status.ok()) {
    status = disk.rename(temporary, path);
  }
  if (!status.ok()) {
    log_warning("event=latest_not_updated reason=\"" + status.to_string() + "\"");
  }
}

}  // namespace

Status commit_checkpoint(Disk& disk, const SaveId& id, bool pinned, const Clock& clock) {
  const auto manifest = build_manifest(id, pinned, clock);
  Status status = manifest.status();
  if (status.ok()) {
    status = write_manifest(disk, id.unfinished_folder(), *manifest);
  }
  if (status.ok()) {
    status = publish(disk, id);
  }
  if (!status.ok()) {
    // Every rank is done with the folder; what stays is collected by the next generation.
    static_cast<void>(remove_tree(disk, id.unfinished_folder()));
    return status;
  }
  MUSTER_RETURN_IF_ERROR(disk.fsync_directory(id.run_folder));
  update_latest(disk, id);
  return {};
}

}  // namespace muster::checkpoint
