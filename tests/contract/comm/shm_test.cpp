// SPDX-License-Identifier: Apache-2.0
// Promises of the shared-memory backend alone: ranks meet, and nothing is left behind.
#include "tests/contract/comm/world.h"

#include <muster/common/file.h>

#include <gtest/gtest.h>

#include <unistd.h>

#include <csignal>

namespace muster::comm {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(ShmRendezvous, NamesTheRanksThatDidNotCome) {
  const Rendezvous rendezvous;
  const auto reports = test::run_ranks(2, [&](int rank) {
    // Ranks 0 and 1 of 4.
    const auto c = connect_shm(rendezvous.options(rank, 4), Deadline::after(seconds{2}));
    return c.status().to_string();
  });
  // The first rank to give up informs the other.
  EXPECT_EQ(reports.at(0).rfind("deadline exceeded: ", 0), 0U) << reports.at(0);
  EXPECT_TRUE(holds(reports.at(0), "rank 2") && holds(reports.at(0), "rank 3")) << reports.at(0);
  EXPECT_EQ(reports.at(1), reports.at(0));
}

TEST(ShmRendezvous, SaysThatRankZeroIsMissing) {
  const Rendezvous rendezvous;
  const auto c = connect_shm(rendezvous.options(1, 2), Deadline::after(milliseconds{50}));
  EXPECT_EQ(c.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(holds(c.status().message(), "rank 0 did not open session"));
}

TEST(ShmRendezvous, DifferentWorldSizesAreRefusedOnBothSides) {
  const Rendezvous rendezvous;
  const auto reports = test::run_ranks(2, [&](int rank) {
    return connect_shm(rendezvous.options(rank, rank == 0 ? 2 : 3), soon()).status().to_string();
  });
  EXPECT_TRUE(holds(reports.at(0), "invalid argument")) << reports.at(0);
  EXPECT_TRUE(holds(reports.at(0), "calls itself rank 1 of 3")) << reports.at(0);
  EXPECT_TRUE(holds(reports.at(1), "invalid argument")) << reports.at(1);
}

TEST(ShmRendezvous, RankThatCameTwiceIsRefused) {
  const Rendezvous rendezvous;
  const auto reports = test::run_ranks(3, [&](int rank) {
    return connect_shm(rendezvous.options(rank == 0 ? 0 : 1, 3), soon()).status().to_string();
  });
  EXPECT_TRUE(holds(reports.at(0), "calls itself rank 1 of 3")) << reports.at(0);
  EXPECT_TRUE(holds(reports.at(1), "already a rank 1") || holds(reports.at(2), "already a rank 1"));
}

TEST(ShmRendezvous, SessionInUseIsRefused) {
  const Rendezvous rendezvous;
  // Two processes that both want to be rank 0 of two: one opens the session and waits for rank 1,
  // which never comes.
  const auto reports = test::run_ranks(2, [&](int) {
    const auto limit = Deadline::after(seconds{3});
    return connect_shm(rendezvous.options(0, 2), limit).status().to_string();
  });
  const bool first_served = holds(reports.at(0), "rank 1 did not come");
  EXPECT_TRUE(holds(reports.at(first_served ? 0 : 1), "rank 1 did not come"));
  EXPECT_TRUE(holds(reports.at(first_served ? 1 : 0), "already exists: another process is rank 0"))
      << reports.at(first_served ? 1 : 0);
}

TEST(ShmRendezvous, UnusableOptionsAreNamed) {
  ConnectOptions options;
  options.rank = 4;
  options.size = 4;
  EXPECT_TRUE(holds(
      connect_shm(options, soon()).status().message(), "rank must be between 0 and 3, got 4"));
  options.size = 1000;
  EXPECT_TRUE(holds(
      connect_shm(options, soon()).status().message(),
      "world size must be between 1 and 128 with shm, got 1000"));
}

TEST(ShmMemory, HeapThatIsFullNamesTheRankOnAllRanks) {
  const Rendezvous rendezvous;
  const auto reports = test::run_ranks(2, [&](int rank) {
    ConnectOptions options = rendezvous.options(rank, 2);
    options.heap_bytes_per_rank = 1 << 20;
    const auto c = connect_shm(options, soon());
    const auto memory = (*c)->allocate_bytes(rank == 1 ? 2U << 20 : 10U, soon());
    return memory.status().to_string();
  });
  for (const std::string& report : reports) {
    EXPECT_TRUE(holds(report, "resource exhausted: rank 1")) << report;
    EXPECT_TRUE(holds(report, "raise heap_bytes_per_rank")) << report;
  }
}

TEST(ShmMemory, MemoryOfADroppedGroupComesBackZeroed) {
  const Rendezvous rendezvous;
  const auto reports = test::run_ranks(2, [&](int rank) {
    ConnectOptions options = rendezvous.options(rank, 2);
    options.heap_bytes_per_rank = 8 << 20;
    const auto c = connect_shm(options, soon());
    for (int round = 0; round < 20; ++round) {  // Together far more than the heap holds.
      const auto child = (*c)->split(0, 0, soon());
      const auto memory = (*child)->allocate<std::int64_t>(500000, soon());
      if (!memory) {
        return memory.status().to_string();
      }
      for (std::int64_t& value : *memory) {
        if (std::exchange(value, 7) != 0) {
          return std::string{"memory was not zeroed"};
        }
      }
    }
    return std::string{};
  });
  EXPECT_EQ(reports, (std::vector<std::string>{"", ""}));
}

TEST(ShmMemory, AddressSpaceThatIsReservedTakesNoMemory) {
  const Rendezvous rendezvous;
  ConnectOptions options = rendezvous.options(0, 1);
  options.heap_bytes_per_rank = std::size_t{64} << 30;  // More than such a machine has.
  const auto c = connect_shm(options, soon());
  ASSERT_TRUE(c.ok()) << c.status().to_string();
  const auto memory = (*c)->allocate_bytes(std::size_t{40} << 30, soon());
  ASSERT_TRUE(memory.ok()) << memory.status().to_string();
  memory->back() = std::byte{1};
  EXPECT_EQ(memory->front(), std::byte{0});
}

TEST(ShmSession, RanksKilledWhileTheyMeetAreNamed) {
  const Rendezvous rendezvous;
  test::ForkedRanks ranks{3, [&](int rank) {
                            if (rank == 2) {
                              ::raise(SIGKILL);
                            }
                            return connect_shm(
                                       rendezvous.options(rank, 3), Deadline::after(seconds{3}))
                                .status()
                                .to_string();
                          }};
  const auto results = ranks.wait(seconds{60});
  EXPECT_TRUE(holds(results.at(0).report, "rank 2")) << results.at(0).report;
  EXPECT_EQ(results.at(1).report, results.at(0).report);
}

TEST(ShmSession, SameNameCanBeUsedAgainAfterAllWereKilled) {
  const Rendezvous rendezvous;
  for (int round = 0; round < 3; ++round) {
    test::ForkedRanks ranks{2, [&](int rank) {
                              const auto c = connect_shm(rendezvous.options(rank, 2), soon());
                              if (c.ok()) {
                                test::ForkedRanks::report_ready();
                                ::raise(SIGSTOP);
                              }
                              return c.status().to_string();
                            }};
    EXPECT_TRUE(ranks.wait_ready({0, 1}, seconds{60})) << "round " << round;
    ranks.send_signal(0, SIGKILL);
    ranks.send_signal(1, SIGKILL);
    const auto results = ranks.wait(seconds{60});
    EXPECT_EQ(results.at(0).signal, SIGKILL) << results.at(0).report;
  }
}

TEST(ShmSession, ManyRanksThanCoresFinishManySmallCalls) {
  const auto reports = run_world({Backend::kShm, 9}, [](Communicator& c) {
    for (int call = 0; call < 300; ++call) {
      std::int64_t value = call + c.rank();
      const Status status = c.all_reduce(std::span{&value, 1}, ReduceOp::kSum, soon());
      if (!status.ok() || value != 9 * call + 36) {
        return "call " + std::to_string(call) + ": " + status.to_string();
      }
    }
    return std::string{};
  });
  for (const std::string& report : reports) {
    EXPECT_EQ(report, "");
  }
}

}  // namespace

}  // namespace muster::comm
