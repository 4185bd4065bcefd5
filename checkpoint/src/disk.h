// SPDX-License-Identifier: Apache-2.0
// Every change the checkpoint module makes on disk goes through here, one virtual call each, so
// that tests can fail or crash the k-th of them.
//
// Thread-safety: stateless; used by one writer thread at a time.
#pragma once

#include <muster/common/expected.h>
#include <muster/common/file.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

namespace muster::checkpoint {

// The real file system. Errors name the path; after one the caller abandons the file.
class Disk {
 public:
  Disk() = default;
  Disk(const Disk&) = delete;
  Disk& operator=(const Disk&) = delete;
  Disk(Disk&&) = delete;
  Disk& operator=(Disk&&) = delete;
  virtual ~Disk() = default;

  // A new empty file; a leftover of the same name is unlinked first, never written over.
  [[nodiscard]] virtual Expected<FileDescriptor> create(const std::filesystem::path& path);
  [[nodiscard]] virtual Status write(
      const FileDescriptor& fd,
      std::span<const std::byte> bytes,
      const std::filesystem::path& path);
  [[nodiscard]] virtual Status fsync(const FileDescriptor& fd, const std::filesystem::path& path);
  [[nodiscard]] virtual Status close(FileDescriptor fd, const std::filesystem::path& path);

  // With missing parents; one that exists is fine.
  [[nodiscard]] virtual Status make_directory(const std::filesystem::path& path);
  [[nodiscard]] virtual Status fsync_directory(const std::filesystem::path& path);
  // Refuses to replace a non-empty folder.
  [[nodiscard]] virtual Status rename(
      const std::filesystem::path& from, const std::filesystem::path& to);
  // A file or an empty folder; a missing one is fine.
  [[nodiscard]] virtual Status remove(const std::filesystem::path& path);

  [[nodiscard]] virtual Expected<std::uint64_t> free_bytes(const std::filesystem::path& path);
};

// create, write, fsync, close.
[[nodiscard]] Status write_new_file(
    Disk& disk, const std::filesystem::path& path, std::string_view content);

// A folder and what is in it, depth first.
[[nodiscard]] Status remove_tree(Disk& disk, const std::filesystem::path& path);

}  // namespace muster::checkpoint
