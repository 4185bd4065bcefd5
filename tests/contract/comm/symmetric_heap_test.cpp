// The symmetric heap over threads and processes: one address formula, allocation, views, barriers.
#include "world.h"

#include <muster/comm/symmetric_heap.h>

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <numeric>
#include <sstream>

namespace muster::comm {

namespace {

using HeapPointer = Expected<std::unique_ptr<SymmetricHeap>>;

class HeapContract : public testing::TestWithParam<World> {};

std::string name_of(const testing::TestParamInfo<World>& info) {
  std::ostringstream name;
  name << info.param;
  return name.str();
}

std::vector<World> sharing_worlds() {
  std::vector<World> worlds;
  for (int size = 1; size <= 4; ++size) {
    worlds.push_back({Backend::kLocal, size});
    worlds.push_back({Backend::kShm, size});
  }
  return worlds;
}

INSTANTIATE_TEST_SUITE_P(SharedMemory, HeapContract, testing::ValuesIn(sharing_worlds()), name_of);

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// "" when `status` is a success: what tests return from a rank.
std::string report(const Status& status) {
  return status.ok() ? std::string{} : status.to_string();
}

std::string with_heap(
    Communicator& c, std::size_t bytes, const std::function<std::string(SymmetricHeap&)>& work) {
  auto heap = SymmetricHeap::create(c, bytes, soon());
  return heap ? work(**heap) : heap.status().to_string();
}

std::int64_t value_of(int writer, int reader) {
  return 1000 * (writer + 1) + reader;
}

TEST_P(HeapContract, EveryRankReachesEveryChunkByTheSameFormula) {
  expect_success(GetParam(), [](Communicator& c) {
    return with_heap(c, 100'000, [&](SymmetricHeap& heap) {
      if (heap.rank() != c.rank() || heap.size() != c.size() || heap.stride() != 102'400) {
        return std::string{"rank, size or stride"};
      }
      const auto size = static_cast<std::size_t>(c.size());
      const auto mail = heap.allocate(size * sizeof(std::int64_t));
      if (!mail || !heap.seal(soon()).ok()) {
        return std::string{"allocate or seal"};
      }
      for (int peer = 0; peer < c.size(); ++peer) {  // Letter r of every chunk is from rank r.
        heap.at<std::int64_t>(peer, *mail)[c.rank()] = value_of(c.rank(), peer);
      }
      if (const Status met = heap.barrier("delivery", soon()); !met.ok()) {
        return met.to_string();
      }
      for (int peer = 0; peer < c.size(); ++peer) {
        for (int writer = 0; writer < c.size(); ++writer) {
          if (heap.at<std::int64_t>(peer, *mail)[writer] != value_of(writer, peer)) {
            return "letter of " + std::to_string(writer) + " in " + std::to_string(peer);
          }
        }
      }
      return report(heap.barrier("end", soon()));
    });
  });
}

TEST_P(HeapContract, ChunksAreZeroedAndOwnMemoryKnowsItsOffset) {
  expect_success(GetParam(), [](Communicator& c) {
    return with_heap(c, 8192, [&](SymmetricHeap& heap) {
      for (std::size_t byte = 0; byte < heap.stride(); ++byte) {
        if (*heap.pointer(c.rank(), byte) != std::byte{0}) {
          return "byte " + std::to_string(byte) + " is not zero";
        }
      }
      const auto* memory = heap.at<float>(c.rank(), 4096 + 12);
      return heap.offset_of(memory) == 4108 ? std::string{} : std::string{"offset_of"};
    });
  });
}

TEST_P(HeapContract, DifferentSizesAreRefusedOnAllRanksWithBothNumbers) {
  if (GetParam().size < 2) {
    GTEST_SKIP() << "nobody to disagree with";
  }
  const auto reports = run_world(GetParam(), [](Communicator& c) {
    const auto heap = SymmetricHeap::create(c, c.rank() == 1 ? 8192 : 4096, soon());
    return heap.status().to_string();
  });
  for (const std::string& report : reports) {
    EXPECT_TRUE(holds(report, "invalid argument")) << report;
    EXPECT_TRUE(holds(report, "symmetric_heap of 4096 bytes")) << report;
    EXPECT_TRUE(holds(report, "symmetric_heap of 8192 bytes")) << report;
  }
}

TEST_P(HeapContract, AllocationsAreAlignedDisjointAndBounded) {
  expect_success(GetParam(), [](Communicator& c) {
    return with_heap(c, 3 * 4096, [&](SymmetricHeap& heap) {
      const auto first = heap.allocate(10);
      const auto second = heap.allocate(1);
      const auto third = heap.allocate(100, 4096);
      const auto fourth = heap.allocate(7, 1);
      if (*first != 0 || *second != 64 || *third != 4096 || *fourth != 4196) {
        return std::string{"offsets"};
      }
      const Status full = heap.allocate(9000).status();
      if (full.code() != StatusCode::kResourceExhausted || !holds(full.message(), "9000 bytes") ||
          !holds(full.message(), "8064 left of 12288")) {
        return full.to_string();
      }
      if (!heap.allocate(8064).ok() || heap.allocate(1).ok() || !heap.allocate(0).ok()) {
        return std::string{"what is left can be taken, and no more"};
      }
      return report(heap.seal(soon()));
    });
  });
}

TEST_P(HeapContract, AlignmentsThatAreNotPowersOfTwoUpToAPageAreRefused) {
  expect_success(GetParam(), [](Communicator& c) {
    return with_heap(c, 4096, [&](SymmetricHeap& heap) {
      for (const std::size_t alignment : {0UL, 3UL, 8192UL}) {
        const Status refused = heap.allocate(8, alignment).status();
        if (refused.code() != StatusCode::kInvalidArgument ||
            !holds(refused.message(), "alignment " + std::to_string(alignment))) {
          return refused.to_string();
        }
      }
      return report(heap.seal(soon()));
    });
  });
}

}  // namespace

}  // namespace muster::comm
