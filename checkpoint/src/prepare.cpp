// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/src/prepare.h"

#include "checkpoint/src/layout.h"
#include "checkpoint/src/rank_record.h"
#include "checkpoint/src/safetensors.h"

#include <muster/common/hash.h>

#include <algorithm>
#include <utility>

namespace muster::checkpoint {

namespace fs = std::filesystem;

namespace {

// Between two chunks the writer looks whether the save was abandoned.
constexpr std::size_t kWriteBytes = std::size_t{8} << 20;

std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span{text.data(), text.size()});
}

Expected<std::string> build_header(const SaveId& id, const std::vector<PieceRecord>& pieces) {
  std::vector<TensorEntry> entries;
  entries.reserve(pieces.size());
  for (const PieceRecord& piece : pieces) {
    entries.push_back({piece.name, piece.dtype, piece.shape, piece.begin, piece.end});
  }
  return encode_header(
      entries,
      {{"format", "muster"},
       {"run_id", id.identity.run_id},
       {"step", std::to_string(id.step.value())},
       {"rank", std::to_string(id.identity.rank.value())},
       {"world_size", std::to_string(id.world_size)}});
}

// Hashes are taken of the snapshot before a byte of it is written, so that corruption while writing
// or reading is detected.
RankRecord describe(const SaveId& id, const Snapshot& snapshot, std::string_view header) {
  RankRecord record{
      id.identity,
      id.world_size,
      id.step,
      id.sequence,
      data_name(id.identity.rank.value()),
      header.size() + snapshot.data().size(),
      "",
      snapshot.pieces(),
      snapshot.values()};
  Hasher128 file;
  file.update(as_bytes(header));
  file.update(snapshot.data());
  record.file_hash = to_hex(file.digest());
  for (PieceRecord& piece : record.pieces) {
    piece.hash = to_hex(hash128(snapshot.data().subspan(piece.begin, piece.end - piece.begin)));
  }
  return record;
}

Status write_data(
    Disk& disk,
    const fs::path& path,
    std::string_view header,
    std::span<const std::byte> data,
    const std::atomic<bool>& cancelled) {
  MUSTER_ASSIGN_OR_RETURN(FileDescriptor fd, disk.create(path));
  MUSTER_RETURN_IF_ERROR(disk.write(fd, as_bytes(header), path));
  while (!data.empty()) {
    if (cancelled.load(std::memory_order_relaxed)) {
      return aborted("the save was abandoned");
    }
    const auto chunk = data.first(std::min(kWriteBytes, data.size()));
    MUSTER_RETURN_IF_ERROR(disk.write(fd, chunk, path));
    data = data.subspan(chunk.size());
  }
  MUSTER_RETURN_IF_ERROR(disk.fsync(fd, path));
  return disk.close(std::move(fd), path);
}

Status write_rank(
    Disk& disk, const SaveId& id, const Snapshot& snapshot, const std::atomic<bool>& cancelled) {
  if (cancelled.load(std::memory_order_relaxed)) {
    return aborted("the save was abandoned");
  }
  const fs::path folder = id.unfinished_folder();
  std::error_code ignored;
  if (fs::exists(id.committed_folder(), ignored)) {
    return already_exists(
        id.committed_folder().string() +
        " is already committed: an earlier start with this run id and generation wrote it; start "
        "with `muster run`, which counts generations, or choose another run id");
  }
  MUSTER_ASSIGN_OR_RETURN(const std::string header, build_header(id, snapshot.pieces()));
  const RankRecord record = describe(id, snapshot, header);
  MUSTER_ASSIGN_OR_RETURN(const std::string record_text, encode_record(record));
  MUSTER_RETURN_IF_ERROR(disk.make_directory(folder));
  MUSTER_RETURN_IF_ERROR(
      write_data(disk, folder / record.file, header, snapshot.data(), cancelled));
  MUSTER_RETURN_IF_ERROR(
      write_new_file(disk, folder / record_name(id.identity.rank.value()), record_text));
  return disk.fsync_directory(folder);
}

}  // namespace

fs::path SaveId::unfinished_folder() const {
  return run_folder / to_name({step, identity.generation, true});
}

fs::path SaveId::committed_folder() const {
  return run_folder / to_name({step, identity.generation});
}

Status prepare_rank(
    Disk& disk, const SaveId& id, const Snapshot& snapshot, const std::atomic<bool>& cancelled) {
  Status written = write_rank(disk, id, snapshot, cancelled);
  if (!written.ok()) {
    // Best effort: what cannot be removed is collected by the next generation.
    static_cast<void>(remove_rank(disk, id));
  }
  return written;
}

Status remove_rank(Disk& disk, const SaveId& id) {
  const fs::path folder = id.unfinished_folder();
  MUSTER_RETURN_IF_ERROR(disk.remove(folder / record_name(id.identity.rank.value())));
  MUSTER_RETURN_IF_ERROR(disk.remove(folder / data_name(id.identity.rank.value())));
  // Fails while files of other ranks are there; the last rank to leave succeeds.
  static_cast<void>(disk.remove(folder));
  return {};
}

}  // namespace muster::checkpoint
