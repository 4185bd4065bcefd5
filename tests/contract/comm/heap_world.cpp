// SPDX-License-Identifier: Apache-2.0
#include "tests/contract/comm/heap_world.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <mutex>
#include <sstream>

namespace muster::comm {

std::vector<World> sharing_worlds_of(int size) {
  return {{Backend::kLocal, size}, {Backend::kShm, size}};
}

std::vector<World> sharing_worlds() {
  std::vector<World> worlds;
  for (int size = 1; size <= 4; ++size) {
    for (const World& world : sharing_worlds_of(size)) {
      worlds.push_back(world);
    }
  }
  return worlds;
}

std::string report(const Status& status) {
  return status.ok() ? std::string{} : status.to_string();
}

std::string with_heap(
    Communicator& c, std::size_t bytes, const std::function<std::string(SymmetricHeap&)>& work) {
  auto heap = SymmetricHeap::create(c, bytes, soon());
  return heap ? work(**heap) : heap.status().to_string();
}

Footprint footprint() {
  // Ranks that are threads would count each other's descriptors of this very look.
  static std::mutex looking;
  const std::scoped_lock lock{looking};
  Footprint found;
  for (const auto& entry : std::filesystem::directory_iterator{"/proc/self/fd"}) {
    std::error_code ignored;  // The iterator's own descriptor goes while we look.
    const auto target = std::filesystem::read_symlink(entry.path(), ignored).string();
    ++found.descriptors;
    if (holds(target, "memfd:muster")) {
      ++found.memory_files;

      struct stat state {};

      if (::stat(entry.path().c_str(), &state) == 0) {
        found.held_bytes += static_cast<std::size_t>(state.st_blocks) * 512;
      }
    }
  }
  std::ifstream maps{"/proc/self/maps"};
  for (std::string line; std::getline(maps, line);) {
    found.mappings += holds(line, "memfd:muster") ? 1 : 0;
  }
  return found;
}

}  // namespace muster::comm
