// SPDX-License-Identifier: Apache-2.0
#include <muster/common/file.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

namespace muster {

namespace fs = std::filesystem;

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

FileDescriptor::FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.release()) {}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) {
      ::close(fd_);
    }
    fd_ = other.release();
  }
  return *this;
}

int FileDescriptor::release() {
  return std::exchange(fd_, -1);
}

namespace {

Expected<FileDescriptor> open_to_read(const fs::path& path, int flags) {
  FileDescriptor fd{::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags)};
  if (!fd.valid()) {
    const int error = errno;
    if (error == ENOENT) {
      return not_found(path, ": no such file");
    }
    return io_error(path.string(), error);
  }
  return fd;
}

Expected<std::string> read_all(
    const FileDescriptor& fd, const fs::path& path, std::size_t size_max_bytes) {
  std::string content;
  std::array<char, 65536> buffer{};
  while (true) {
    const ssize_t count = ::read(fd.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      return io_error(path.string(), errno);
    }
    if (count == 0) {
      return content;
    }
    content.append(buffer.data(), static_cast<std::size_t>(count));
    if (content.size() > size_max_bytes) {
      return resource_exhausted(path, ": larger than ", size_max_bytes, " bytes");
    }
  }
}

}  // namespace

Expected<std::string> read_file(const fs::path& path, std::size_t size_max_bytes) {
  MUSTER_ASSIGN_OR_RETURN(const FileDescriptor fd, open_to_read(path, 0));
  return read_all(fd, path, size_max_bytes);
}

Expected<std::string> read_regular_file(const fs::path& path, std::size_t size_max_bytes) {
  MUSTER_ASSIGN_OR_RETURN(const FileDescriptor fd, open_to_read(path, O_NONBLOCK));

  struct stat info {};

  if (::fstat(fd.get(), &info) != 0) {
    return io_error(path.string(), errno);
  }
  if (!S_ISREG(info.st_mode)) {
    return data_loss(path, " is not a regular file");
  }
  return read_all(fd, path, size_max_bytes);
}

Status write_all(int fd, std::span<const std::byte> bytes, std::string_view name) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      return io_error(name, errno);
    }
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return {};
}

Status fsync_directory(const fs::path& path) {
  const FileDescriptor fd{::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (!fd.valid() || ::fsync(fd.get()) != 0) {
    return io_error(path.string(), errno);
  }
  return {};
}

namespace {

Status write_and_sync(const fs::path& path, std::string_view content) {
  const FileDescriptor fd{::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)};
  if (!fd.valid()) {
    return io_error(path.string(), errno);
  }
  MUSTER_RETURN_IF_ERROR(
      write_all(fd.get(), std::as_bytes(std::span{content.data(), content.size()}), path.string()));
  return ::fsync(fd.get()) == 0 ? Status{} : io_error(path.string(), errno);
}

}  // namespace

Status write_file_durably(const fs::path& path, std::string_view content) {
  const fs::path temporary = path.string() + ".tmp";
  Status status = write_and_sync(temporary, content);
  if (status.ok() && ::rename(temporary.c_str(), path.c_str()) != 0) {
    status = io_error(path.string(), errno);
  }
  if (!status.ok()) {
    ::unlink(temporary.c_str());  // On a full disk the room is needed by others.
    return status;
  }
  return fsync_directory(path.has_parent_path() ? path.parent_path() : fs::path{"."});
}

Status create_directories(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) {
    return io_error(path.string(), error.value());
  }
  return {};
}

Expected<std::uint64_t> free_bytes(const fs::path& path) {
  struct statvfs info {};

  if (::statvfs(path.c_str(), &info) != 0) {
    return io_error(path.string(), errno);
  }
  return std::uint64_t{info.f_bavail} * info.f_frsize;
}

Expected<FileLock> FileLock::acquire(const fs::path& path, std::string_view owner_note) {
  FileDescriptor fd{::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)};
  if (!fd.valid()) {
    return io_error(path.string(), errno);
  }
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) {
      return io_error(path.string(), errno);
    }
    const auto owner = read_file(path, 4096);
    return already_exists(
        path.string() + " is locked by another process (" + owner.value_or("owner unknown") + ")");
  }
  if (::ftruncate(fd.get(), 0) != 0) {
    return io_error(path.string(), errno);
  }
  MUSTER_RETURN_IF_ERROR(write_all(
      fd.get(), std::as_bytes(std::span{owner_note.data(), owner_note.size()}), path.string()));
  return FileLock{std::move(fd)};
}

}  // namespace muster
