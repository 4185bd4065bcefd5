// SPDX-License-Identifier: Apache-2.0
// Files that survive a crash: every write is checked, fsynced and renamed into place.
//
// All functions block, return a Status that names the path, and never fsync a file again after an
// error on it (the kernel may have dropped the pages): the caller abandons the file.
#pragma once

#include <muster/common/expected.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace muster {

// A file descriptor that closes itself.
class FileDescriptor {
 public:
  FileDescriptor() = default;

  explicit FileDescriptor(int fd) : fd_(fd) {}

  ~FileDescriptor();
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  FileDescriptor(FileDescriptor&& other) noexcept;
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;

  [[nodiscard]] int get() const { return fd_; }

  [[nodiscard]] bool valid() const { return fd_ >= 0; }

  // Gives up ownership.
  [[nodiscard]] int release();

 private:
  int fd_{-1};
};

// At most `size_max_bytes`; larger files are kResourceExhausted, missing ones kNotFound.
[[nodiscard]] Expected<std::string> read_file(
    const std::filesystem::path& path, std::size_t size_max_bytes = std::size_t{1} << 30);

// The same, but kDataLoss for what is not a regular file: opening a FIFO would wait for a writer.
[[nodiscard]] Expected<std::string> read_regular_file(
    const std::filesystem::path& path, std::size_t size_max_bytes = std::size_t{1} << 30);

// Writes `path`.tmp, fsyncs, renames over `path`, fsyncs the folder.
[[nodiscard]] Status write_file_durably(
    const std::filesystem::path& path, std::string_view content);

[[nodiscard]] Status write_all(int fd, std::span<const std::byte> bytes, std::string_view name);
[[nodiscard]] Status fsync_directory(const std::filesystem::path& path);
[[nodiscard]] Status create_directories(const std::filesystem::path& path);

// Bytes free to this user on the file system of `path`.
[[nodiscard]] Expected<std::uint64_t> free_bytes(const std::filesystem::path& path);

// An exclusive flock on `path` (created if missing), held until destroyed. kAlreadyExists when
// another process holds it; the file's content (its owner's note) is in the message.
class FileLock {
 public:
  [[nodiscard]] static Expected<FileLock> acquire(
      const std::filesystem::path& path, std::string_view owner_note);

 private:
  explicit FileLock(FileDescriptor fd) : fd_(std::move(fd)) {}

  FileDescriptor fd_;
};

}  // namespace muster
