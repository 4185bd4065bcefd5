// SPDX-License-Identifier: Apache-2.0
// Ranks of a symmetric heap that die or stop in every phase: the survivors learn which rank and
// where, in time, and nothing is left behind.
#include "comm/src/group/communicator.h"
#include "comm/src/heap/heap.h"
#include "tests/contract/comm/heap_world.h"

#include <muster/common/hash.h>

#include <gtest/gtest.h>

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <thread>

namespace muster::comm {

namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr int kRanks = 4;
constexpr int kVictim = 2;
constexpr int kStriker = 0;  // Stays away until the victim waits for it, then strikes.

// Where the signal reaches the victim, in the order of its life.
enum class Stage { kBeforeCreate, kInCreate, kBeforeAllocate, kInSeal, kBetween, kInBarrier };

struct Fault {
  Stage stage;
  int signal;
  // The place in the message.
  std::string place;
};

std::ostream& operator<<(std::ostream& out, const Fault& fault) {
  constexpr std::array kStages{
      "BeforeCreate", "InCreate", "BeforeAllocate", "InSeal", "BetweenBarriers", "InBarrier"};
  return out << (fault.signal == SIGKILL ? "Killed" : "Stopped")
             << kStages.at(static_cast<std::size_t>(fault.stage));
}

std::vector<Fault> all_faults() {
  std::vector<Fault> faults;
  for (const int signal : {SIGKILL, SIGSTOP}) {
    faults.push_back({Stage::kBeforeCreate, signal, "did not arrive at symmetric_heap #"});
    faults.push_back({Stage::kInCreate, signal, "did not arrive at symmetric_heap #"});
    faults.push_back(
        {Stage::kBeforeAllocate,
         signal,
         "has not reached 'seal of the symmetric heap'; it has not been at any barrier"});
    faults.push_back({Stage::kInSeal, signal, "it was last seen"});
    faults.push_back(
        {Stage::kBetween,
         signal,
         "has not reached 'dispatch of layer 3'; it was last seen in 'plan of layer 3'"});
    faults.push_back({Stage::kInBarrier, signal, "'dispatch of layer 3'"});
  }
  return faults;
}

// One rank of a small training run that meets with a fault.
class Life {
 public:
  Life(Communicator& c, const Fault& fault, pid_t victim)
      : c_(c),
        fault_(fault),
        victim_(victim),
        limit_(fault.signal == SIGKILL ? seconds{60} : seconds{1}) {}

  // The error that ended it.
  [[nodiscard]] std::string run() {
    fall(Stage::kBeforeCreate);
    strike_when(Stage::kInCreate, [&] {
      const auto& calls = dynamic_cast<const GroupCommunicator&>(c_).meeting_place();
      return calls.slots[kVictim].in_call.load() != 0;
    });
    const auto start = steady_clock::now();
    auto heap = SymmetricHeap::create(c_, 1 << 20, deadline(Stage::kInCreate));
    if (!heap) {
      return judge(heap.status(), start);
    }
    heap_ = std::move(*heap);
    fall(Stage::kBeforeAllocate);
    static_cast<void>(heap_->allocate(4096));
    strike_when(Stage::kInSeal, [&] { return victim_is_in("seal of the symmetric heap"); });
    if (const auto error = attempt(Stage::kInSeal, [&](Deadline by) { return heap_->seal(by); })) {
      return *error;
    }
    for (int layer = 0;; ++layer) {
      if (const auto error = run_layer(layer)) {
        return *error;
      }
    }
  }

 private:
  [[nodiscard]] std::optional<std::string> run_layer(int layer) {
    const std::string plan = "plan of layer " + std::to_string(layer);
    const std::string dispatch = "dispatch of layer " + std::to_string(layer);
    const auto meet = [&](const std::string& phase) {
      // From layer 3 on the fault is near.
      const Stage here = layer < 3 ? Stage::kInSeal : Stage::kInBarrier;
      return attempt(here, [&](Deadline by) { return heap_->barrier(phase, by); });
    };
    if (auto error = meet(plan)) {
      return error;
    }
    if (layer == 3) {
      fall(Stage::kBetween);
      strike_when(Stage::kInBarrier, [&] { return victim_is_in(dispatch); });
    }
    return meet(dispatch);
  }

  // Short where the fault may be, so that the test is; long elsewhere.
  [[nodiscard]] Deadline deadline(Stage here) const {
    return here < fault_.stage ? soon() : Deadline::after(limit_);
  }

  template <typename Call>
  [[nodiscard]] std::optional<std::string> attempt(Stage here, Call&& call) {
    const auto start = steady_clock::now();
    const Status status = call(deadline(here));
    return status.ok() ? std::nullopt : std::optional{judge(status, start)};
  }

  [[nodiscard]] std::string judge(const Status& error, steady_clock::time_point start) const {
    const auto took = steady_clock::now() - start;
    const bool in_time = fault_.signal == SIGKILL ? took < limit_ / 2 : took < limit_ + seconds{30};
    return error.to_string() + (in_time ? "" : " TOO LATE");
  }

  void fall(Stage here) const {
    if (fault_.stage == here && c_.rank() == kVictim) {
      ::raise(fault_.signal);
    }
  }

  template <typename Condition>
  void strike_when(Stage here, Condition&& is_there) const {
    if (fault_.stage != here || c_.rank() != kStriker) {
      return;
    }
    while (!is_there()) {
      std::this_thread::yield();
    }
    ::kill(victim_, fault_.signal);
    while (process_state(victim_) == "running") {
      std::this_thread::yield();
    }
  }

  [[nodiscard]] bool victim_is_in(std::string_view phase) const {
    const HeapSlot& slot = dynamic_cast<const GroupHeap&>(*heap_).control().slots[kVictim];
    const std::uint32_t last = slot.last.load(std::memory_order_acquire);
    return last != 0 && slot.arrivals[last - 1].phase.load() == phase;
  }

  Communicator& c_;
  const Fault& fault_;
  pid_t victim_;
  seconds limit_;
  std::unique_ptr<SymmetricHeap> heap_;
};

std::string live(const ConnectOptions& options, const Fault& fault) {
  const Footprint before = footprint();
  std::string error;
  {
    auto c = connect_shm(options, soon());
    std::array<std::int64_t, kRanks> pids{};
    pids.at(static_cast<std::size_t>(options.rank)) = ::getpid();
    const std::vector<std::size_t> counts(kRanks, 1);
    if (!c || !(*c)->all_gather(std::span<std::int64_t>{pids}, counts, soon()).ok()) {
      return "connect";
    }
    error = Life{**c, fault, static_cast<pid_t>(pids.at(kVictim))}.run();
  }
  const Footprint after = footprint();
  if (after.descriptors != before.descriptors || after.mappings != before.mappings) {
    error += " LEAKED";
  }
  return error;
}

// True while the name under which ranks of `session` meet exists in the system.
bool has_socket(const std::string& session) {
  std::ifstream file{"/proc/net/unix"};
  const std::string names{std::istreambuf_iterator<char>{file}, {}};
  return holds(names, to_hex(hash128(session)));
}

std::vector<std::string> entries_of(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator{folder}) {
    names.push_back(entry.path().filename().string());
  }
  return names;
}

void expect_nothing_left(const Rendezvous& rendezvous) {
  EXPECT_FALSE(has_socket(rendezvous.options(0, kRanks).session));
  EXPECT_EQ(entries_of(rendezvous.folder()), std::vector<std::string>{});
  for (const std::string& name : entries_of("/dev/shm")) {
    EXPECT_FALSE(holds(name, "muster")) << name;
  }
}

class ShmHeapFault : public testing::TestWithParam<Fault> {};

std::string fault_name(const testing::TestParamInfo<Fault>& info) {
  std::ostringstream name;
  name << info.param;
  return name.str();
}

INSTANTIATE_TEST_SUITE_P(EveryPhase, ShmHeapFault, testing::ValuesIn(all_faults()), fault_name);

TEST_P(ShmHeapFault, TheSurvivorsLearnInTimeWhoIsMissingAndWhere) {
  const Rendezvous rendezvous;
  test::ForkedRanks ranks{
      kRanks, [&](int rank) { return live(rendezvous.options(rank, kRanks), GetParam()); }};
  const std::string victim = "rank 2 (pid " + std::to_string(ranks.pid(kVictim));
  const bool is_killed = GetParam().signal == SIGKILL;
  EXPECT_TRUE(ranks.wait_ended({0, 1, 3}, seconds{90}));
  ranks.send_signal(kVictim, SIGKILL);
  const auto results = ranks.wait(seconds{60});
  for (const std::size_t rank : {0UL, 1UL, 3UL}) {
    const std::string& report = results.at(rank).report;
    EXPECT_EQ(results.at(rank).exit_code, 0) << "rank " << rank;
    EXPECT_TRUE(holds(report, is_killed ? "unavailable: " : "deadline exceeded: ")) << report;
    EXPECT_TRUE(holds(report, victim + (is_killed ? ") is dead" : ", stopped)"))) << report;
    EXPECT_TRUE(holds(report, GetParam().place)) << report;
    EXPECT_FALSE(holds(report, "TOO LATE") || holds(report, "LEAKED")) << report;
  }
  expect_nothing_left(rendezvous);
}

// A rank that only pauses costs time, not the run.
TEST(ShmHeapPause, ARankThatGoesOnBeforeTheDeadlineIsWaitedFor) {
  expect_success({Backend::kShm, 3}, [](Communicator& c) {
    return with_heap(c, 4096, [&](SymmetricHeap& heap) {
      auto* pid = heap.at<std::atomic<pid_t>>(0, 0);
      if (c.rank() == 1) {
        pid->store(::getpid());
        ::raise(SIGSTOP);  // Until rank 0 has seen it.
      }
      if (c.rank() == 0) {
        while (pid->load() == 0 || process_state(pid->load()) != "stopped") {
          std::this_thread::yield();
        }
        ::kill(pid->load(), SIGCONT);
      }
      return report(heap.barrier("dispatch", soon()));
    });
  });
}

// Wherever the signal happens to hit: in a wait, a copy, or on the way out of a barrier.
TEST(ShmHeapStream, ARankKilledAtAnyMomentIsNamedByAll) {
  for (int repeat = 0; repeat < 10; ++repeat) {
    const Rendezvous rendezvous;
    test::ForkedRanks ranks{
        kRanks, [&](int rank) {
          auto c = connect_shm(rendezvous.options(rank, kRanks), soon());
          return with_heap(**c, 1 << 20, [&](SymmetricHeap& heap) {
            for (int round = 0;; ++round) {
              if (round == 30 + repeat) {
                test::ForkedRanks::report_ready();
              }
              const int peer = (rank + round) % kRanks;
              std::fill_n(heap.at<int>(peer, 4096 * static_cast<std::size_t>(rank)), 1024, round);
              if (const Status met = heap.barrier("copy", soon()); !met.ok()) {
                return met.to_string();
              }
            }
          });
        }};
    ASSERT_TRUE(ranks.wait_ready({0, 1, 2, 3}, seconds{60}));
    ranks.send_signal(kVictim, SIGKILL);
    const auto results = ranks.wait(seconds{60});
    for (const std::size_t rank : {0UL, 1UL, 3UL}) {
      const std::string& report = results.at(rank).report;
      EXPECT_TRUE(holds(report, "unavailable: rank 2 (pid ")) << report;
      EXPECT_TRUE(holds(report, "'copy'")) << report;
    }
    expect_nothing_left(rendezvous);
  }
}

}  // namespace

}  // namespace muster::comm
