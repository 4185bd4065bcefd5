// SPDX-License-Identifier: Apache-2.0
// A file system of a few megabytes over a folder, for tests of a full disk. Needs the right to
// mount; without it `mounted` is false and `why_not` has the reason.
#pragma once

#include <cstddef>
#include <string>

namespace muster::test {

class SmallDisk {
 public:
  SmallDisk(std::string folder, std::size_t bytes);
  ~SmallDisk();
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  SmallDisk(SmallDisk&&) = delete;
  SmallDisk& operator=(SmallDisk&&) = delete;

  [[nodiscard]] bool mounted() const { return why_not_.empty(); }

  [[nodiscard]] const std::string& why_not() const { return why_not_; }

  // Nothing on it can be changed from now on.
  void make_read_only() const;
  // Writes a file until the disk is full.
  void fill() const;
  // Removes that file.
  void make_room() const;

 private:
  std::string folder_;
  std::string why_not_;
};

}  // namespace muster::test
