// SPDX-License-Identifier: Apache-2.0
// Failures of similar systems that break an ordering or an assumption;
// docs/evidence/expert_bugs.md.
#include "tests/unit/parallel/experts/exchange/expert_case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <future>
#include <limits>
#include <numeric>

namespace muster::parallel::testing {

namespace {

// All tokens are rank 0's and choose its experts: rank 1 computes half of the rows in slots.
MoveCase rank_one_helps() {
  MoveCase test = expert_case(2, Spread::kAtHome, 11);
  test.tokens = {24, 0};
  return test;
}

// Once, from rank 0's next barrier to rank 1, which gives up after 20 s.
class Signal {
 public:
  void send() {
    if (!sent_.exchange(true)) {
      promise_.set_value();
    }
  }

  [[nodiscard]] bool wait() {
    return future_.wait_for(std::chrono::seconds{20}) == std::future_status::ready;
  }

 private:
  std::atomic<bool> sent_{false};
  std::promise<void> promise_;
  std::future<void> future_{promise_.get_future()};
};

// Runs `work` on both ranks with layers 0 and 1; `signal` is sent when rank 0 comes to the first
// barrier after `arm`.
struct Scene {
  ExpertSetup& setup;
  Findings& findings;
  Signal& signal;

  void arm() const {
    setup.member.heap.before_barrier([this](std::string_view) { signal.send(); });
  }
};

void expect_in_scene(bool entry_barriers, const std::function<void(const Scene&)>& work) {
  const MoveCase test = rank_one_helps();
  Signal signal;
  expect_members_succeed(
      RanksAre::kThreads, 2, expert_heap_bytes(test, DType::kFloat32, 2), [&](Member& member) {
        Findings findings;
        ExpertSetup setup{member, test, DType::kFloat32, 2, entry_barriers};
        findings.expect(setup.error.empty(), setup.error);
        findings.expect(setup.slot_expert(setup.plan, 1, 0) >= 0, "rank 1 has no slot");
        const Scene scene{setup, findings, signal};
        work(scene);
        setup.member.heap.before_barrier({});
        return findings.text();
      });
}

// Rank 1 still computes with layer 0 when rank 0 has gone as far as it can in fetching layer 1.
void expect_layer_while_read(bool entry_barriers, int layer) {
  expect_in_scene(entry_barriers, [&](const Scene& scene) {
    ExpertSetup& setup = scene.setup;
    scene.findings.expect(setup.exchange->prefetch(setup.plan, setup.layers[0], soon()), "layer 0");
    if (setup.member.rank() == 0) {
      scene.arm();
    } else {
      scene.findings.expect(scene.signal.wait(), "rank 0 came to no barrier");
      setup.expect_slots_hold(scene.findings, setup.plan, layer);
    }
    scene.findings.expect(setup.exchange->prefetch(setup.plan, setup.layers[1], soon()), "layer 1");
    setup.expect_slots_hold(scene.findings, setup.plan, 1);
  });
}

TEST(Hazard1, PrefetchWaitsForARankThatStillReadsItsSlots) {
  expect_layer_while_read(true, 0);
}

// The same scenario without the barrier, to show that it detects the hazard.
TEST(Hazard1, WithoutTheEntryBarrierSlotsChangeWhileTheyAreRead) {
  expect_layer_while_read(false, 1);
}

// Rank 1 ends its wgrad when rank 0 has gone as far as it can in fetching gradients.
void expect_reductions(bool entry_barriers, int times) {
  expect_in_scene(entry_barriers, [&](const Scene& scene) {
    ExpertSetup& setup = scene.setup;
    setup.fill_home_gradients(0);
    if (setup.member.rank() == 0) {
      scene.arm();
    } else {
      scene.findings.expect(scene.signal.wait(), "rank 0 came to no barrier");
      setup.add_slot_gradients(0, setup.plan);
    }
    scene.findings.expect(
        setup.exchange->reduce_gradients(setup.plan, setup.layers[0], soon()), "reduce");
    setup.expect_reduced(scene.findings, setup.plan, 0, times);
  });
}

TEST(Hazard2, GradientsAreFetchedWhenEveryRankHasComputedThem) {
  expect_reductions(true, 1);
}

TEST(Hazard2, WithoutTheEntryBarrierGradientsOfALateRankAreLost) {
  expect_reductions(false, 0);
}

TEST(Hazard3, BackwardFetchesAgainWhatALaterLayerHasReplaced) {
  expect_in_scene(true, [](const Scene& scene) {
    ExpertSetup& setup = scene.setup;
    for (const std::size_t layer : {0U, 1U}) {  // forward
      scene.findings.expect(
          setup.exchange->prefetch(setup.plan, setup.layers[layer], soon()), "forward");
    }
    setup.expect_slots_hold(scene.findings, setup.plan, 1);
    scene.findings.expect(setup.exchange->prefetch(setup.plan, setup.layers[0], soon()), "again");
    setup.expect_slots_hold(scene.findings, setup.plan, 0);
  });
}

MoveCase padded_case() {
  MoveCase test;
  test.shape.ranks = 3;
  test.shape.experts = 6;
  test.shape.top_k = 2;
  test.shape.tokens_max = 24;
  test.shape.padding = 8;
  test.tokens = {24, 5, 0};
  test.spread = Spread::kSkewed;
  test.seed = 5;
  return test;
}

void expect_each_moves(
    const MoveCase& test, const std::function<void(Mover&, int rank, Findings&)>& work) {
  expect_members_succeed(
      RanksAre::kThreads, test.shape.ranks, heap_bytes(test), [&](Member& member) {
        Findings findings;
        Mover mover{member, test};
        findings.expect(
            mover.exchange->make_plan(choices_of(test, member.rank()), mover.plan, soon()), "plan");
        work(mover, member.rank(), findings);
        return findings.text();
      });
}

TEST(Hazard4, NothingReadsOrWritesRowsPastTheLastEnd) {
  const MoveCase test = padded_case();
  expect_each_moves(test, [&](Mover& mover, int rank, Findings& findings) {
    const std::vector<std::byte> x = rows_of(test, rank);
    std::vector<std::byte> y(x.size());
    EpRows received;
    for (int round = 0; round < 2; ++round) {
      findings.expect(mover.exchange->dispatch(mover.plan, x, {}, received, soon()), "dispatch");
      auto* rows = reinterpret_cast<float*>(received.rows.data());  // NOLINT
      const auto end = static_cast<std::size_t>(ep_row_count(mover.plan, rank) * test.hidden);
      const std::size_t all = received.rows.size() / sizeof(float);
      findings.expect(end < all, "the case has no rows past the end");
      const auto is_poison = [](float value) { return std::isnan(value); };
      findings.expect(
          round == 0 || std::all_of(rows + end, rows + all, is_poison), "written past the end");
      std::fill(rows + end, rows + all, std::numeric_limits<float>::quiet_NaN());
      findings.expect(
          mover.exchange->combine(mover.plan, received.rows, {}, y, {}, soon()), "combine");
      const std::vector<float> sums = decode(test.type, y);
      findings.expect(std::none_of(sums.begin(), sums.end(), is_poison), "read past the end");
    }
  });
}

TEST(Hazard4, EndsHaveNoLeadingZeroAndCountPadding) {
  const MoveCase test = padded_case();
  expect_each_moves(test, [&](Mover& mover, int, Findings& findings) {
    const EpPlan& plan = mover.plan;
    const auto groups = static_cast<std::size_t>(test.shape.group_count());
    findings.expect(plan.ends.size() == groups * 3, "one end per group and rank");
    for (std::size_t g = 0; g < plan.ends.size(); ++g) {
      const std::int64_t begin = g % groups == 0 ? 0 : plan.ends[g - 1];
      findings.expect(plan.begins[g] == begin, "begin of group " + std::to_string(g));
      const std::int64_t padded = (plan.group_rows[g] + 7) / 8 * 8;
      findings.expect(plan.ends[g] == begin + padded, "end of group " + std::to_string(g));
    }
  });
}

TEST(Hazard5, ARankWithFewerTokensAddsNoneToAnyExpert) {
  const MoveCase test = padded_case();
  std::vector<std::int32_t> wanted(18, 0);
  for (int r = 0; r < 3; ++r) {
    for (const std::int32_t expert : choices_of(test, r)) {
      ++wanted[static_cast<std::size_t>(r) * 6 + static_cast<std::size_t>(expert)];
    }
  }
  expect_each_moves(test, [&](Mover& mover, int, Findings& findings) {
    findings.expect(mover.plan.counts == wanted, "counts");
    findings.expect(mover.plan.statistics.rows == std::int64_t{24 + 5} * 2, "rows");
  });
}

TEST(Hazard6, AGroupInASlotReadsTheSlotAndNotTheHome) {
  expect_in_scene(true, [](const Scene& scene) {
    ExpertSetup& setup = scene.setup;
    scene.findings.expect(setup.exchange->prefetch(setup.plan, setup.layers[0], soon()), "fetch");
    const int rank = setup.member.rank();
    const int experts = setup.test.shape.experts;
    for (int e = 0; e < experts; ++e) {
      const auto cell = static_cast<std::size_t>(std::int64_t{rank} * experts + e);
      if (setup.plan.rows[cell] == 0 || e / setup.test.shape.local_experts() == rank) {
        continue;
      }
      const int group = setup.plan.groups[cell];
      scene.findings.expect(group >= experts, "expert " + std::to_string(e) + " has no slot");
      const auto used = setup.weights_of_group(0, 0, group);
      const auto wanted = setup.encoded(0, 0, e);
      scene.findings.expect(
          std::equal(used.begin(), used.end(), wanted.begin(), wanted.end()),
          "group " + std::to_string(group) + " is not expert " + std::to_string(e));
      // The view's memory is this rank's own: what is written there is not the home's.
      setup.gradients_of_group(0, 0, group)[0] = 1;
      scene.findings.expect(
          setup.pool->slot_gradients(rank, 0)[static_cast<std::size_t>(group - experts) * 1024] ==
              1,
          "the view's slot is not the pool's");
    }
  });
}

TEST(Hazard7, RanksMayHaveAnyNumberOfTokensAndNone) {
  MoveCase test = padded_case();
  for (const std::vector<int>& tokens :
       {std::vector<int>{0, 0, 1}, {24, 0, 0}, {0, 24, 23}, {0, 0, 0}}) {
    test.tokens = tokens;
    expect_each_moves(test, [&](Mover& mover, int rank, Findings& findings) {
      const std::vector<std::byte> x = rows_of(test, rank);
      std::vector<std::byte> y(x.size());
      EpRows received;
      findings.expect(
          mover.exchange->dispatch(mover.plan, x, gates_of(test, rank), received, soon()), "to");
      findings.expect(
          mover.exchange->combine(mover.plan, received.rows, {}, y, {}, soon()), "back");
      std::vector<float> wanted = decode(test.type, x);
      std::for_each(wanted.begin(), wanted.end(), [](float& value) { value *= 2; });
      findings.expect(decode(test.type, y) == wanted, "y is not 2 x");
      // Equal rows for all but for what does not divide.
      std::vector<std::int64_t> loads;
      for (std::size_t d = 0; d < 3; ++d) {
        const auto* first = mover.plan.rows.data() + d * 6;
        loads.push_back(std::accumulate(first, first + 6, std::int64_t{0}));
      }
      const auto [least, most] = std::minmax_element(loads.begin(), loads.end());
      findings.expect(*most - *least <= 1, "loads differ");
    });
  }
}

TEST(Hazard8, EveryRankHasTheSameTablesByPlainStoresAlone) {
  MoveCase test = padded_case();
  test.shape.ranks = 8;
  test.shape.experts = 16;
  test.tokens = {24, 5, 0, 24, 7, 24, 1, 24};
  std::vector<EpPlan> plans(8);
  expect_each_moves(test, [&](Mover& mover, int rank, Findings&) {
    plans[static_cast<std::size_t>(rank)] = mover.plan;
  });
  for (const EpPlan& plan : plans) {
    EXPECT_EQ(plan.counts, plans[0].counts);
    EXPECT_EQ(plan.rows, plans[0].rows);
    EXPECT_EQ(plan.groups, plans[0].groups);
    EXPECT_EQ(plan.slot_experts, plans[0].slot_experts);
    EXPECT_EQ(plan.ends, plans[0].ends);
    EXPECT_EQ(plan.hash, plans[0].hash);
  }
}

}  // namespace

}  // namespace muster::parallel::testing
