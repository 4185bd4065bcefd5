// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/checkpoint/faulty_disk.h"

#include <sys/stat.h>

#include <algorithm>

namespace muster::checkpoint::testing {

namespace fs = std::filesystem;

namespace {

ino_t inode(const FileDescriptor& fd) {
  struct stat info {};

  ::fstat(fd.get(), &info);
  return info.st_ino;
}

}  // namespace

Expected<FileDescriptor> GatedDisk::create(const fs::path& path) {
  MUSTER_RETURN_IF_ERROR(gate_(Operation::kCreate, path));
  return Disk::create(path);
}

Status GatedDisk::write(
    const FileDescriptor& fd, std::span<const std::byte> bytes, const fs::path& path) {
  const Status open = gate_(Operation::kWrite, path);
  if (!open.ok()) {
    static_cast<void>(Disk::write(fd, bytes.first(bytes.size() / 2), path));
    return open;
  }
  return Disk::write(fd, bytes, path);
}

Status GatedDisk::fsync(const FileDescriptor& fd, const fs::path& path) {
  MUSTER_RETURN_IF_ERROR(gate_(Operation::kFsync, path));
  return Disk::fsync(fd, path);
}

Status GatedDisk::close(FileDescriptor fd, const fs::path& path) {
  MUSTER_RETURN_IF_ERROR(gate_(Operation::kClose, path));
  return Disk::close(std::move(fd), path);
}

Status GatedDisk::make_directory(const fs::path& path) {
  MUSTER_RETURN_IF_ERROR(gate_(Operation::kMakeDirectory, path));
  return Disk::make_directory(path);
}

Status GatedDisk::fsync_directory(const fs::path& path) {
  MUSTER_RETURN_IF_ERROR(gate_(Operation::kFsyncDirectory, path));
  return Disk::fsync_directory(path);
}

Status GatedDisk::rename(const fs::path& from, const fs::path& to) {
  MUSTER_RETURN_IF_ERROR(gate_(Operation::kRename, from));
  return Disk::rename(from, to);
}

Status GatedDisk::remove(const fs::path& path) {
  MUSTER_RETURN_IF_ERROR(gate_(Operation::kRemove, path));
  return Disk::remove(path);
}

Expected<FileDescriptor> VolatileDisk::create(const fs::path& path) {
  auto fd = GatedDisk::create(path);
  if (fd) {
    const std::lock_guard lock(mutex_);
    durable_bytes_[inode(*fd)] = 0;
    pending_.push_back({{}, path});
  }
  return fd;
}

Status VolatileDisk::fsync(const FileDescriptor& fd, const fs::path& path) {
  MUSTER_RETURN_IF_ERROR(GatedDisk::fsync(fd, path));
  const std::lock_guard lock(mutex_);
  if (honest_fsync_) {
    durable_bytes_[inode(fd)] = fs::file_size(path);
  }
  return {};
}

Status VolatileDisk::make_directory(const fs::path& path) {
  const bool existed = fs::exists(path);
  MUSTER_RETURN_IF_ERROR(GatedDisk::make_directory(path));
  const std::lock_guard lock(mutex_);
  if (!existed) {
    pending_.push_back({{}, path});
  }
  return {};
}

Status VolatileDisk::fsync_directory(const fs::path& path) {
  MUSTER_RETURN_IF_ERROR(GatedDisk::fsync_directory(path));
  const std::lock_guard lock(mutex_);
  if (!honest_fsync_) {
    return {};
  }
  std::vector<NameChange> still_pending;
  for (const NameChange& change : pending_) {
    if (change.to.parent_path() != path) {
      still_pending.push_back(change);
      continue;
    }
    // Pending changes inside a folder move along with it.
    for (NameChange& inside : still_pending) {
      inside.from = moved(inside.from, change);
      inside.to = moved(inside.to, change);
    }
  }
  pending_ = std::move(still_pending);
  return {};
}

fs::path VolatileDisk::moved(const fs::path& path, const NameChange& change) {
  return !change.from.empty() && path.parent_path() == change.from ? change.to / path.filename()
                                                                   : path;
}

Status VolatileDisk::rename(const fs::path& from, const fs::path& to) {
  MUSTER_RETURN_IF_ERROR(GatedDisk::rename(from, to));
  const std::lock_guard lock(mutex_);
  pending_.push_back({from, to});
  return {};
}

void VolatileDisk::lose_power(const fs::path& root, bool lose_data, bool lose_names) {
  const std::lock_guard lock(mutex_);
  std::error_code ignored;
  if (lose_names) {
    for (auto change = pending_.rbegin(); change != pending_.rend(); ++change) {
      if (change->from.empty()) {
        fs::remove_all(change->to, ignored);
      } else {
        fs::rename(change->to, change->from, ignored);
      }
    }
  }
  if (!lose_data) {
    return;
  }
  for (const auto& entry : fs::recursive_directory_iterator{root}) {
    struct stat info {};

    ::stat(entry.path().c_str(), &info);
    const auto known = durable_bytes_.find(info.st_ino);
    if (known != durable_bytes_.end() && entry.is_regular_file()) {
      fs::resize_file(entry.path(), known->second);
    }
  }
}

}  // namespace muster::checkpoint::testing
