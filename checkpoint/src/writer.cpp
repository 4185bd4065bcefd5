// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/src/writer.h"

#include "checkpoint/src/commit.h"
#include "checkpoint/src/generation.h"
#include "checkpoint/src/layout.h"
#include "checkpoint/src/prepare.h"
#include "checkpoint/src/retention.h"
#include "checkpoint/src/snapshot.h"

#include <muster/common/log.h>
#include <muster/common/mutex.h>

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <thread>
#include <utility>

namespace muster::checkpoint {

namespace {

// A save takes a tenth more than its bytes: headers, records, and what others write meanwhile.
constexpr double kFreeSpaceFactor = 1.1;

// A snapshot buffer; `busy` while the writer thread still reads it.
struct Buffer {
  Snapshot snapshot;
  std::atomic<bool> busy{false};
};

// One save from begin to its end; the writer thread's jobs share it with the training thread.
struct Save {
  SaveId id;
  Buffer* buffer{nullptr};
  std::atomic<bool> cancelled{false};
};

// Invariants, under mutex_: (1) active_ is the save begun and neither committed nor abandoned, or
// the last one that failed. (2) Jobs run one at a time in the order given, on thread_.
class ThreadedWriter final : public Writer {
 public:
  ThreadedWriter(WriterOptions options, Disk& disk, const Clock& clock)
      : options_(std::move(options)),
        run_folder_(options_.root / options_.identity.run_id),
        disk_(disk),
        clock_(clock),
        thread_([this] { run_jobs(); }) {}

  ~ThreadedWriter() override {
    {
      const MutexLock lock{mutex_};
      stopping_ = true;
      if (active_) {
        active_->cancelled = true;
      }
    }
    wake_.notify_all();
    thread_.join();
  }

  ThreadedWriter(const ThreadedWriter&) = delete;
  ThreadedWriter& operator=(const ThreadedWriter&) = delete;
  ThreadedWriter(ThreadedWriter&&) = delete;
  ThreadedWriter& operator=(ThreadedWriter&&) = delete;

  Status begin(std::int64_t sequence, StepIndex step, const RankState& state) override;
  void commit(std::int64_t sequence, bool pin) override;
  void abandon(std::int64_t sequence) override;
  Status wait(std::chrono::nanoseconds timeout) override;

  SaveState poll() override {
    const MutexLock lock{mutex_};
    return state_;
  }

  [[nodiscard]] std::int64_t prepared_sequence() const override {
    const MutexLock lock{mutex_};
    return prepared_sequence_;
  }

  [[nodiscard]] std::int64_t active_sequence() const override {
    const MutexLock lock{mutex_};
    return active_ ? active_->id.sequence : 0;
  }

  [[nodiscard]] Status last_error() const override {
    const MutexLock lock{mutex_};
    return last_error_;
  }

  [[nodiscard]] std::int64_t committed_sequence() const override {
    const MutexLock lock{mutex_};
    return committed_sequence_;
  }

  [[nodiscard]] std::int64_t last_stall_ns() const override { return last_stall_ns_; }

  [[nodiscard]] std::int64_t last_snapshot_bytes() const override { return last_snapshot_bytes_; }

  // Removes leftovers of older generations. Called on the lowest rank.
  void start_garbage_collection() {
    const MutexLock lock{mutex_};
    push([this] { collect(); });
  }

 private:
  using Job = std::function<void()>;

  Status check_begin(std::int64_t sequence) const;
  Status stage(Save& save, const RankState& state);
  void run_jobs();
  void run_prepare(const std::shared_ptr<Save>& save);
  void run_commit(const std::shared_ptr<Save>& save, bool pin);
  void collect();

  void push(Job job) MUSTER_REQUIRES(mutex_) {
    jobs_.push_back(std::move(job));
    wake_.notify_all();
  }

  // A newer save in flight is not affected by an older one's failure.
  void fail(const std::shared_ptr<Save>& save, Status error) MUSTER_REQUIRES(mutex_) {
    last_error_ = std::move(error);
    if (!active_ || active_ == save) {
      active_ = save;
      state_ = SaveState::kFailed;
    }
  }

  const WriterOptions options_;
  const std::filesystem::path run_folder_;
  Disk& disk_;
  const Clock& clock_;

  // Used by the training thread only.
  std::shared_ptr<const std::vector<PieceRecord>> plan_;  // of the last save
  std::int64_t last_stall_ns_{0};
  std::int64_t last_snapshot_bytes_{0};

  // The second buffer is allocated only when a save begins while an abandoned one still drains.
  std::array<Buffer, 2> buffers_;

  mutable Mutex mutex_;
  CondVar wake_;
  std::deque<Job> jobs_ MUSTER_GUARDED_BY(mutex_);
  bool running_ MUSTER_GUARDED_BY(mutex_){false};
  bool stopping_ MUSTER_GUARDED_BY(mutex_){false};
  std::shared_ptr<Save> active_ MUSTER_GUARDED_BY(mutex_);
  SaveState state_ MUSTER_GUARDED_BY(mutex_){SaveState::kIdle};
  Status last_error_ MUSTER_GUARDED_BY(mutex_);
  std::int64_t last_begun_sequence_ MUSTER_GUARDED_BY(mutex_){0};
  std::int64_t prepared_sequence_ MUSTER_GUARDED_BY(mutex_){0};
  std::int64_t committed_sequence_ MUSTER_GUARDED_BY(mutex_){0};

  std::thread thread_;  // Last, so that everything it touches exists.
};

Status ThreadedWriter::check_begin(std::int64_t sequence) const {
  const MutexLock lock{mutex_};
  if (state_ == SaveState::kWriting || state_ == SaveState::kPrepared) {
    return failed_precondition(
        "checkpoint sequence ",
        active_->id.sequence,
        " is still in flight: commit or abandon it first");
  }
  if (sequence <= last_begun_sequence_) {
    return invalid_argument(
        "checkpoint sequence ", sequence, " does not follow ", last_begun_sequence_);
  }
  return {};
}

// Work done on the training thread: planning, one statvfs, the copy.
Status ThreadedWriter::stage(Save& save, const RankState& state) {
  if (!plan_ || !plan_fits(*plan_, state)) {
    MUSTER_ASSIGN_OR_RETURN(std::vector<PieceRecord> pieces, plan_pieces(state));
    plan_ = std::make_shared<const std::vector<PieceRecord>>(std::move(pieces));
  }
  const std::uint64_t bytes = data_bytes(*plan_);
  MUSTER_ASSIGN_OR_RETURN(const std::uint64_t available, disk_.free_bytes(run_folder_));
  if (static_cast<double>(available) < kFreeSpaceFactor * static_cast<double>(bytes)) {
    return resource_exhausted(
        run_folder_.string(),
        " has ",
        available,
        " bytes free, a checkpoint of ",
        bytes,
        " bytes needs a tenth more than its size: free space or lower keep_last");
  }
  for (Buffer& buffer : buffers_) {
    if (!buffer.busy.load(std::memory_order_acquire)) {
      MUSTER_RETURN_IF_ERROR(buffer.snapshot.fill(state, plan_));
      buffer.busy = true;
      save.buffer = &buffer;
      last_snapshot_bytes_ = static_cast<std::int64_t>(bytes);
      return {};
    }
  }
  return resource_exhausted("two abandoned saves are still being written: the disk is stuck");
}

Status ThreadedWriter::begin(std::int64_t sequence, StepIndex step, const RankState& state) {
  const MonotonicTime started = clock_.now();
  MUSTER_RETURN_IF_ERROR(check_begin(sequence));
  auto save = std::make_shared<Save>();
  save->id = SaveId{run_folder_, options_.identity, options_.world_size, step, sequence};
  Status staged = stage(*save, state);
  {
    const MutexLock lock{mutex_};
    last_begun_sequence_ = sequence;
    active_ = save;
    if (staged.ok()) {
      state_ = SaveState::kWriting;
      push([this, save] { run_prepare(save); });
    } else {
      fail(save, staged);
    }
  }
  last_stall_ns_ =
      std::chrono::duration_cast<std::chrono::nanoseconds>(clock_.now() - started).count();
  return staged;
}

void ThreadedWriter::commit(std::int64_t sequence, bool pin) {
  const MutexLock lock{mutex_};
  if (!active_ || active_->id.sequence != sequence || state_ != SaveState::kPrepared) {
    last_error_ = failed_precondition(
        "checkpoint sequence ",
        sequence,
        " is not prepared on rank ",
        options_.identity.rank.value(),
        " and cannot be committed");
    return;
  }
  if (options_.identity.rank.value() == 0) {
    push([this, save = active_, pin] { run_commit(save, pin); });
  } else {
    committed_sequence_ = sequence;
  }
  active_.reset();
  state_ = SaveState::kIdle;
}

void ThreadedWriter::abandon(std::int64_t sequence) {
  const MutexLock lock{mutex_};
  if (!active_ || active_->id.sequence != sequence) {
    return;
  }
  active_->cancelled = true;
  push([this, save = active_] {
    // The next generation removes files that remain.
    const Status removed = remove_rank(disk_, save->id);
    if (!removed.ok()) {
      log_warning("event=abandoned_files_remain reason=\"" + removed.to_string() + "\"");
    }
  });
  active_.reset();
  state_ = SaveState::kIdle;
}

Status ThreadedWriter::wait(std::chrono::nanoseconds timeout) {
  const Deadline deadline = Deadline::after(timeout);
  const MutexLock lock{mutex_};
  while (!jobs_.empty() || running_) {
    if (!wake_.wait_until(mutex_, deadline.at) && (!jobs_.empty() || running_)) {
      return deadline_exceeded("the checkpoint writer is still busy");
    }
  }
  return state_ == SaveState::kFailed ? last_error_ : Status{};
}

void ThreadedWriter::run_jobs() {
  MutexLock lock{mutex_};
  while (true) {
    while (!stopping_ && jobs_.empty()) {
      wake_.wait(mutex_);
    }
    if (jobs_.empty()) {
      return;
    }
    const Job job = std::move(jobs_.front());
    jobs_.pop_front();
    running_ = true;
    lock.unlock();
    job();
    lock.lock();
    running_ = false;
    wake_.notify_all();
  }
}

void ThreadedWriter::run_prepare(const std::shared_ptr<Save>& save) {
  Status status = prepare_rank(disk_, save->id, save->buffer->snapshot, save->cancelled);
  save->buffer->busy.store(false, std::memory_order_release);
  const MutexLock lock{mutex_};
  if (active_ != save) {
    return;  // Abandoned meanwhile.
  }
  if (status.ok()) {
    state_ = SaveState::kPrepared;
    prepared_sequence_ = save->id.sequence;
  } else {
    fail(save, std::move(status));
  }
}

void ThreadedWriter::run_commit(const std::shared_ptr<Save>& save, bool pin) {
  Status status = commit_checkpoint(disk_, save->id, pin, clock_);
  {
    const MutexLock lock{mutex_};
    if (!status.ok()) {
      fail(save, std::move(status));
      return;
    }
    committed_sequence_ = save->id.sequence;
  }
  const Status kept =
      apply_retention(disk_, options_.root, options_.identity.run_id, options_.keep_last);
  if (!kept.ok()) {
    log_warning("event=retention_failed reason=\"" + kept.to_string() + "\"");
  }
}

void ThreadedWriter::collect() {
  const Status status = collect_garbage(disk_, run_folder_, options_.identity.generation);
  if (!status.ok()) {
    log_warning("event=garbage_remains reason=\"" + status.to_string() + "\"");
  }
}

Status check_options(const WriterOptions& options) {
  MUSTER_RETURN_IF_ERROR(check_run_id(options.identity.run_id));
  if (options.identity.rank.value() < 0 || options.identity.rank.value() >= options.world_size) {
    return invalid_argument(
        "rank ", options.identity.rank.value(), " is outside a world of ", options.world_size);
  }
  if (options.keep_last < 1) {
    return invalid_argument("keep_last must be at least 1");
  }
  return {};
}

}  // namespace

Expected<std::unique_ptr<Writer>> create_writer(
    WriterOptions options, Disk& disk, const Clock& clock) {
  MUSTER_RETURN_IF_ERROR(check_options(options));
  const std::filesystem::path run_folder = options.root / options.identity.run_id;
  MUSTER_RETURN_IF_ERROR(disk.make_directory(run_folder));
  MUSTER_RETURN_IF_ERROR(disk.fsync_directory(options.root));
  MUSTER_RETURN_IF_ERROR(check_fence(run_folder, options.identity.generation));
  const bool lowest = options.identity.rank.value() == 0;
  auto writer = std::make_unique<ThreadedWriter>(std::move(options), disk, clock);
  if (lowest) {
    writer->start_garbage_collection();
  }
  return std::unique_ptr<Writer>{std::move(writer)};
}

Expected<std::unique_ptr<Writer>> Writer::create(WriterOptions options) {
  // Both are stateless and shared by all writers of the process.
  static Disk disk;
  static const SystemClock kClock;
  return create_writer(std::move(options), disk, kClock);
}

}  // namespace muster::checkpoint
