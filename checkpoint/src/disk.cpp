// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/src/disk.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>
#include <vector>

namespace muster::checkpoint {

namespace fs = std::filesystem;

Expected<FileDescriptor> Disk::create(const fs::path& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
    return io_error(path.string(), errno);
  }
  FileDescriptor fd{::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)};
  if (!fd.valid()) {
    return io_error(path.string(), errno);
  }
  return fd;
}

Status Disk::write(
    const FileDescriptor& fd, std::span<const std::byte> bytes, const fs::path& path) {
  return write_all(fd.get(), bytes, path.string());
}

Status Disk::fsync(const FileDescriptor& fd, const fs::path& path) {
  return ::fsync(fd.get()) == 0 ? Status{} : io_error("fsync " + path.string(), errno);
}

Status Disk::close(FileDescriptor fd, const fs::path& path) {
  return ::close(fd.release()) == 0 ? Status{} : io_error("close " + path.string(), errno);
}

Status Disk::make_directory(const fs::path& path) {
  return muster::create_directories(path);
}

Status Disk::fsync_directory(const fs::path& path) {
  return muster::fsync_directory(path);
}

Status Disk::rename(const fs::path& from, const fs::path& to) {
  return ::rename(from.c_str(), to.c_str()) == 0
             ? Status{}
             : io_error("rename " + from.string() + " to " + to.string(), errno);
}

Status Disk::remove(const fs::path& path) {
  std::error_code error;
  fs::remove(path, error);
  return error ? io_error("remove " + path.string(), error.value()) : Status{};
}

Expected<std::uint64_t> Disk::free_bytes(const fs::path& path) {
  return muster::free_bytes(path);
}

Status write_new_file(Disk& disk, const fs::path& path, std::string_view content) {
  MUSTER_ASSIGN_OR_RETURN(FileDescriptor fd, disk.create(path));
  const auto bytes = std::as_bytes(std::span{content.data(), content.size()});
  MUSTER_RETURN_IF_ERROR(disk.write(fd, bytes, path));
  MUSTER_RETURN_IF_ERROR(disk.fsync(fd, path));
  return disk.close(std::move(fd), path);
}

Status remove_tree(Disk& disk, const fs::path& path) {
  std::error_code error;
  std::vector<fs::path> children;
  for (auto entry = fs::directory_iterator{path, error}; !error && entry != fs::end(entry);
       entry.increment(error)) {
    children.push_back(entry->path());
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    return io_error(path.string(), error.value());
  }
  for (const fs::path& child : children) {
    const bool folder = fs::is_directory(fs::symlink_status(child, error));
    MUSTER_RETURN_IF_ERROR(folder ? remove_tree(disk, child) : disk.remove(child));
  }
  return disk.remove(path);
}

}  // namespace muster::checkpoint
