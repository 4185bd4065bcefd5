// SPDX-License-Identifier: Apache-2.0
// A folder that exists for the length of a test.
#pragma once

#include <muster/common/check.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace muster::test {

// Creates a new folder under `parent` and removes it with its contents in the destructor.
class ScratchFolder {
 public:
  explicit ScratchFolder(
      const std::filesystem::path& parent = std::filesystem::temp_directory_path()) {
    // Not named after muster: tests search /dev/shm for files that muster left behind.
    std::string name = (parent / "scratch-XXXXXX").string();
    MUSTER_CHECK(::mkdtemp(name.data()) != nullptr, "mkdtemp " + name);
    path_ = name;
  }

  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ScratchFolder(ScratchFolder&&) = delete;
  ScratchFolder& operator=(ScratchFolder&&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

  [[nodiscard]] std::filesystem::path operator/(const std::filesystem::path& name) const {
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace muster::test
