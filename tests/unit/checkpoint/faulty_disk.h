// SPDX-License-Identifier: Apache-2.0
// Disks that fail, kill the process or lose power at the k-th operation.
#pragma once

#include "checkpoint/src/disk.h"

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace muster::checkpoint::testing {

enum class Operation : std::uint8_t {
  kCreate,
  kWrite,
  kFsync,
  kClose,
  kMakeDirectory,
  kFsyncDirectory,
  kRename,
  kRemove
};

// Asks `gate` before each operation that changes the disk; an error stops it. A write that is
// stopped leaves half of its bytes behind, as a full disk does.
class GatedDisk : public Disk {
 public:
  using Gate = std::function<Status(Operation, const std::filesystem::path&)>;

  explicit GatedDisk(Gate gate) : gate_(std::move(gate)) {}

  Expected<FileDescriptor> create(const std::filesystem::path& path) override;
  Status write(
      const FileDescriptor& fd,
      std::span<const std::byte> bytes,
      const std::filesystem::path& path) override;
  Status fsync(const FileDescriptor& fd, const std::filesystem::path& path) override;
  Status close(FileDescriptor fd, const std::filesystem::path& path) override;
  Status make_directory(const std::filesystem::path& path) override;
  Status fsync_directory(const std::filesystem::path& path) override;
  Status rename(const std::filesystem::path& from, const std::filesystem::path& to) override;
  Status remove(const std::filesystem::path& path) override;

 private:
  Gate gate_;
};

// Counts operations from all threads; true for the chosen one (1-based).
class OperationCounter {
 public:
  explicit OperationCounter(std::int64_t chosen) : chosen_(chosen) {}

  bool next() {
    const std::lock_guard lock(mutex_);
    return ++count_ == chosen_;
  }

  [[nodiscard]] bool reached() const {
    const std::lock_guard lock(mutex_);
    return count_ >= chosen_;
  }

 private:
  std::int64_t chosen_;
  mutable std::mutex mutex_;
  std::int64_t count_{0};
};

// Remembers what is not yet durable: bytes written since the file's last fsync, and names created
// or renamed since their folder's last fsync. `lose_power` takes them away again, as a machine that
// loses power may. Removals are taken as durable at once.
class VolatileDisk final : public GatedDisk {
 public:
  VolatileDisk(Gate gate, bool honest_fsync)
      : GatedDisk(std::move(gate)), honest_fsync_(honest_fsync) {}

  Expected<FileDescriptor> create(const std::filesystem::path& path) override;
  Status fsync(const FileDescriptor& fd, const std::filesystem::path& path) override;
  Status make_directory(const std::filesystem::path& path) override;
  Status fsync_directory(const std::filesystem::path& path) override;
  Status rename(const std::filesystem::path& from, const std::filesystem::path& to) override;

  void lose_power(const std::filesystem::path& root, bool lose_data, bool lose_names);

 private:
  struct NameChange {
    std::filesystem::path from;  // Empty: `to` was created.
    std::filesystem::path to;
  };

  static std::filesystem::path moved(const std::filesystem::path& path, const NameChange& change);

  bool honest_fsync_;
  std::mutex mutex_;
  std::map<ino_t, std::uintmax_t> durable_bytes_;
  std::vector<NameChange> pending_;
};

}  // namespace muster::checkpoint::testing
