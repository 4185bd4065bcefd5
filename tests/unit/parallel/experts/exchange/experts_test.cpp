// SPDX-License-Identifier: Apache-2.0
// Expert weights into slots, their gradients home.
#include "tests/unit/parallel/experts/exchange/expert_case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

namespace muster::parallel::testing {

namespace {

struct ExpertCase {
  std::string name;
  RanksAre kind;
  int ranks;
  Spread spread;
  DType weight_type;
  bool compact{false};
};

std::vector<ExpertCase> expert_cases() {
  const DType fp32 = DType::kFloat32;
  const DType bf16 = DType::kBFloat16;
  return {
      {"TwoThreadsSkewed", RanksAre::kThreads, 2, Spread::kSkewed, fp32},
      {"ThreeThreadsOneExpert", RanksAre::kThreads, 3, Spread::kOneExpert, bf16},
      {"FourThreadsSkewed", RanksAre::kThreads, 4, Spread::kSkewed, bf16},
      {"EightThreadsOneExpert", RanksAre::kThreads, 8, Spread::kOneExpert, fp32},
      {"FourThreadsCompact", RanksAre::kThreads, 4, Spread::kOneExpert, bf16, true},
      {"ThreeForkedSkewed", RanksAre::kProcesses, 3, Spread::kSkewed, bf16},
      {"EightForkedOneExpert", RanksAre::kProcesses, 8, Spread::kOneExpert, fp32},
  };
}

class Experts : public ::testing::TestWithParam<ExpertCase> {
 protected:
  // Runs `work` on every rank with its setup of two layers.
  static void expect_each(const std::function<void(ExpertSetup&, Findings&)>& work) {
    const ExpertCase& chosen = GetParam();
    MoveCase test = expert_case(chosen.ranks, chosen.spread, 7);
    test.shape.compact = chosen.compact;
    expect_members_succeed(
        chosen.kind,
        chosen.ranks,
        expert_heap_bytes(test, chosen.weight_type, 2),
        [&](Member& member) {
          Findings findings;
          ExpertSetup setup{member, test, chosen.weight_type, 2};
          findings.expect(setup.error.empty(), setup.error);
          if (setup.error.empty()) {
            findings.expect(setup.plan.statistics.copies > 0, "the case needs no slots");
            work(setup, findings);
          }
          return findings.text();
        });
  }
};

INSTANTIATE_TEST_SUITE_P(Cases, Experts, ::testing::ValuesIn(expert_cases()), [](const auto& each) {
  return each.param.name;
});

TEST_P(Experts, SlotsHoldWhatTheHomesHaveAndUnusedOnesWhatTheyHad) {
  expect_each([](ExpertSetup& setup, Findings& findings) {
    setup.fill_slots(0x5A);
    findings.expect(setup.exchange->prefetch(setup.plan, setup.layers[1], soon()), "prefetch");
    setup.expect_slots_hold(findings, setup.plan, 1);
    for (int slot = 0; slot < setup.test.shape.slot_count(); ++slot) {
      if (setup.slot_expert(setup.plan, setup.member.rank(), slot) >= 0) {
        continue;
      }
      for (std::size_t p = 0; p < 2; ++p) {
        const auto held = setup.weights_of_group(1, p, setup.group_of_slot(slot));
        const bool untouched = std::all_of(
            held.begin(), held.end(), [](std::byte each) { return each == std::byte{0x5A}; });
        findings.expect(untouched, "unused slot " + std::to_string(slot));
      }
    }
  });
}

TEST_P(Experts, GradientsArriveBitForBitAndUsedSlotsAreZeroAfterwards) {
  expect_each([](ExpertSetup& setup, Findings& findings) {
    setup.fill_slots(0);
    setup.fill_home_gradients(0);
    setup.add_slot_gradients(0, setup.plan);
    // A marker in the slots that the plan leaves free.
    const int slots = setup.test.shape.slot_count();
    const auto is_used = [&](int slot) {
      return setup.slot_expert(setup.plan, setup.member.rank(), slot) >= 0;
    };
    for (int slot = 0; slot < slots; ++slot) {
      if (!is_used(slot)) {
        setup.gradients_of_group(0, 0, setup.group_of_slot(slot))[3] = 17;
      }
    }
    findings.expect(
        setup.exchange->reduce_gradients(setup.plan, setup.layers[0], soon()), "reduce_gradients");
    setup.expect_reduced(findings, setup.plan, 0, 1);
    for (int slot = 0; slot < slots; ++slot) {
      const auto first = setup.gradients_of_group(0, 0, setup.group_of_slot(slot));
      const auto second = setup.gradients_of_group(0, 1, setup.group_of_slot(slot));
      findings.expect(first[3] == (is_used(slot) ? 0.0F : 17.0F), "slot " + std::to_string(slot));
      const auto zero = [](float value) { return value == 0; };
      findings.expect(
          !is_used(slot) || (std::all_of(first.begin(), first.end(), zero) &&
                             std::all_of(second.begin(), second.end(), zero)),
          "used slot " + std::to_string(slot) + " is not zero");
    }
  });
}

TEST_P(Experts, TheNextMicroBatchStartsWithCleanSlots) {
  expect_each([](ExpertSetup& setup, Findings& findings) {
    setup.fill_home_gradients(0);
    for (int micro_batch = 0; micro_batch < 3; ++micro_batch) {
      setup.add_slot_gradients(0, setup.plan);
      findings.expect(
          setup.exchange->reduce_gradients(setup.plan, setup.layers[0], soon()), "reduce");
    }
    setup.expect_reduced(findings, setup.plan, 0, 3);
  });
}

TEST_P(Experts, LayersShareSlotsAndKeepTheirOwnHomes) {
  expect_each([](ExpertSetup& setup, Findings& findings) {
    for (const int layer : {0, 1, 0}) {
      const auto index = static_cast<std::size_t>(layer);
      findings.expect(
          setup.exchange->prefetch(setup.plan, setup.layers[index], soon()), "prefetch");
      setup.expect_slots_hold(findings, setup.plan, layer);
    }
    for (const int layer : {0, 1}) {
      for (int e = 0; e < setup.test.shape.local_experts(); ++e) {
        const int expert = setup.member.rank() * setup.test.shape.local_experts() + e;
        const int group = setup.test.shape.compact ? e : expert;
        const auto held = setup.weights_of_group(layer, 1, group);
        const auto wanted = setup.encoded(layer, 1, expert);
        findings.expect(
            std::equal(held.begin(), held.end(), wanted.begin(), wanted.end()), "home weights");
      }
    }
  });
}

// B < m: what has no slot is read where it lives.
TEST(ExpertOverflow, GroupsWithoutASlotReadTheirHomeAndRefuseGradients) {
  MoveCase test = expert_case(2, Spread::kAtHome, 3);
  test.shape.experts = 8;
  test.shape.slots = 1;
  test.tokens = {24, 0};
  expect_members_succeed(
      RanksAre::kThreads, 2, expert_heap_bytes(test, DType::kFloat32, 1), [&](Member& member) {
        Findings findings;
        ExpertSetup setup{member, test, DType::kFloat32, 1};
        findings.expect(setup.error.empty(), setup.error);
        findings.expect(setup.plan.statistics.overflow_groups > 0, "the case has no overflow");
        findings.expect(setup.exchange->prefetch(setup.plan, setup.layers[0], soon()), "prefetch");
        for (int e = 0; e < test.shape.experts; ++e) {
          const auto cell =
              static_cast<std::size_t>(std::int64_t{member.rank()} * test.shape.experts + e);
          if (setup.plan.rows[cell] > 0) {
            const auto held = setup.weights_of_group(0, 1, setup.plan.groups[cell]);
            const auto wanted = setup.encoded(0, 1, e);
            findings.expect(
                std::equal(held.begin(), held.end(), wanted.begin(), wanted.end()),
                "weights of expert " + std::to_string(e));
          }
        }
        const Status refused =
            setup.exchange->reduce_gradients(setup.plan, setup.layers[0], soon());
        findings.expect(
            refused.message().find("training needs slots = 4") != std::string::npos,
            "reduce: " + refused.to_string());
        return findings.text();
      });
}

}  // namespace

}  // namespace muster::parallel::testing
