// SPDX-License-Identifier: Apache-2.0
// The symmetric heap over threads and processes: one address formula, allocation, views, barriers.
#include "tests/contract/comm/heap_world.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

namespace muster::comm {

namespace {

class HeapContract : public testing::TestWithParam<World> {};

// With peers to disagree with.
class HeapOfThree : public testing::TestWithParam<World> {};

class HeapOfFour : public testing::TestWithParam<World> {};

INSTANTIATE_TEST_SUITE_P(
    SharedMemory, HeapContract, testing::ValuesIn(sharing_worlds()), world_name);
INSTANTIATE_TEST_SUITE_P(
    SharedMemory, HeapOfThree, testing::ValuesIn(sharing_worlds_of(3)), world_name);
INSTANTIATE_TEST_SUITE_P(
    SharedMemory, HeapOfFour, testing::ValuesIn(sharing_worlds_of(4)), world_name);

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

TEST_P(HeapOfThree, DifferentSizesAreRefusedOnAllRanksWithBothNumbers) {
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
            !holds(refused.message(), "got " + std::to_string(alignment))) {
          return refused.to_string();
        }
      }
      return report(heap.seal(soon()));
    });
  });
}

// Allocates as all ranks should, but rank `odd` differently; returns the message of seal.
Status seal_with_odd_rank(Communicator& c, SymmetricHeap& heap, int odd, bool same_total) {
  const bool is_odd = c.rank() == odd;
  const auto first = heap.allocate(is_odd ? 128 : 64);
  const auto second = heap.allocate(is_odd && same_total ? 64 : 128);
  return first.ok() && second.ok() ? heap.seal(soon()) : internal_error("allocate");
}

TEST_P(HeapOfThree, SealNamesTheRankThatAllocatedDifferently) {
  for (const int odd : {0, 1, 2}) {
    for (const bool same_total : {false, true}) {
      const auto reports = run_world(GetParam(), [&](Communicator& c) {
        return with_heap(c, 4096, [&](SymmetricHeap& heap) {
          return seal_with_odd_rank(c, heap, odd, same_total).to_string();
        });
      });
      const std::string name = "differ: rank " + std::to_string(odd);
      for (const std::string& report : reports) {
        EXPECT_TRUE(holds(report, "invalid argument: ")) << report;
        EXPECT_TRUE(holds(report, name)) << report;
        EXPECT_TRUE(holds(report, "made 2 allocations up to offset")) << report;
      }
    }
  }
}

TEST_P(HeapOfThree, AllocationsAfterASealAreComparedByTheNext) {
  const auto reports = run_world(GetParam(), [](Communicator& c) {
    return with_heap(c, 4096, [&](SymmetricHeap& heap) {
      const bool fits = heap.allocate(64).ok();
      const Status first = heap.seal(soon());
      if (!fits || !first.ok()) {
        return "first: " + first.to_string();
      }
      if (c.rank() == 1) {
        static_cast<void>(heap.allocate(64));
      }
      return heap.seal(soon()).to_string();
    });
  });
  for (const std::string& report : reports) {
    EXPECT_TRUE(holds(report, "allocations in the symmetric heap differ: rank 1")) << report;
  }
}

// --- views ---

TEST_P(HeapContract, AViewShowsThePagesOfSeveralRanksInOnePiece) {
  constexpr std::size_t kPage = kSymmetricGranularity;
  expect_success(GetParam(), [](Communicator& c) {
    return with_heap(c, 4 * kPage, [&](SymmetricHeap& heap) {
      // Page 1 of every rank, then page 3 of rank 0 twice.
      std::vector<SymmetricHeap::Piece> pieces;
      for (int peer = 0; peer < c.size(); ++peer) {
        pieces.push_back({peer, kPage, kPage});
      }
      pieces.insert(pieces.end(), 2, SymmetricHeap::Piece{0, 3 * kPage, kPage});
      const auto view = heap.map_view(pieces);
      if (!view || view->size() != pieces.size() * kPage) {
        return "view: " + view.status().to_string();
      }
      std::memset(heap.pointer(c.rank(), kPage), c.rank() + 1, kPage);
      const Status written = heap.barrier("written", soon());
      for (int peer = 0; peer < c.size() && written.ok(); ++peer) {
        for (std::size_t byte = 0; byte < kPage; ++byte) {
          if (std::to_integer<int>((*view)[static_cast<std::size_t>(peer) * kPage + byte]) !=
              peer + 1) {
            return "byte " + std::to_string(byte) + " of rank " + std::to_string(peer);
          }
        }
      }
      const auto twice = view->subspan(static_cast<std::size_t>(c.size()) * kPage);
      if (c.rank() == c.size() - 1) {  // Through a view into another rank's chunk.
        twice[kPage + 7] = std::byte{42};
      }
      const Status again = heap.barrier("written through the view", soon());
      const bool seen =
          twice[7] == std::byte{42} && *heap.pointer(0, 3 * kPage + 7) == std::byte{42};
      return seen ? report(again) : std::string{"a write through a view is not seen"};
    });
  });
}

TEST_P(HeapContract, PiecesThatAreNoWholePagesOfAChunkAreRefusedAndNamed) {
  struct Case {
    SymmetricHeap::Piece piece;
    std::string why;
  };

  constexpr std::size_t kPage = kSymmetricGranularity;
  constexpr std::size_t kHuge = ~std::size_t{0} / kPage * kPage;
  expect_success(GetParam(), [](Communicator& c) {
    return with_heap(c, 2 * kPage, [&](SymmetricHeap& heap) {
      const std::vector<Case> cases{
          {{c.size(), 0, kPage}, "must name a rank of this group"},
          {{-1, 0, kPage}, "must name a rank of this group"},
          {{0, 0, 0}, "must consist of whole pages"},
          {{0, 64, kPage}, "must consist of whole pages"},
          {{0, 0, kPage + 1}, "must consist of whole pages"},
          {{0, kPage, 2 * kPage}, "must end within the chunk of 8192 bytes"},
          {{0, kHuge, kPage}, "must end within the chunk"},
          {{0, kPage, kHuge}, "must end within the chunk"},
      };
      for (const Case& bad : cases) {
        const std::vector<SymmetricHeap::Piece> pieces{{0, 0, kPage}, bad.piece};
        const Status status = heap.map_view(pieces).status();
        if (status.code() != StatusCode::kInvalidArgument || !holds(status.message(), bad.why) ||
            !holds(status.message(), "piece 1")) {
          return bad.why + ": " + status.to_string();
        }
      }
      if (heap.map_view({}).ok()) {
        return std::string{"a view of nothing"};
      }
      return report(heap.barrier("a refused view poisons nothing", soon()));
    });
  });
}

// --- life and death ---

TEST_P(HeapOfThree, ARankThatIsDoneTakesNothingAwayFromTheOthers) {
  expect_success(GetParam(), [](Communicator& c) {
    auto heap = SymmetricHeap::create(c, 4096, soon());
    if (!heap) {
      return heap.status().to_string();
    }
    *(*heap)->at<int>(c.rank(), 0) = 7 + c.rank();
    const std::vector<SymmetricHeap::Piece> pieces{{0, 0, 4096}};
    const auto view = (*heap)->map_view(pieces);
    Status status = (*heap)->barrier("written", soon());
    for (int leaver = 0; leaver < c.size() && status.ok(); ++leaver) {  // One after the other.
      if (c.rank() >= leaver && (*(*heap)->at<int>(0, 0) != 7 || view->front() != std::byte{7})) {
        return "after " + std::to_string(leaver) + " ranks left";
      }
      if (c.rank() == leaver) {
        heap->reset();
      }
      status = c.barrier(soon());
    }
    return report(status);
  });
}

TEST_P(HeapOfThree, WaitingForARankThatHasDestroyedItsHeapEndsBeforeTheDeadline) {
  const auto reports = run_world(GetParam(), [](Communicator& c) {
    auto heap = SymmetricHeap::create(c, 4096, soon());
    const Status met = (*heap)->barrier("plan of layer 3", soon());
    if (!met.ok() || c.rank() == 1) {
      heap->reset();
      // Stays in the session: only its heap is gone. The end of the others' wait ends this too.
      return c.barrier(soon()).to_string();
    }
    return (*heap)->barrier("dispatch of layer 3", soon()).to_string();
  });
  for (const std::string& report : reports) {
    EXPECT_TRUE(holds(
        report,
        "has destroyed its symmetric heap; it has not reached "
        "'dispatch of layer 3'; it was last seen in 'plan of layer 3'"))
        << report;
  }
  EXPECT_TRUE(holds(reports.at(0), "rank 1")) << reports.at(0);
}

TEST_P(HeapContract, MoreHeapsThanGroupsCanComeAndGo) {
  expect_success(GetParam(), [](Communicator& c) {
    for (int round = 0; round < 80; ++round) {
      const std::string error = with_heap(c, 4096, [&](SymmetricHeap& heap) {
        if (std::exchange(*heap.at<int>(c.rank(), 128), 5) != 0) {
          return std::string{"memory was not zeroed"};
        }
        return report(heap.barrier("round", soon()));
      });
      if (!error.empty()) {
        return "round " + std::to_string(round) + ": " + error;
      }
    }
    return std::string{};
  });
}

TEST_P(HeapContract, TwoHeapsOfOneGroupAreApart) {
  expect_success(GetParam(), [](Communicator& c) {
    return with_heap(c, 4096, [&](SymmetricHeap& first) {
      return with_heap(c, 8192, [&](SymmetricHeap& second) {
        *first.at<int>(c.rank(), 0) = 1;
        *second.at<int>(c.rank(), 0) = 2;
        Status met = first.barrier("first", soon());
        if (met.ok()) {
          met = second.barrier("second", soon());
        }
        const int next = (c.rank() + 1) % c.size();
        const bool apart = *first.at<int>(next, 0) == 1 && *second.at<int>(next, 0) == 2;
        return apart ? report(met) : std::string{"the heaps overlap"};
      });
    });
  });
}

TEST_P(HeapOfFour, GroupsThatWereSplitOffGetHeapsOfTheirOwnAtTheSameTime) {
  expect_success(GetParam(), [](Communicator& c) {
    const auto half = c.split(c.rank() % 2, -c.rank(), soon());  // 2, 0 and 3, 1.
    for (int round = 0; round < 20; ++round) {
      const std::string error = with_heap(**half, 5000, [&](SymmetricHeap& heap) {
        const int peer = 1 - heap.rank();
        *heap.at<int>(peer, 64) = 10 + c.rank();
        const Status met = heap.barrier("swap", soon());
        const int expected = 10 + (c.rank() + 2) % 4;
        return *heap.at<int>(heap.rank(), 64) == expected ? report(met)
                                                          : std::string{"wrong neighbour"};
      });
      if (!error.empty()) {
        return error;
      }
    }
    return std::string{};
  });
}

TEST(SymmetricHeapBackends, GlooIsRefusedWithTheRemedy) {
  if (!gloo_is_available()) {
    GTEST_SKIP() << "this build has no Gloo";
  }
  expect_success({Backend::kGloo, 2}, [](Communicator& c) {
    const Status refused = SymmetricHeap::create(c, 4096, soon()).status();
    const bool named = refused.code() == StatusCode::kUnimplemented &&
                       holds(refused.message(), "\"gloo\"") &&
                       holds(refused.message(), "MUSTER_COMM=shm");
    return named ? report(c.barrier(soon())) : refused.to_string();  // The group stays usable.
  });
}

}  // namespace

}  // namespace muster::comm
