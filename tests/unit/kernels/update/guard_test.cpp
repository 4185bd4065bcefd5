// SPDX-License-Identifier: Apache-2.0
// What would become infinite is not stored: the element, or the block of 8-bit states, stays.
#include "tests/unit/kernels/update/reference.h"

#include <muster/common/text.h>

#include <limits>

namespace muster::kernels {
namespace {

using test::cast;
using test::kStateTypes;
using test::normal_values;
using test::Shard;

constexpr std::size_t kGuardedCount = 700;  // two blocks and a short one
constexpr float kHuge = 3e38F;

using Rule = UpdateStatistics (*)(const UpdateTensors&, const UpdateStep&);

struct GuardedRule {
  const char* name;
  Rule update;
  bool has_first;
  bool has_second;
};

const GuardedRule kGuardedRules[] = {
    {"sgd", sgd_update, false, false},
    {"momentum",
     [](const UpdateTensors& t, const UpdateStep& s) { return momentum_update(t, s, {}); },
     true,
     false},
    {"rmsprop",
     [](const UpdateTensors& t, const UpdateStep& s) { return rmsprop_update(t, s, {}); },
     false,
     true},
    {"adam",
     [](const UpdateTensors& t, const UpdateStep& s) { return adam_update(t, s, {}); },
     true,
     true},
    {"adamw",
     [](const UpdateTensors& t, const UpdateStep& s) { return adamw_update(t, s, {}); },
     true,
     true}};

// Calls body(rule, first type, second type) for every rule and every type of the states it has.
template <typename Body>
void for_every_state(Body body) {
  for (const GuardedRule& rule : kGuardedRules) {
    for (const StateType first : kStateTypes) {
      for (const StateType second : kStateTypes) {
        if ((!rule.has_first && first != StateType::kFloat32) ||
            (!rule.has_second && second != StateType::kFloat32)) {
          continue;
        }
        SCOPED_TRACE(concat(rule.name, ", first ", first, ", second ", second));
        body(rule, first, second);
      }
    }
  }
}

// A shard after some steps, so that no state is 0.
Shard warm_shard(const GuardedRule& rule, StateType first, StateType second) {
  Shard shard(cast<float>(normal_values(81, kGuardedCount)), first, second, DType::kBFloat16);
  for (std::int64_t t = 1; t <= 3; ++t) {
    const auto gradient =
        cast<float>(normal_values(static_cast<std::uint64_t>(82 + t), kGuardedCount));
    static_cast<void>(
        rule.update(shard.tensors(gradient), {.learning_rate = 1e-3, .step = t, .seed = 4}));
  }
  return shard;
}

TEST(UpdateGuard, WhatWouldOverflowStaysAndAllElseMovesAsWithoutIt) {
  for_every_state([&](const GuardedRule& rule, StateType first, StateType second) {
    const Shard before = warm_shard(rule, first, second);
    auto gradient = cast<float>(normal_values(86, kGuardedCount));
    // Overflows in g^2 or in the gradient itself.
    const UpdateStep step{.learning_rate = 1e-3, .gradient_scale = 2, .step = 4, .seed = 4};
    Shard clean = before;
    static_cast<void>(rule.update(clean.tensors(gradient), step));
    for (const std::size_t bad : {std::size_t{3}, std::size_t{300}, kGuardedCount - 1}) {
      gradient[bad] = kHuge;
    }
    Shard guarded = before;
    const UpdateStatistics sums = rule.update(guarded.tensors(gradient), step);
    const bool blocks = (rule.has_first && first == StateType::kInt8Block) ||
                        (rule.has_second && second == StateType::kInt8Block);
    ASSERT_EQ(sums.withheld_count, blocks ? static_cast<std::int64_t>(kGuardedCount) : 3);
    ASSERT_EQ(sums.lost_count, 0);
    for (std::size_t i = 0; i < kGuardedCount; ++i) {
      const bool stays = blocks || gradient[i] == kHuge;
      const Shard& expected = stays ? before : clean;
      ASSERT_EQ(guarded.parameter[i], expected.parameter[i]) << i;
      ASSERT_EQ(guarded.narrow_copy[i], expected.narrow_copy[i]) << i;
      ASSERT_EQ(guarded.first.values()[i], expected.first.values()[i]) << i;
      ASSERT_EQ(guarded.second.values()[i], expected.second.values()[i]) << i;
    }
  });
}

TEST(UpdateGuard, KeepsTheBlockOfAnEightBitStateAndNoOther) {
  const GuardedRule& adamw = kGuardedRules[4];
  const Shard before = warm_shard(adamw, StateType::kInt8Block, StateType::kInt8Block);
  auto gradient = cast<float>(normal_values(86, kGuardedCount));
  gradient[300] = kHuge;
  Shard after = before;
  const UpdateStatistics sums =
      adamw.update(after.tensors(gradient), {.learning_rate = 1e-3, .step = 4});
  EXPECT_EQ(sums.withheld_count, 256);
  for (std::size_t i = 0; i < kGuardedCount; ++i) {
    ASSERT_EQ(after.parameter[i] == before.parameter[i], i / 256 == 1) << i;
  }
}

TEST(UpdateGuard, DecidesAlikeWhereverAShardIsCut) {
  for_every_state([&](const GuardedRule& rule, StateType first, StateType second) {
    Shard whole = warm_shard(rule, first, second);
    Shard parts = whole;
    auto gradient = cast<float>(normal_values(86, kGuardedCount));
    gradient[255] = gradient[256] = kHuge;
    const UpdateStep step{.learning_rate = 1e-3, .gradient_scale = 2, .step = 4, .seed = 4};
    const UpdateStatistics all = rule.update(whole.tensors(gradient), step);
    UpdateStatistics sum = rule.update(parts.tensors(gradient, 0, 256), step);
    sum.add(rule.update(parts.tensors(gradient, 256), step));
    ASSERT_EQ(whole, parts);
    ASSERT_EQ(sum.withheld_count, all.withheld_count);
  });
}

TEST(UpdateGuard, IsTheSameWithoutStatistics) {
  for_every_state([&](const GuardedRule& rule, StateType first, StateType second) {
    Shard with = warm_shard(rule, first, second);
    Shard without = with;
    auto gradient = cast<float>(normal_values(86, kGuardedCount));
    gradient[3] = kHuge;
    UpdateStep step{.learning_rate = 1e-3, .gradient_scale = 2, .step = 4, .seed = 4};
    const UpdateStatistics counted = rule.update(with.tensors(gradient), step);
    step.statistics = false;
    const UpdateStatistics sums = rule.update(without.tensors(gradient), step);
    ASSERT_EQ(with, without);
    ASSERT_EQ(sums.withheld_count, counted.withheld_count);
    ASSERT_GT(sums.withheld_count, 0);
    ASSERT_EQ(sums.update_squared_sum, 0);
  });
}

TEST(UpdateGuard, ParametersDoNotOverflowEither) {
  Shard shard(std::vector<float>(20, -3e38F));
  const UpdateStatistics sums = sgd_update(
      shard.tensors(std::vector<float>(20, 3e38F)), {.learning_rate = 1, .statistics = false});
  EXPECT_EQ(shard.parameter, std::vector<float>(20, -3e38F));
  EXPECT_EQ(sums.withheld_count, 20);
}

TEST(UpdateGuard, RoundingToBfloat16DoesNotReachInfinity) {
  Shard shard(std::vector<float>(64, 0), StateType::kBFloat16);
  std::vector<float> direction(64);
  // Between the largest bf16, 3.3895e38, and the largest float.
  const std::vector<float> gradient(64, 3.4e38F);
  const UpdateStatistics sums =
      muon_momentum_update(shard.tensors(gradient), {}, {.nesterov = false}, direction.data());
  EXPECT_EQ(sums.withheld_count, 64);
  EXPECT_EQ(shard.first.values(), std::vector<float>(64, 0));
}

TEST(UpdateGuard, AMomentumThatWasWithheldHasNoDirection) {
  for (const StateType type : kStateTypes) {
    Shard shard(std::vector<float>(kGuardedCount, 0), type);
    std::vector<float> gradient(kGuardedCount, 1);
    gradient[300] = std::numeric_limits<float>::infinity();
    std::vector<float> direction(kGuardedCount);
    static_cast<void>(muon_momentum_update(shard.tensors(gradient), {}, {}, direction.data()));
    for (std::size_t i = 0; i < kGuardedCount; ++i) {
      const bool stays = type == StateType::kInt8Block ? i / 256 == 1 : i == 300;
      ASSERT_EQ(std::isnan(direction[i]), stays) << to_string(type) << ' ' << i;
      ASSERT_EQ(shard.first.values()[i] == 0, stays) << to_string(type) << ' ' << i;
    }
  }
}

TEST(UpdateGuard, AnInfiniteVarianceStaysInfiniteAndMovesNothing) {
  for (const StateType type : kStateTypes) {
    Shard shard(std::vector<float>(kGuardedCount, 1), StateType::kFloat32, type);
    const UpdateTensors t = shard.tensors(std::vector<float>(kGuardedCount, 1));
    if (type == StateType::kFloat32) {
      static_cast<float*>(t.second.data)[5] = std::numeric_limits<float>::infinity();
    } else if (type == StateType::kBFloat16) {
      static_cast<std::uint16_t*>(t.second.data)[5] = 0x7F80;
    } else {
      static_cast<std::uint8_t*>(t.second.data)[5] = 9;
      t.second.absmax[0] = std::numeric_limits<float>::infinity();
    }
    const std::vector<float> gradient(kGuardedCount, 1);
    for (std::int64_t step = 1; step <= 3; ++step) {
      const UpdateStatistics sums =
          adamw_update(shard.tensors(gradient), {.learning_rate = 1e-3, .step = step}, {});
      const std::int64_t lost = type == StateType::kInt8Block ? 256 : 1;
      EXPECT_EQ(sums.withheld_count, lost) << to_string(type);
      EXPECT_EQ(sums.lost_count, lost) << to_string(type);
    }
    EXPECT_TRUE(std::isinf(shard.second.values()[5])) << to_string(type);
    EXPECT_EQ(shard.parameter[5], 1) << to_string(type);
    EXPECT_NE(shard.parameter[kGuardedCount - 1], 1) << to_string(type);
  }
}

}  // namespace
}  // namespace muster::kernels
