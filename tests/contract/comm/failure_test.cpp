// SPDX-License-Identifier: Apache-2.0
// Peers that die, stop or do not come, and aborts: no rank hangs, and the message names the peer.
#include "tests/contract/comm/world.h"

#include <gtest/gtest.h>

#include <csignal>
#include <latch>
#include <sstream>
#include <thread>

namespace muster::comm {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class FailureContract : public testing::TestWithParam<World> {};

class ProcessFailureContract : public testing::TestWithParam<World> {};

std::vector<World> process_worlds() {
  std::vector<World> worlds = worlds_of(4);
  std::erase_if(worlds, [](const World& world) { return world.backend == Backend::kLocal; });
  return worlds;
}

INSTANTIATE_TEST_SUITE_P(AllBackends, FailureContract, testing::ValuesIn(worlds_of(3)), world_name);
INSTANTIATE_TEST_SUITE_P(
    Processes, ProcessFailureContract, testing::ValuesIn(process_worlds()), world_name);

// --- ranks that do not come ---

TEST_P(FailureContract, PeerThatDoesNotCallIsNamedAtTheDeadline) {
  const auto reports = run_world_with_side(GetParam(), [](Communicator& c, Communicator& side) {
    Status met = side.barrier(soon());  // All are here, so only rank 1 can be late.
    const auto limit = Deadline::after(seconds{1});
    Status status;
    if (c.rank() != 1) {
      status = c.barrier(limit);
    }
    const bool too_early = c.rank() == 0 && !limit.expired();
    if (met.ok()) {
      met = side.barrier(soon());  // Rank 1 waits here meanwhile.
    }
    return (too_early ? "too early: " : "") + status.to_string() +
           (met.ok() ? "" : " side: " + met.to_string());
  });
  const std::string& first = reports.at(0);
  EXPECT_TRUE(holds(first, "deadline exceeded: rank 1")) << first;
  EXPECT_TRUE(holds(first, "did not arrive at barrier #")) << first;
  EXPECT_FALSE(holds(first, "rank 2") || holds(first, "too early")) << first;
  EXPECT_EQ(reports.at(1), "ok");
  EXPECT_NE(reports.at(2), "ok");
}

TEST_P(FailureContract, AbortFromAnotherThreadFreesTheWaiters) {
  const auto reports = run_world_with_side(GetParam(), [](Communicator& c, Communicator& side) {
    Status status;
    std::vector<double> data(3);
    if (c.rank() == 1) {
      status = c.all_reduce(std::span{data}, ReduceOp::kSum, soon());
    }
    if (c.rank() == 0) {  // Rank 2 never calls: only the abort can end this.
      std::latch about_to_wait{1};
      std::thread waiter{[&] {
        about_to_wait.count_down();
        status = c.all_reduce(std::span{data}, ReduceOp::kSum, soon());
      }};
      about_to_wait.wait();
      c.abort("operator pressed stop");
      waiter.join();
    }
    const Status met = side.barrier(soon());
    return status.to_string() + (met.ok() ? "" : " side: " + met.to_string());
  });
  EXPECT_EQ(reports.at(0), "aborted: operator pressed stop");
  EXPECT_EQ(reports.at(2), "ok");
  if (GetParam().backend == Backend::kGloo) {  // Sockets report the end, not the reason.
    EXPECT_TRUE(holds(reports.at(1), "rank 0")) << reports.at(1);
  } else {
    EXPECT_EQ(reports.at(1), "aborted: operator pressed stop");
  }
}

TEST(LocalGroup, RankThatLeavesIsNamedBeforeTheDeadline) {
  auto ranks = make_local_group(2);
  ranks[1].reset();
  const Deadline limit = soon();
  const Status status = ranks[0]->barrier(limit);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_TRUE(holds(status.message(), "rank 1 has left")) << status.to_string();
  EXPECT_FALSE(limit.expired());
}

// --- ranks that die or stop ---

constexpr const char* kBeforeTheDeadline = " (before the deadline)";

// A stream of collectives that only an error ends; the text tells whether its deadline had passed.
std::string stream(Communicator& c, milliseconds call_limit, std::size_t count) {
  std::vector<float> data(count, 1.0F);
  for (int call = 0;; ++call) {
    if (call == 20) {
      test::ForkedRanks::report_ready();
    }
    const auto limit = Deadline::after(call_limit);
    const Status status = c.all_reduce(std::span{data}, ReduceOp::kMax, limit);
    if (!status.ok()) {
      return status.to_string() + (limit.expired() ? "" : kBeforeTheDeadline);
    }
  }
}

struct Survivors {
  std::vector<test::RankResult> results;
  pid_t victim_pid{0};
};

// Runs streams on all ranks, signals rank 2 in the middle, and waits for the others.
Survivors signal_in_stream(
    const World& world, int signal, milliseconds call_limit, std::size_t count) {
  const Rendezvous rendezvous;
  test::ForkedRanks ranks{world.size, [&](int rank) {
                            auto c = connect(
                                world.backend, rendezvous.options(rank, world.size), soon());
                            return c ? stream(**c, call_limit, count) : c.status().to_string();
                          }};
  EXPECT_TRUE(ranks.wait_ready({0, 1, 2, 3}, seconds{60}));
  ranks.send_signal(2, signal);
  Survivors survivors;
  survivors.victim_pid = ranks.pid(2);
  EXPECT_TRUE(ranks.wait_ended({0, 1, 3}, seconds{90}));
  ranks.send_signal(2, SIGCONT);
  ranks.send_signal(2, SIGKILL);
  survivors.results = ranks.wait(seconds{60});
  return survivors;
}

void expect_named(const Survivors& survivors, const std::string& state) {
  const std::string victim = "rank 2 (pid " + std::to_string(survivors.victim_pid);
  for (const std::size_t rank : {0UL, 1UL, 3UL}) {
    const test::RankResult& result = survivors.results.at(rank);
    EXPECT_EQ(result.exit_code, 0) << "rank " << rank << " signal " << result.signal;
    EXPECT_TRUE(holds(result.report, victim) && holds(result.report, state))
        << "rank " << rank << ": " << result.report;
  }
}

TEST_P(ProcessFailureContract, KilledPeerIsNamedLongBeforeTheDeadline) {
  for (const std::size_t count : {100UL, 300007UL}) {
    const Survivors survivors = signal_in_stream(GetParam(), SIGKILL, seconds{60}, count);
    expect_named(survivors, "unavailable");
    for (const std::size_t rank : {0UL, 1UL, 3UL}) {
      const std::string& report = survivors.results.at(rank).report;
      EXPECT_TRUE(holds(report, kBeforeTheDeadline)) << count << " elements: " << report;
    }
  }
}

TEST_P(ProcessFailureContract, StoppedPeerEndsTheCallAtTheDeadline) {
  const Survivors survivors = signal_in_stream(GetParam(), SIGSTOP, seconds{3}, 100);
  // The first to give up has waited for its deadline; the others may learn of it earlier.
  bool one_waited = false;
  for (const std::size_t rank : {0UL, 1UL, 3UL}) {
    const std::string& report = survivors.results.at(rank).report;
    EXPECT_NE(report, "ok");
    one_waited = one_waited || !holds(report, kBeforeTheDeadline);
  }
  EXPECT_TRUE(one_waited);
  EXPECT_TRUE(holds(survivors.results.at(0).report, "rank 2")) << survivors.results.at(0).report;
}

TEST_P(ProcessFailureContract, SurvivorsMeetAgainInANewSession) {
  const World world = GetParam();
  const Rendezvous first;
  const Rendezvous second;
  test::ForkedRanks ranks{
      world.size, [&](int rank) {
        auto c = connect(world.backend, first.options(rank, world.size), soon());
        const std::string error = c ? stream(**c, seconds{60}, 1000) : c.status().to_string();
        auto next = connect(world.backend, second.options(rank == 3 ? 2 : rank, 3), soon());
        if (!next) {
          return error + next.status().to_string();
        }
        std::int64_t alive = 1;
        const Status status = (*next)->all_reduce(std::span{&alive, 1}, ReduceOp::kSum, soon());
        return status.ok() ? std::to_string(alive) : status.to_string();
      }};
  ASSERT_TRUE(ranks.wait_ready({0, 1, 2, 3}, seconds{60}));
  ranks.send_signal(2, SIGKILL);
  const auto results = ranks.wait(seconds{60});
  for (const std::size_t rank : {0UL, 1UL, 3UL}) {
    EXPECT_EQ(results.at(rank).report, "3") << "rank " << rank;
  }
}

}  // namespace

}  // namespace muster::comm
