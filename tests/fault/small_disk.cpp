// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/small_disk.h"

#include <muster/common/check.h>
#include <muster/common/file.h>

#include <fcntl.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

namespace muster::test {

SmallDisk::SmallDisk(std::string folder, std::size_t bytes) : folder_(std::move(folder)) {
  std::filesystem::create_directories(folder_);
  const std::string size = "size=" + std::to_string(bytes);
  if (::mount("muster-test", folder_.c_str(), "tmpfs", 0, size.c_str()) != 0) {
    why_not_ = std::string{"mounting a tmpfs: "} + std::strerror(errno);
  }
}

SmallDisk::~SmallDisk() {
  if (mounted()) {
    ::umount2(folder_.c_str(), MNT_DETACH);
  }
}

void SmallDisk::fill() const {
  const FileDescriptor file{
      ::open((folder_ + "/filler").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600)};
  MUSTER_CHECK(file.valid(), "creating the filler");
  const std::vector<char> block(std::size_t{64} << 10U);
  std::size_t size = block.size();
  while (size > 0) {
    if (::write(file.get(), block.data(), size) < 0) {
      size /= 2;
    }
  }
}

void SmallDisk::make_read_only() const {
  MUSTER_CHECK(
      ::mount(nullptr, folder_.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr) == 0,
      "making the disk read-only");
}

void SmallDisk::make_room() const {
  std::filesystem::remove(folder_ + "/filler");
}

}  // namespace muster::test
