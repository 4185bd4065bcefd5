// SPDX-License-Identifier: Apache-2.0
// Pages and descriptors that a symmetric heap takes from the system, and that it returns them all.
#include "tests/contract/comm/heap_world.h"

#include <muster/common/file.h>

#include <gtest/gtest.h>

#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <sstream>

namespace muster::comm {

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kGiB = std::size_t{1} << 30;

class HeapPagesContract : public testing::TestWithParam<World> {};

class HeapPagesOfThree : public testing::TestWithParam<World> {};

std::vector<World> small_worlds() {
  return {{Backend::kLocal, 1}, {Backend::kShm, 1}, {Backend::kLocal, 3}, {Backend::kShm, 3}};
}

INSTANTIATE_TEST_SUITE_P(
    SharedMemory, HeapPagesContract, testing::ValuesIn(small_worlds()), world_name);
INSTANTIATE_TEST_SUITE_P(
    SharedMemory, HeapPagesOfThree, testing::ValuesIn(sharing_worlds_of(3)), world_name);

std::string describe(const Footprint& f) {
  return std::to_string(f.descriptors) + " descriptors, " + std::to_string(f.memory_files) +
         " memory files, " + std::to_string(f.mappings) + " mappings, " +
         std::to_string(f.held_bytes / kMiB) + " MiB";
}

// The total of all ranks: threads share a process, so they measure one after the other.
TEST_P(HeapPagesContract, DescriptorsAndMappingsAreThoseOfBeforeOnceTheHeapIsGone) {
  expect_success(GetParam(), [](Communicator& c) {
    const auto met = [&] { return c.barrier(soon()).ok(); };
    const Footprint before = footprint();
    bool ok = met();
    for (int round = 0; round < 3 && ok; ++round) {
      auto heap = SymmetricHeap::create(c, kMiB, soon());
      const std::vector<SymmetricHeap::Piece> pieces{{0, 4096, 4096}, {c.size() - 1, 0, 8192}};
      ok = heap.ok() && (*heap)->map_view(pieces).ok() && (*heap)->map_view(pieces).ok() && met();
      const Footprint meanwhile = footprint();
      if (meanwhile.mappings < before.mappings + 6) {
        return "the mappings are not seen: " + describe(meanwhile);
      }
      ok = ok && met();
    }
    ok = ok && met();  // All heaps are gone.
    const Footprint after = footprint();
    ok = ok && met();
    // A slow wait may have opened handles on peers, which belong to the session.
    const int handles = c.backend() == "shm" ? c.size() : 0;
    const bool same = after.memory_files == before.memory_files &&
                      after.mappings == before.mappings &&
                      after.descriptors <= before.descriptors + handles;
    return ok && same ? std::string{} : describe(before) + " became " + describe(after);
  });
}

TEST(ShmHeapPages, AProcessHoldsOneDescriptorForAllHeapsOfASession) {
  const Rendezvous rendezvous;
  const auto reports = test::run_ranks(2, [&](int rank) {
    const Footprint before = footprint();
    std::string error;
    {
      auto c = connect_shm(rendezvous.options(rank, 2), soon());
      const auto first = SymmetricHeap::create(**c, kMiB, soon());
      const auto second = SymmetricHeap::create(**c, kMiB, soon());
      const Footprint both = footprint();
      if (!first || !second || both.memory_files != before.memory_files + 1) {
        error = "with two heaps: " + describe(both);
      }
    }
    const Footprint after = footprint();
    if (after.descriptors != before.descriptors || after.mappings != before.mappings) {
      error += " after the session: " + describe(before) + " became " + describe(after);
    }
    return error;
  });
  EXPECT_EQ(reports, (std::vector<std::string>{"", ""}));
}

TEST_P(HeapPagesContract, OnlyTouchedPagesTakeMemory) {
  expect_success(GetParam(), [](Communicator& c) {
    return with_heap(c, 8 * kGiB, [&](SymmetricHeap& heap) {
      const std::size_t before = footprint().held_bytes;
      Status met = c.barrier(soon());
      *heap.pointer(c.rank(), 8 * kGiB - 1) = std::byte{1};
      *heap.pointer((c.rank() + 1) % c.size(), 5 * kGiB) = std::byte{2};
      if (met.ok()) {
        met = heap.barrier("touched", soon());
      }
      const std::size_t taken = footprint().held_bytes - before;
      const auto least = static_cast<std::size_t>(c.size()) * 2 * 4096;
      // The system may take whole huge pages.
      if (taken < least || taken > static_cast<std::size_t>(c.size()) * 8 * kMiB) {
        return "taken: " + std::to_string(taken);
      }
      return report(met.ok() ? heap.barrier("looked", soon()) : met);
    });
  });
}

TEST_P(HeapPagesContract, MemoryGoesBackWithTheLastHeap) {
  expect_success(GetParam(), [](Communicator& c) {
    std::size_t before = 0;
    for (int round = 0; round < 12; ++round) {
      Status met;
      {
        auto heap = SymmetricHeap::create(c, 4 * kMiB, soon());
        if (!heap) {
          return heap.status().to_string();
        }
        std::fill_n((*heap)->pointer(c.rank(), 0), 4 * kMiB, std::byte{1});
        met = (*heap)->barrier("touched", soon());
        if (footprint().held_bytes < 4 * kMiB) {
          return std::string{"the memory is not seen"};
        }
      }
      if (met.ok()) {
        met = c.barrier(soon());  // All heaps are gone.
      }
      const std::size_t held = footprint().held_bytes;
      before = round == 0 ? held : before;
      if (!met.ok() || held > before + kMiB) {
        return "round " + std::to_string(round) + ": " + std::to_string(held) + " bytes held, " +
               std::to_string(before) + " at first " + met.to_string();
      }
      met = c.barrier(soon());  // No rank takes more before all have measured.
      if (!met.ok()) {
        return met.to_string();
      }
    }
    return std::string{};
  });
}

// Offsets that do not fit 31 or 32 bits, in every chunk, by formula and by view.
TEST_P(HeapPagesOfThree, ChunksLongerThanTwoToThe32AreReachedToTheirEnds) {
  constexpr std::size_t kStride = 5 * kGiB;
  expect_success(GetParam(), [](Communicator& c) {
    return with_heap(c, kStride, [&](SymmetricHeap& heap) {
      const std::vector<std::size_t> places{
          0, 2 * kGiB - 8, 2 * kGiB, 4 * kGiB - 8, 4 * kGiB, kStride - 8};
      for (const std::size_t place : places) {
        *heap.at<std::uint64_t>(c.rank(), place) =
            place + 1 + static_cast<std::uint64_t>(c.rank()) * kStride;
      }
      if (heap.allocate(kStride).value_or(1) != 0 || heap.allocate(1).ok()) {
        return std::string{"allocate"};
      }
      const Status met = heap.barrier("written", soon());
      if (!met.ok()) {
        return met.to_string();
      }
      for (int peer = 0; peer < c.size(); ++peer) {
        for (const std::size_t place : places) {
          const std::uint64_t at = place + static_cast<std::uint64_t>(peer) * kStride;
          const auto* by_hand = reinterpret_cast<const std::uint64_t*>(heap.base() + at);
          if (*by_hand != at + 1 || heap.at<std::uint64_t>(peer, place) != by_hand) {
            return "place " + std::to_string(place) + " of rank " + std::to_string(peer);
          }
        }
      }
      const std::vector<SymmetricHeap::Piece> pieces{
          {2, kStride - 4096, 4096}, {1, 4 * kGiB, 4096}};
      const auto view = heap.map_view(pieces);
      const auto* words = reinterpret_cast<const std::uint64_t*>(view->data());
      const bool right = words[511] == 3 * kStride - 8 + 1 && words[512] == 4 * kGiB + kStride + 1;
      return right ? report(heap.barrier("read", soon())) : std::string{"view"};
    });
  });
}

TEST_P(HeapPagesOfThree, SizesThatFitNoAddressSpaceAreRefusedWithTheNumbers) {
  const auto reports = run_world(GetParam(), [](Communicator& c) {
    return SymmetricHeap::create(c, ~std::size_t{0} - 5, soon()).status().to_string();
  });
  for (const std::string& report : reports) {
    EXPECT_TRUE(holds(report, "resource exhausted: symmetric heap on rank ")) << report;
    EXPECT_TRUE(holds(report, "3 chunks of 18446744073709551610 bytes")) << report;
  }
}

TEST_P(HeapPagesOfThree, ChunksOfNoBytesAreRefused) {
  const auto reports = run_world(GetParam(), [](Communicator& c) {
    return SymmetricHeap::create(c, 0, soon()).status().to_string();
  });
  for (const std::string& report : reports) {
    EXPECT_TRUE(holds(report, "invalid argument: symmetric heap on rank ")) << report;
    EXPECT_TRUE(holds(report, "chunks of 0 bytes")) << report;
  }
}

// --- limits of a process, set by ranks that are processes ---

// Lets this process map `bytes` more.
bool limit_address_space(std::size_t bytes) {
  const auto statm = read_file("/proc/self/statm", 4096);
  if (!statm) {
    return false;
  }
  std::size_t pages = 0;
  std::istringstream{*statm} >> pages;
  const rlimit limit{pages * 4096 + bytes, pages * 4096 + bytes};
  return ::setrlimit(RLIMIT_AS, &limit) == 0;
}

TEST(ShmHeapLimits, AddressSpaceThatOneRankLacksIsToldToAll) {
  const Rendezvous rendezvous;
  const auto reports = test::run_ranks(3, [&](int rank) {
    auto c = connect_shm(rendezvous.options(rank, 3), soon());
    if (rank == 1 && !limit_address_space(kGiB)) {
      return std::string{"setrlimit"};
    }
    return SymmetricHeap::create(**c, kGiB, soon()).status().to_string();
  });
  for (const std::string& report : reports) {
    EXPECT_TRUE(holds(report, "resource exhausted: symmetric heap on rank 1 (pid ")) << report;
    EXPECT_TRUE(holds(report, "mapping 3221233664 bytes: Cannot allocate memory")) << report;
    EXPECT_TRUE(holds(report, "raise it (ulimit -v) or ask for less")) << report;
  }
}

TEST(ForkedLocalHeapLimits, AddressSpaceThatTheProcessLacksIsToldToAllThreads) {
  const auto reports = test::run_ranks(1, [](int) {
    if (!limit_address_space(kGiB)) {
      return std::string{"setrlimit"};
    }
    std::string all;
    for (const std::string& report : run_world({Backend::kLocal, 2}, [](Communicator& c) {
           return SymmetricHeap::create(c, kGiB, soon()).status().to_string();
         })) {
      all += holds(report, "resource exhausted: symmetric heap on rank 0: mapping 2147491840 bytes")
                 ? ""
                 : report;
    }
    return all;
  });
  EXPECT_EQ(reports.at(0), "");
}

TEST(ShmHeapLimits, AViewThatDoesNotFitIsRefusedAndTheHeapGoesOn) {
  const Rendezvous rendezvous;
  const auto reports = test::run_ranks(2, [&](int rank) {
    auto c = connect_shm(rendezvous.options(rank, 2), soon());
    return with_heap(**c, kGiB, [&](SymmetricHeap& heap) {
      if (!limit_address_space(256 * kMiB)) {
        return std::string{"setrlimit"};
      }
      const std::vector<SymmetricHeap::Piece> large{{0, 0, 512 * kMiB}};
      const Status refused = heap.map_view(large).status();
      if (refused.code() != StatusCode::kResourceExhausted ||
          !holds(refused.message(), "mapping 536870912 bytes")) {
        return refused.to_string();
      }
      const std::vector<SymmetricHeap::Piece> small{{0, 0, 4096}};
      const Status fits = heap.map_view(small).status();
      return report(fits.ok() ? heap.barrier("on we go", soon()) : fits);
    });
  });
  EXPECT_EQ(reports, (std::vector<std::string>{"", ""}));
}

TEST(ShmHeapLimits, ALimitOfFileSizesIsAStatusAndNoSignal) {
  const Rendezvous rendezvous;
  const auto reports = test::run_ranks(2, [&](int rank) {
    auto c = connect_shm(rendezvous.options(rank, 2), soon());
    if (rank == 0) {
      const rlimit limit{kGiB, kGiB};
      static_cast<void>(::setrlimit(RLIMIT_FSIZE, &limit));
    }
    return SymmetricHeap::create(**c, kGiB, soon()).status().to_string();
  });
  for (const std::string& report : reports) {
    EXPECT_TRUE(holds(report, "resource exhausted: symmetric heap on rank 0")) << report;
    EXPECT_TRUE(holds(report, "raise it (ulimit -f)")) << report;
  }
}

TEST(ShmHeapGuards, AnOverrunOfTheLastChunkIsCaughtAtOnce) {
  for (const bool below : {false, true}) {
    const Rendezvous rendezvous;
    test::ForkedRanks ranks{1, [&](int) {
                              ::signal(SIGSEGV, SIG_DFL);
                              auto c = connect_shm(rendezvous.options(0, 1), soon());
                              return with_heap(**c, 4096, [&](SymmetricHeap& heap) {
                                auto* end = heap.base() + heap.stride();
                                *(below ? heap.base() - 1 : end) = std::byte{1};
                                return std::string{"written"};
                              });
                            }};
    const auto results = ranks.wait(std::chrono::seconds{60});
    EXPECT_EQ(results.at(0).signal, SIGSEGV) << results.at(0).report;
  }
}

}  // namespace

}  // namespace muster::comm
