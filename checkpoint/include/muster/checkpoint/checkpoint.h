// SPDX-License-Identifier: Apache-2.0
// Checkpoints that exist on all ranks or on none.
//
// <root>/<run>/step-<S>.gen-<G>.tmp/  rank-<r>.safetensors + rank-<r>.json   (prepare)
// <root>/<run>/step-<S>.gen-<G>/      ... + MANIFEST.json                     (commit)
// <root>/<run>/LATEST                 a hint; the truth is a scan for valid manifests
// docs/concepts/checkpoints.md has the format and the crash analysis; pieces.h reads them back.
#pragma once

#include <muster/common/expected.h>
#include <muster/common/ids.h>
#include <muster/common/tensor_piece.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace muster::checkpoint {

using muster::TensorPiece;

// Everything a rank saves: its pieces and small named values (rng counters, data cursor, schedule
// constants, applied command ids, detector windows). The caller chooses the names; values are
// strings.
struct RankState {
  std::vector<TensorPiece> tensors;
  std::map<std::string, std::string> values;
};

struct WriterOptions {
  std::filesystem::path root;
  Identity identity;
  int world_size{1};
  int keep_last{3};  // Committed checkpoints kept, >= 1; pinned ones do not count.
};

enum class SaveState : std::uint8_t { kIdle, kWriting, kPrepared, kFailed };

// One rank's part of the commit protocol.
//
// Thread-safety: all calls from the training thread; an internal writer thread does the I/O. The
// training thread never waits for the disk: `begin` only copies (the snapshot), the rest polls. Any
// I/O error turns the save into kFailed with the reason; training continues.
class Writer {
 public:
  [[nodiscard]] static Expected<std::unique_ptr<Writer>> create(WriterOptions options);

  Writer() = default;
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;
  Writer(Writer&&) = delete;
  Writer& operator=(Writer&&) = delete;
  virtual ~Writer() = default;  // Waits for the writer thread; an uncommitted save stays invisible.

  // Copies `state` to the host snapshot (hashes are taken of the snapshot) and starts writing
  // checkpoint number `sequence` (>= 1, ascending, the same on all ranks) of `step`. Returns
  // kFailedPrecondition and changes nothing while another save is in flight, that is until it is
  // committed, abandoned or failed. Any other error (kResourceExhausted: less than 1.1 times the
  // bytes are free; kInvalidArgument: a piece is wrong) fails the save: poll() returns kFailed and
  // active_sequence() its number until abandon() or the next begin().
  [[nodiscard]] virtual Status begin(
      std::int64_t sequence, StepIndex step, const RankState& state) = 0;

  [[nodiscard]] virtual SaveState poll() = 0;
  // Highest sequence prepared by this rank, or zero. Input of the verdict.
  [[nodiscard]] virtual std::int64_t prepared_sequence() const = 0;
  // The sequence in flight or failed, or zero. A commit ends it on every rank at once.
  [[nodiscard]] virtual std::int64_t active_sequence() const = 0;
  // Why the last save failed.
  [[nodiscard]] virtual Status last_error() const = 0;

  // Call once the verdict has every rank prepared for `sequence`. Only the lowest rank writes:
  // manifest, rename, fsync, LATEST, retention, on the writer thread; `committed_sequence` follows.
  // `pin` keeps the checkpoint from retention. Re-checks the generation fence before the rename.
  // The next save may begin at once; a commit that fails on disk shows as kFailed (unless a newer
  // save is active), in last_error() and in committed_sequence(), which then stays.
  virtual void commit(std::int64_t sequence, bool pin) = 0;
  // Removes this rank's files of `sequence`, after a verdict that some rank failed.
  virtual void abandon(std::int64_t sequence) = 0;
  // On the lowest rank, the highest sequence whose commit is durable; on others, the highest passed
  // to commit().
  [[nodiscard]] virtual std::int64_t committed_sequence() const = 0;

  // Blocks until the writer thread has no jobs left: everything is prepared, committed or abandoned
  // (used before exit, not in a step). Returns the error of a failed save, or kDeadlineExceeded.
  [[nodiscard]] virtual Status wait(std::chrono::nanoseconds timeout) = 0;

  // Nanoseconds the last `begin` held the training thread, and the bytes it copied.
  [[nodiscard]] virtual std::int64_t last_stall_ns() const = 0;
  [[nodiscard]] virtual std::int64_t last_snapshot_bytes() const = 0;
};

// A committed checkpoint found on disk.
struct CheckpointInfo {
  std::filesystem::path path;
  std::string run_id;
  StepIndex step;
  Generation generation;
  int world_size{0};
  std::int64_t bytes{0};
  bool pinned{false};
  std::int64_t committed_unix_ns{0};
  Status validity;  // ok, or what is wrong with it (fast check: manifest, files, sizes).
};

// All checkpoint directories of a run, valid or not, newest step first, higher generation first
// within a step. Unfinished ".tmp" ones are not listed. kNotFound when the folder is missing.
[[nodiscard]] Expected<std::vector<CheckpointInfo>> list(
    const std::filesystem::path& root, const std::string& run_id);

// Called on the caller's thread with the bytes checked so far and the total of the checkpoint.
using VerifyProgress =
    std::function<void(const std::string& file, std::int64_t bytes_done, std::int64_t bytes_total)>;

// Full check of every byte against the hashes; names the first file and tensor that differ.
[[nodiscard]] Status verify(
    const std::filesystem::path& checkpoint, const VerifyProgress& progress = {});

// The newest checkpoint that passes `verify`, falling back to older ones; each rejected one is
// reported in `rejected`. kNotFound when none passes.
[[nodiscard]] Expected<CheckpointInfo> newest_verified(
    const std::filesystem::path& root,
    const std::string& run_id,
    std::vector<std::string>* rejected = nullptr);

// Description of a tensor in a checkpoint, without its data.
struct TensorSummary {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> global_shape;
  std::vector<std::int64_t> offset;
  std::int64_t bytes{0};
};

struct CheckpointDetails {
  struct RankPart {
    std::vector<TensorSummary> tensors;
    std::map<std::string, std::string> values;
  };

  CheckpointInfo info;
  std::vector<RankPart> ranks;  // [world_size]
};

// Reads manifest and rank records, checks their hashes and the sizes of all files (the fast check).
[[nodiscard]] Expected<CheckpointDetails> describe(const std::filesystem::path& checkpoint);

// --- generations ---
// Allocates the next generation of a run: reads <root>/<run>/GENERATION under an exclusive lock,
// adds one, writes it durably, returns it. Older generations can no longer commit.
[[nodiscard]] Expected<Generation> allocate_generation(
    const std::filesystem::path& root, const std::string& run_id);

// Returns the random id that distinguishes this run from others of its name, made with its first
// generation and kept in <root>/<run>/RUN_UID. Empty if the run has none yet.
[[nodiscard]] Expected<std::string> run_uid(
    const std::filesystem::path& root, const std::string& run_id);

// The current generation, or zero if the run has none yet.
[[nodiscard]] Expected<Generation> current_generation(
    const std::filesystem::path& root, const std::string& run_id);

}  // namespace muster::checkpoint
