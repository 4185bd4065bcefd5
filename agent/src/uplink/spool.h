// SPDX-License-Identifier: Apache-2.0
// A bounded first-in-first-out file for items that do not fit in memory during a collector outage.
//
// Record: u32 little-endian length, u64 little-endian XXH3 of the payload, payload. The file only
// extends this process's memory: opening truncates it, and it is not read after a restart. Not
// thread-safe; the I/O thread owns it and may block on the disk.
#pragma once

#include <muster/common/expected.h>
#include <muster/common/file.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace muster::agent {

class Spool {
 public:
  [[nodiscard]] static Expected<Spool> open(
      const std::filesystem::path& path, std::size_t bytes_max);

  // kResourceExhausted if the record does not fit; the file is unchanged.
  [[nodiscard]] Status append(std::span<const std::byte> payload);

  // Removes and returns the oldest record. Must not be empty. kDataLoss if it is damaged: all
  // records of the file are lost, `lost` is their number, and the spool is empty and usable.
  [[nodiscard]] Expected<std::vector<std::byte>> take(std::uint64_t& lost);

  [[nodiscard]] bool empty() const { return records_ == 0; }

  [[nodiscard]] std::uint64_t records() const { return records_; }

  [[nodiscard]] std::size_t bytes() const { return static_cast<std::size_t>(end_ - begin_); }

 private:
  Spool(FileDescriptor file, std::filesystem::path path, std::size_t bytes_max)
      : file_(std::move(file)), path_(std::move(path)), bytes_max_(bytes_max) {}

  [[nodiscard]] Status read_at(std::int64_t offset, std::span<std::byte> bytes) const;
  void clear();

  FileDescriptor file_;
  std::filesystem::path path_;
  std::size_t bytes_max_;
  std::int64_t begin_{0};
  std::int64_t end_{0};
  std::uint64_t records_{0};
};

}  // namespace muster::agent
