// SPDX-License-Identifier: Apache-2.0
// Support for the suites of the symmetric heap: worlds of threads and processes, and reports.
#pragma once

#include "tests/contract/comm/world.h"

#include <muster/comm/symmetric_heap.h>

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace muster::comm {

// Backends whose ranks share memory, with 1 to 4 ranks, or with `size`.
[[nodiscard]] std::vector<World> sharing_worlds();
[[nodiscard]] std::vector<World> sharing_worlds_of(int size);

// "" for a success: what a rank reports.
[[nodiscard]] std::string report(const Status& status);

// Runs `work` with a heap of `bytes` per rank; reports why there is none.
[[nodiscard]] std::string with_heap(
    Communicator& c, std::size_t bytes, const std::function<std::string(SymmetricHeap&)>& work);

// Open descriptors of this process, and mappings, that name a memory file of muster.
struct Footprint {
  int descriptors{0};         // All, memory files or not.
  int memory_files{0};        // Descriptors of memory files.
  int mappings{0};            // Of memory files.
  std::size_t held_bytes{0};  // Counts the memory files that have descriptors here.
};

[[nodiscard]] Footprint footprint();

}  // namespace muster::comm
