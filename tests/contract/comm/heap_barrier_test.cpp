// SPDX-License-Identifier: Apache-2.0
// Barriers of the symmetric heap: phases, who waited for whom, and counters that wrap.
#include "comm/src/group/communicator.h"
#include "comm/src/heap/heap.h"
#include "tests/contract/comm/heap_world.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace muster::comm {

namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

class HeapBarrier : public testing::TestWithParam<World> {};

// A pair, which on this kind of machine has a core for each rank.
class HeapBarrierOfTwo : public testing::TestWithParam<World> {};

class HeapBarrierOfThree : public testing::TestWithParam<World> {};

INSTANTIATE_TEST_SUITE_P(
    SharedMemory, HeapBarrier, testing::ValuesIn(sharing_worlds()), world_name);
INSTANTIATE_TEST_SUITE_P(
    SharedMemory, HeapBarrierOfTwo, testing::ValuesIn(sharing_worlds_of(2)), world_name);
INSTANTIATE_TEST_SUITE_P(
    SharedMemory, HeapBarrierOfThree, testing::ValuesIn(sharing_worlds_of(3)), world_name);

const GroupHeap& inside(const SymmetricHeap& heap) {
  return dynamic_cast<const GroupHeap&>(heap);
}

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             steady_clock::now().time_since_epoch())
      .count();
}

// --- order ---

// Every rank adds its share to a counter of the next rank in every round; without order between
// rounds some sum would be wrong (and a race under the thread sanitizer).
TEST_P(HeapBarrier, WritesBeforeItAreSeenByAllAfterIt) {
  expect_success(GetParam(), [](Communicator& c) {
    return with_heap(c, 4096, [&](SymmetricHeap& heap) {
      std::uint64_t token = 1;
      const int next = (c.rank() + 1) % c.size();
      for (std::uint64_t round = 0; round < 500; ++round) {
        *heap.at<std::uint64_t>(next, 8 * (round % 2)) = token;
        if (const Status met = heap.barrier("pass the token on", soon()); !met.ok()) {
          return met.to_string();
        }
        const std::uint64_t got = *heap.at<std::uint64_t>(c.rank(), 8 * (round % 2));
        if (got != round + 1) {
          return "round " + std::to_string(round) + ": " + std::to_string(got);
        }
        token = got + 1;
      }
      return std::string{};
    });
  });
}

TEST_P(HeapBarrierOfThree, CollectivesInAnotherThreadDoNotDisturbIt) {
  expect_success(GetParam(), [](Communicator& c) {
    return with_heap(c, 4096, [&](SymmetricHeap& heap) {
      std::string sums;
      std::thread reducer{[&] {
        for (int call = 0; call < 200 && sums.empty(); ++call) {
          std::int64_t value = call;
          sums = report(c.all_reduce(std::span{&value, 1}, ReduceOp::kSum, soon()));
          sums += value == 3 * call ? "" : "wrong sum";
        }
      }};
      std::string met;
      for (int round = 0; round < 200 && met.empty(); ++round) {
        met = report(heap.barrier("round", soon()));
      }
      reducer.join();
      return sums + met;
    });
  });
}

// Far fewer under the sanitizers and for threads, which go through the same code.
std::int64_t many_rounds(Backend backend) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  return backend == Backend::kShm ? 50'000 : 20'000;
#else
  return backend == Backend::kShm ? 1'000'000 : 100'000;
#endif
}

TEST_P(HeapBarrierOfTwo, MeetsAMillionTimesInBoundedTime) {
  const std::int64_t rounds = many_rounds(GetParam().backend);
  expect_success(GetParam(), [&](Communicator& c) {
    return with_heap(c, 4096, [&](SymmetricHeap& heap) {
      // 1 us a round on idle cores; the limit is that of a test on a machine that does much else.
      const Deadline deadline = Deadline::after(std::chrono::seconds{100});
      for (std::int64_t round = 0; round < rounds; ++round) {
        if (const Status met = heap.barrier("round", deadline); !met.ok()) {
          return "round " + std::to_string(round) + ": " + met.to_string();
        }
      }
      return deadline.expired() ? std::string{"too slow"} : std::string{};
    });
  });
}

TEST_P(HeapBarrierOfThree, CountersThatWrapAroundLoseNobody) {
  expect_success(GetParam(), [](Communicator& c) {
    return with_heap(c, 4096, [&](SymmetricHeap& heap) {
      std::atomic<std::uint32_t>& epoch = inside(heap).meeting_place().epoch;
      if (c.rank() == 0) {
        epoch.store(0U - 40);  // 20 rounds before the wrap.
      }
      if (const Status met = c.barrier(soon()); !met.ok()) {
        return met.to_string();
      }
      for (int round = 0; round < 60; ++round) {
        *heap.at<int>((c.rank() + 1) % c.size(), 4 * static_cast<std::size_t>(round)) = round;
        if (const Status met = heap.barrier("round", soon()); !met.ok()) {
          return met.to_string();
        }
        if (*heap.at<int>(c.rank(), 4 * static_cast<std::size_t>(round)) != round) {
          return "round " + std::to_string(round);
        }
      }
      const std::uint32_t wrapped = epoch.load();
      return wrapped == 80 ? std::string{} : "epoch " + std::to_string(wrapped);
    });
  });
}

// Also across the wrap: the counter distinguishes late ranks from the others.
TEST_P(HeapBarrierOfThree, ALateRankIsNamedAtTheWrapToo) {
  const auto reports = run_world_with_side(GetParam(), [](Communicator& c, Communicator& side) {
    return with_heap(c, 4096, [&](SymmetricHeap& heap) {
      if (c.rank() == 0) {
        inside(heap).meeting_place().epoch.store(0U - 4);  // The second round wraps.
      }
      Status met = c.barrier(soon());
      if (met.ok()) {
        met = heap.barrier("plan", soon());
      }
      if (c.rank() != 2 && met.ok()) {
        met = heap.barrier("dispatch", Deadline::after(seconds{1}));
      }
      static_cast<void>(side.barrier(soon()));  // Rank 2 waits here meanwhile.
      return met.to_string();
    });
  });
  EXPECT_TRUE(holds(reports.at(0), "rank 2")) << reports.at(0);
  EXPECT_TRUE(holds(reports.at(0), "has not reached 'dispatch'; it was last seen in 'plan'"))
      << reports.at(0);
  EXPECT_FALSE(holds(reports.at(0), "rank 1")) << reports.at(0);
}

// --- phases ---

TEST_P(HeapBarrierOfThree, RanksInDifferentPhasesAreToldBothNames) {
  for (const int odd : {0, 1, 2}) {
    const auto reports = run_world(GetParam(), [&](Communicator& c) {
      return with_heap(c, 4096, [&](SymmetricHeap& heap) {
        return heap.barrier(c.rank() == odd ? "combine of layer 3" : "dispatch of layer 3", soon())
            .to_string();
      });
    });
    for (const std::string& report : reports) {
      EXPECT_TRUE(holds(report, "invalid argument: ranks disagree: rank 0")) << report;
      EXPECT_TRUE(holds(report, "'combine of layer 3'")) << report;
      EXPECT_TRUE(holds(report, "'dispatch of layer 3'")) << report;
    }
  }
}

TEST_P(HeapBarrierOfThree, ALateRankIsNamedWithItsLastPhase) {
  const auto reports = run_world_with_side(GetParam(), [](Communicator& c, Communicator& side) {
    return with_heap(c, 4096, [&](SymmetricHeap& heap) {
      Status met = heap.barrier("plan of layer 3", soon());
      if (c.rank() != 1 && met.ok()) {
        met = heap.barrier("dispatch of layer 3", Deadline::after(seconds{1}));
      }
      static_cast<void>(side.barrier(soon()));  // Rank 1 waits here meanwhile.
      return met.to_string();
    });
  });
  const std::string& first = reports.at(0);
  EXPECT_TRUE(holds(first, "deadline exceeded: rank 1")) << first;
  EXPECT_TRUE(holds(
      first,
      "has not reached 'dispatch of layer 3'; it was last seen in "
      "'plan of layer 3'"))
      << first;
  EXPECT_FALSE(holds(first, "collective")) << first;
  EXPECT_EQ(reports.at(1), "ok");
  EXPECT_EQ(reports.at(2), first);
}

TEST_P(HeapBarrierOfThree, ARankThatIsInACollectiveInsteadIsSaidToBeThere) {
  const auto reports = run_world(GetParam(), [](Communicator& c) {
    return with_heap(c, 4096, [&](SymmetricHeap& heap) {
      if (c.rank() == 1) {
        return c.barrier(soon()).to_string();
      }
      const GroupBlock& collectives = dynamic_cast<const GroupCommunicator&>(c).meeting_place();
      while (collectives.slots[1].in_call.load() == 0) {  // Until it is there.
        std::this_thread::yield();
      }
      return heap.barrier("dispatch", Deadline::after(seconds{1})).to_string();
    });
  });
  for (const std::string& report : reports) {
    EXPECT_TRUE(holds(report, "is inside a collective of the communicator")) << report;
  }
}

TEST_P(HeapBarrierOfThree, ThePhaseTellsAlsoWhereItIsLongerThanMessagesShow) {
  const auto reports = run_world(GetParam(), [](Communicator& c) {
    return with_heap(c, 4096, [&](SymmetricHeap& heap) {
      const std::string same(300, 'p');
      if (const Status met = heap.barrier(same, soon()); !met.ok()) {
        return met.to_string();
      }
      return heap.barrier(same + (c.rank() == 2 ? "x" : "y"), soon()).to_string();
    });
  });
  EXPECT_TRUE(holds(reports.at(0), "invalid argument: ranks disagree")) << reports.at(0);
}

TEST_P(HeapBarrierOfThree, AbortFreesThoseWhoWait) {
  const auto reports = run_world(GetParam(), [](Communicator& c) {
    return with_heap(c, 4096, [&](SymmetricHeap& heap) {
      if (c.rank() != 0) {
        return heap.barrier("dispatch", soon()).to_string();
      }
      for (const std::size_t r : {1UL, 2UL}) {  // Until both are there.
        while (inside(heap).control().slots[r].last.load() == 0) {
          std::this_thread::yield();
        }
      }
      c.abort("operator pressed stop");
      return heap.barrier("dispatch", soon()).to_string();
    });
  });
  for (const std::string& report : reports) {
    EXPECT_EQ(report, "aborted: operator pressed stop");
  }
}

// --- who waited for whom ---

// Rank `late` comes when all others have been there for at least `by`.
void come_late(const SymmetricHeap& heap, std::chrono::nanoseconds by) {
  const HeapControl& control = inside(heap).control();
  std::int64_t last_ns = 0;
  for (int peer = 0; peer < heap.size(); ++peer) {
    const HeapSlot& slot = control.slots[peer];
    while (peer != heap.rank() && slot.last.load(std::memory_order_acquire) == 0) {
      std::this_thread::yield();
    }
    last_ns = std::max(last_ns, slot.arrivals[1].at_ns.load());  // Of the first barrier.
  }
  while (now_ns() < last_ns + by.count()) {
    std::this_thread::yield();
  }
}

TEST_P(HeapBarrierOfThree, TheWaitIsPutDownToTheLateRank) {
  constexpr std::int64_t kDelayNs = 3'000'000;
  for (const int late : {0, 1, 2}) {
    expect_success(GetParam(), [&](Communicator& c) {
      return with_heap(c, 4096, [&](SymmetricHeap& heap) {
        if (c.rank() == late) {
          come_late(heap, std::chrono::nanoseconds{kDelayNs});
        }
        std::vector<std::int64_t> waited(3, 1000);  // Added to, not overwritten.
        if (const Status met = heap.barrier("dispatch", soon(), waited); !met.ok()) {
          return met.to_string();
        }
        const HeapControl& control = inside(heap).control();
        const auto arrived = [&](int r) { return control.slots[r].arrivals[1].at_ns.load(); };
        std::string error;
        for (int r = 0; r < 3; ++r) {
          const std::int64_t expected =
              1000 + std::max<std::int64_t>(0, arrived(r) - arrived(c.rank()));
          if (waited[static_cast<std::size_t>(r)] != expected) {
            error += " waited for rank " + std::to_string(r) + " is not what the clocks say";
          }
        }
        const auto for_late = waited[static_cast<std::size_t>(late)] - 1000;
        if (c.rank() == late
                ? waited != std::vector<std::int64_t>(3, 1000)
                : for_late < kDelayNs ||
                      for_late != *std::max_element(waited.begin(), waited.end()) - 1000) {
          error += " the wait is not that for rank " + std::to_string(late);
        }
        // No rank may overwrite the arrivals before all have read them.
        const Status looked = c.barrier(soon());
        return error + report(looked);
      });
    });
  }
}

TEST_P(HeapBarrierOfThree, AWaitMatrixOfAnotherSizeIsRefusedOnAllRanks) {
  const auto reports = run_world(GetParam(), [](Communicator& c) {
    return with_heap(c, 4096, [&](SymmetricHeap& heap) {
      std::vector<std::int64_t> waited(c.rank() == 1 ? 2 : 3);
      return heap.barrier("dispatch", soon(), waited).to_string();
    });
  });
  for (const std::string& report : reports) {
    EXPECT_TRUE(holds(
        report,
        "invalid argument: barrier of 'dispatch': waited must have one entry for each of "
        "3 ranks, got 2 on rank 1"))
        << report;
  }
}

}  // namespace

}  // namespace muster::comm
