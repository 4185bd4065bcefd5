// SPDX-License-Identifier: Apache-2.0
// A rank of an expert group dies or stops in every phase of a pass: its peers return a Status that
// names it and the phase, and do so in time.
#include "tests/support/forked_ranks.h"
#include "tests/unit/parallel/experts/exchange/expert_case.h"

#include <gtest/gtest.h>

#include <signal.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <string>

namespace muster::parallel::testing {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kRanks = 3;
constexpr int kVictim = 1;
// Time limit of every operation if the victim stops, because only the limit ends the wait for it.
constexpr milliseconds kShort{2000};
// Time limit if the victim dies. Peers notice that at once; the limit only keeps a defect from
// hanging the test.
constexpr seconds kLong{90};

struct Fault {
  const char* name;
  const char* phase;
  int signal;
};

std::vector<Fault> faults() {
  constexpr std::array kPhases{
      std::array{"PlanCounts", "plan, counts"},
      std::array{"PlanTables", "plan, tables"},
      std::array{"PrefetchEntry", "prefetch, entry"},
      std::array{"PrefetchExit", "prefetch, exit"},
      std::array{"DispatchEntry", "dispatch, entry"},
      std::array{"DispatchExit", "dispatch, exit"},
      std::array{"Combine", "combine"},
      std::array{"ReduceEntry", "reduce, entry"},
      std::array{"ReduceMiddle", "reduce, middle"}};
  std::vector<Fault> result;
  for (const auto& [name, phase] : kPhases) {
    result.push_back({name, phase, SIGKILL});
    result.push_back({name, phase, SIGSTOP});
  }
  return result;
}

// Rounds of a whole pass until something fails.
Status run_passes(ExpertSetup& setup, milliseconds limit, int rounds) {
  EpExchange& exchange = *setup.exchange;
  const int rank = setup.member.rank();
  const std::vector<std::int32_t> choices = choices_of(setup.test, rank);
  const std::vector<std::byte> x = rows_of(setup.test, rank);
  std::vector<std::byte> y(x.size());
  EpRows received;
  EpPlan& plan = setup.plan;
  const EpLayerMemory& layer = setup.layers[0];
  const auto by = [&] { return Deadline::after(limit); };
  for (int round = 0; round < rounds; ++round) {
    MUSTER_RETURN_IF_ERROR(exchange.make_plan(choices, plan, by()));
    MUSTER_RETURN_IF_ERROR(exchange.prefetch(plan, layer, by()));
    MUSTER_RETURN_IF_ERROR(exchange.dispatch(plan, x, {}, received, by()));
    MUSTER_RETURN_IF_ERROR(exchange.combine(plan, received.rows, {}, y, {}, by()));
    MUSTER_RETURN_IF_ERROR(exchange.reduce_gradients(plan, layer, by()));
    if (round == 0) {
      test::ForkedRanks::report_ready();
    }
  }
  return {};
}

std::string survive(Member& member, const WatchedHeap::Hook& hook, milliseconds limit, int rounds) {
  const MoveCase test = expert_case(kRanks, Spread::kOneExpert, 71);
  ExpertSetup setup{member, test, DType::kFloat32, 1};
  if (!setup.error.empty()) {
    return setup.error;
  }
  member.heap.before_barrier(hook);
  return "ended: " + run_passes(setup, limit, rounds).to_string();
}

std::size_t fault_heap_bytes() {
  return expert_heap_bytes(expert_case(kRanks, Spread::kOneExpert, 71), DType::kFloat32, 1);
}

void expect_named(
    const std::vector<test::RankResult>& results, const std::string& phase, seconds at_most) {
  for (const int survivor : {0, 2}) {
    const test::RankResult& result = results.at(static_cast<std::size_t>(survivor));
    EXPECT_TRUE(result.ended) << "rank " << survivor << " hangs";
    EXPECT_EQ(result.exit_code, 0) << "signal " << result.signal;
    EXPECT_EQ(result.report.rfind("ended: ", 0), 0U) << result.report;
    EXPECT_NE(result.report.find("rank 1"), std::string::npos) << result.report;
    EXPECT_NE(result.report.find(phase), std::string::npos) << result.report;
    EXPECT_LT(result.ended_after, at_most) << result.report;
  }
}

class RankFault : public ::testing::TestWithParam<Fault> {};

INSTANTIATE_TEST_SUITE_P(Phases, RankFault, ::testing::ValuesIn(faults()), [](const auto& each) {
  return std::string{each.param.signal == SIGKILL ? "Killed" : "Stopped"} + each.param.name;
});

TEST_P(RankFault, IsNamedWithItsPhaseByAllSurvivorsInTime) {
  const Fault& fault = GetParam();
  const std::string session = new_session();
  const bool dies = fault.signal == SIGKILL;
  test::ForkedRanks ranks{
      kRanks, [&](int rank) {
        const WatchedHeap::Hook hook = [&](std::string_view phase) {
          if (rank == kVictim && phase == fault.phase) {
            ::kill(::getpid(), fault.signal);
          }
        };
        return run_member(session, rank, kRanks, fault_heap_bytes(), [&](Member& member) {
          return survive(member, hook, dies ? milliseconds{kLong} : kShort, 3);
        });
      }};
  ASSERT_TRUE(ranks.wait_ended({0, 2}, kLong)) << "a survivor hangs";
  if (!dies) {
    ranks.send_signal(kVictim, SIGKILL);
  }
  expect_named(ranks.wait(kLong), fault.phase, seconds{60});
}

// At no chosen point: between copies, before a barrier, at one.
TEST(RankKilledAnywhere, IsNamedByAllSurvivors) {
  for (int repeat = 0; repeat < 6; ++repeat) {
    const std::string session = new_session();
    test::ForkedRanks ranks{kRanks, [&](int rank) {
                              return run_member(
                                  session, rank, kRanks, fault_heap_bytes(), [](Member& member) {
                                    return survive(member, {}, milliseconds{kLong}, 1 << 20);
                                  });
                            }};
    ASSERT_TRUE(ranks.wait_ready({0, 1, 2}, kLong));
    ranks.send_signal(kVictim, SIGKILL);
    expect_named(ranks.wait(kLong), "", seconds{60});
  }
}

// A stop shorter than the deadline is only a wait, and the event attributes it to the stopped rank.
TEST(RankStopped, AndGoingOnInTimeIsAWaitThatEventsAttribute) {
  const std::string session = new_session();
  const MoveCase test = expert_case(kRanks, Spread::kUniform, 72);
  test::ForkedRanks ranks{
      kRanks, [&](int rank) {
        return run_member(
            session, rank, kRanks, heap_bytes(test), [&](Member& member) -> std::string {
              Mover mover{member, test};
              static_cast<void>(mover.exchange->take_event(mover.plan));
              if (rank == kVictim) {
                member.heap.before_barrier([](std::string_view phase) {
                  if (phase == "plan, counts") {
                    test::ForkedRanks::report_ready();
                    ::kill(::getpid(), SIGSTOP);
                  }
                });
              } else {
                member.heap.before_barrier([](std::string_view phase) {
                  if (phase == "plan, counts") {
                    test::ForkedRanks::report_ready();
                  }
                });
              }
              const Status status = mover.exchange->make_plan(
                  choices_of(test, rank), mover.plan, Deadline::after(kLong));
              const EpEvent event = mover.exchange->take_event(mover.plan);
              if (rank == kVictim) {
                return status.to_string();
              }
              const bool blames = event.wait_ns[kVictim] > 10'000'000 &&
                                  event.wait_ns[kVictim] > event.wait_ns[rank == 0 ? 2 : 0];
              return status.to_string() + (blames ? ", blames rank 1" : ", blames another");
            });
      }};
  ASSERT_TRUE(ranks.wait_ready({0, 1, 2}, kLong));
  // Not a wait for anything: the length of the stop.
  EXPECT_FALSE(ranks.wait_ended({0}, milliseconds{1000}));
  // Again and again: the first may come before the stop it is to end.
  for (int i = 0; i < 1000 && !ranks.wait_ended({0, 1, 2}, milliseconds{20}); ++i) {
    ranks.send_signal(kVictim, SIGCONT);
  }
  const auto results = ranks.wait(kLong);
  EXPECT_EQ(results.at(0).report, "ok, blames rank 1");
  EXPECT_EQ(results.at(1).report, "ok");
  EXPECT_EQ(results.at(2).report, "ok, blames rank 1");
}

}  // namespace

}  // namespace muster::parallel::testing
