// SPDX-License-Identifier: Apache-2.0
// Low-precision states and parameters in every rule, and what must not stall or blow up.
#include "tests/unit/kernels/update/reference.h"

#include <muster/common/text.h>

namespace muster::kernels {
namespace {

using test::cast;
using test::kStateTypes;
using test::normal_values;
using test::relative_distance;
using test::Shard;
using test::Values;

using Rule = UpdateStatistics (*)(const UpdateTensors&, const UpdateStep&);

struct PreciseRule {
  const char* name;
  Rule update;
};

const PreciseRule kPreciseRules[] = {
    {"sgd", sgd_update},
    {"momentum",
     [](const UpdateTensors& t, const UpdateStep& s) { return momentum_update(t, s, {}); }},
    {"nesterov",
     [](const UpdateTensors& t, const UpdateStep& s) {
       return momentum_update(t, s, {.nesterov = true});
     }},
    {"rmsprop",
     [](const UpdateTensors& t, const UpdateStep& s) { return rmsprop_update(t, s, {}); }},
    {"adam", [](const UpdateTensors& t, const UpdateStep& s) { return adam_update(t, s, {}); }},
    {"adamw", [](const UpdateTensors& t, const UpdateStep& s) { return adamw_update(t, s, {}); }}};

UpdateStep step_at(std::int64_t t, bool statistics = true) {
  return {
      .learning_rate = 1e-3, .weight_decay = 0.1, .step = t, .seed = 4, .statistics = statistics};
}

std::vector<float> gradient_at(std::int64_t t, std::size_t count) {
  return cast<float>(
      normal_values(static_cast<std::uint64_t>(500 + t), static_cast<std::int64_t>(count)));
}

// Calls body(rule, first type, second type, type of the copy) for every combination.
template <typename Body>
void for_every_option(Body body) {
  for (const PreciseRule& rule : kPreciseRules) {
    for (const StateType first : kStateTypes) {
      for (const StateType second : kStateTypes) {
        for (const DType copy : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
          SCOPED_TRACE(concat(rule.name, ", first ", first, ", second ", second, ", copy ", copy));
          body(rule.update, first, second, copy);
        }
      }
    }
  }
}

TEST(UpdateOptions, EveryCombinationStaysCloseToFp32States) {
  constexpr std::size_t kCount = 600;
  const auto initial = cast<float>(normal_values(41, kCount));
  for_every_option([&](Rule update, StateType first, StateType second, DType copy) {
    Shard exact(initial);
    Shard stored(initial, first, second, copy);
    for (std::int64_t t = 1; t <= 10; ++t) {
      const auto gradient = gradient_at(t, kCount);
      static_cast<void>(update(exact.tensors(gradient), step_at(t)));
      static_cast<void>(update(stored.tensors(gradient), step_at(t)));
    }
    Values moved;
    std::vector<float> stored_moved;
    for (std::size_t i = 0; i < kCount; ++i) {
      moved.push_back(static_cast<double>(exact.parameter[i] - initial[i]));
      stored_moved.push_back(stored.parameter[i] - initial[i]);
    }
    // Of the way gone: states are good to 0.4 % (bf16) or 1 to 2 % (8 bits) each.
    const bool exact_states = first == StateType::kFloat32 && second == StateType::kFloat32;
    ASSERT_LE(relative_distance(stored_moved, moved), exact_states ? 0 : 0.06);
  });
}

TEST(UpdateOptions, TheCopyIsTheRoundedMaster) {
  for_every_option([&](Rule update, StateType first, StateType second, DType copy) {
    if (copy == DType::kFloat32) {
      return;
    }
    Shard shard(cast<float>(normal_values(42, 300)), first, second, copy);
    const auto gradient = gradient_at(1, 300);
    static_cast<void>(update(shard.tensors(gradient), step_at(1)));
    std::vector<std::uint16_t> expected(300);
    narrow(copy, shard.parameter, expected);
    ASSERT_EQ(shard.narrow_copy, expected);
  });
}

TEST(UpdateOptions, StatisticsChangeNoBitOfTheResult) {
  for_every_option([&](Rule update, StateType first, StateType second, DType copy) {
    Shard with(cast<float>(normal_values(43, 700)), first, second, copy);
    Shard without = with;
    for (std::int64_t t = 1; t <= 3; ++t) {
      const auto gradient = gradient_at(t, 700);
      static_cast<void>(update(with.tensors(gradient), step_at(t)));
      const UpdateStatistics none = update(without.tensors(gradient), step_at(t, false));
      ASSERT_EQ(none.update_squared_sum, 0);
      ASSERT_EQ(none.second_moment_tiny_count, 0);
    }
    ASSERT_EQ(with, without);
  });
}

TEST(UpdateOptions, ShardsCanBeCutAnywhereAndEightBitOnesAtBlocks) {
  constexpr std::size_t kCount = 1100;
  for_every_option([&](Rule update, StateType first, StateType second, DType copy) {
    Shard whole(cast<float>(normal_values(44, kCount)), first, second, copy);
    Shard parts = whole;
    const bool blocks = first == StateType::kInt8Block || second == StateType::kInt8Block;
    const std::vector<std::size_t> cuts =
        blocks ? std::vector<std::size_t>{0, 256, 768, kCount}
               : std::vector<std::size_t>{0, 1, 18, 300, 301, 777, kCount};
    for (std::int64_t t = 1; t <= 3; ++t) {
      const auto gradient = gradient_at(t, kCount);
      static_cast<void>(update(whole.tensors(gradient), step_at(t)));
      for (std::size_t c = 0; c + 1 < cuts.size(); ++c) {
        static_cast<void>(update(parts.tensors(gradient, cuts[c], cuts[c + 1]), step_at(t)));
      }
    }
    ASSERT_EQ(whole, parts);
  });
}

TEST(UpdateOptions, MuonMomentumTakesEveryStateType) {
  constexpr std::size_t kCount = 600;
  for (const bool nesterov : {false, true}) {
    for (const bool ema : {false, true}) {
      const MuonMomentumFactors factors{.nesterov = nesterov, .ema = ema};
      Shard exact(std::vector<float>(kCount, 0));
      std::vector<float> expected(kCount);
      for (const StateType type : kStateTypes) {
        Shard stored(std::vector<float>(kCount, 0), type);
        std::vector<float> direction(kCount);
        exact = Shard(std::vector<float>(kCount, 0));
        for (std::int64_t t = 1; t <= 30; ++t) {
          const auto gradient = gradient_at(t, kCount);
          static_cast<void>(
              muon_momentum_update(exact.tensors(gradient), step_at(t), factors, expected.data()));
          static_cast<void>(muon_momentum_update(
              stored.tensors(gradient), step_at(t), factors, direction.data()));
        }
        // Errors of 1 % per step, which decay by mu: sqrt(1 / (1 - 0.95^2)) = 3.2 of them.
        EXPECT_LE(
            relative_distance(direction, cast<double>(expected)),
            type == StateType::kFloat32 ? 0 : 0.05)
            << to_string(type);
      }
    }
  }
}

// ---- stalls and blow-ups -----------------------------------------------------------------------

TEST(LowPrecisionStates, Bf16VarianceDecaysWhereRoundingToNearestWouldFreeze) {
  // beta2 = 0.999: a step of -0.1 % is below half an ulp of a bf16, rounding to nearest keeps v.
  constexpr std::size_t kCount = 4096;
  Shard shard(std::vector<float>(kCount, 0), StateType::kFloat32, StateType::kBFloat16);
  const std::vector<float> one(kCount, 1);
  const std::vector<float> zero(kCount, 0);
  static_cast<void>(adamw_update(shard.tensors(one), step_at(1), {}));
  for (std::int64_t t = 2; t <= 1001; ++t) {
    static_cast<void>(adamw_update(shard.tensors(zero), step_at(t), {}));
  }
  double mean = 0;
  for (const float v : shard.second.values()) {
    mean += static_cast<double>(v) / kCount;
  }
  // Relative error of one element after 1000 roundings of 0.4 % / sqrt(12): 4 %; of the mean of
  // 4096 elements 0.06 %.
  EXPECT_NEAR(mean / (0.001 * std::pow(0.999, 1000)), 1, 0.003);
}

TEST(LowPrecisionStates, EightBitStatesOfZeroGradientsMoveNothing) {
  Shard shard(std::vector<float>(600, 1), StateType::kInt8Block, StateType::kInt8Block);
  const std::vector<float> zero(600, 0);
  UpdateStep step = step_at(1);
  step.weight_decay = 0;
  for (; step.step <= 5; ++step.step) {
    static_cast<void>(adamw_update(shard.tensors(zero), step, {.epsilon = 0}));
  }
  EXPECT_EQ(shard.parameter, std::vector<float>(600, 1));
}

TEST(LowPrecisionStates, AnEightBitVarianceBesideALargeOneDoesNotBlowUp) {
  // v of element 1 is 1e-10 of its block's largest: as code 0 it would make the step m / epsilon.
  std::vector<float> gradient(256, 0);
  gradient[0] = 1;
  gradient[1] = 1e-5F;
  Shard shard(std::vector<float>(256, 0), StateType::kInt8Block, StateType::kInt8Block);
  UpdateStep step = step_at(1);
  step.weight_decay = 0;
  for (; step.step <= 50; ++step.step) {
    const UpdateStatistics sums = adamw_update(shard.tensors(gradient), step, {.epsilon = 1e-12});
    ASSERT_LE(sums.update_abs_max, 1.1e-3) << step.step;
  }
}

TEST(LowPrecisionStates, AnOutlierCoarsensItsBlockOnly) {
  auto gradient = gradient_at(1, 1024);
  Shard plain(std::vector<float>(1024, 0), StateType::kInt8Block, StateType::kInt8Block);
  Shard spiked = plain;
  static_cast<void>(adamw_update(plain.tensors(gradient), step_at(1), {}));
  gradient[300] *= 1e6F;
  static_cast<void>(adamw_update(spiked.tensors(gradient), step_at(1), {}));
  const auto a = plain.first.values();
  const auto b = spiked.first.values();
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (i / 256 != 1) {
      ASSERT_EQ(a[i], b[i]);
    }
  }
}

TEST(LowPrecisionStates, RoundingIsReproducibleAndChangesWithSeedStepAndTensor) {
  const auto run = [](std::uint64_t seed) {
    Shard shard(std::vector<float>(600, 0), StateType::kBFloat16, StateType::kBFloat16);
    for (std::int64_t t = 1; t <= 5; ++t) {
      UpdateStep step = step_at(t);
      step.seed = seed;
      static_cast<void>(adamw_update(shard.tensors(gradient_at(t, 600)), step, {}));
    }
    return shard;
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1).first, run(2).first);
}

// ---- convergence -------------------------------------------------------------------------------

// Least squares y = X w on fixed data; returns the loss after `steps` of `update(shard, gradient)`.
template <typename Update>
double regression_loss(Shard& shard, int steps, Update update) {
  constexpr std::size_t kRows = 64;
  const std::size_t columns = shard.parameter.size();
  const Values x = normal_values(71, static_cast<std::int64_t>(kRows * columns));
  const Values truth = normal_values(72, static_cast<std::int64_t>(columns));
  double loss = 0;
  for (int t = 1; t <= steps; ++t) {
    std::vector<double> gradient(columns, 0);
    loss = 0;
    for (std::size_t r = 0; r < kRows; ++r) {
      double error = 0;
      for (std::size_t c = 0; c < columns; ++c) {
        error += x[r * columns + c] * (static_cast<double>(shard.parameter[c]) - truth[c]);
      }
      loss += error * error / kRows;
      for (std::size_t c = 0; c < columns; ++c) {
        gradient[c] += 2 * error * x[r * columns + c] / kRows;
      }
    }
    update(shard, cast<float>(gradient), t);
  }
  return loss;
}

TEST(LowPrecisionStates, AdamWConvergesWithEveryStateType) {
  constexpr std::size_t kColumns = 300;
  const auto run = [](StateType type) {
    Shard shard(std::vector<float>(kColumns, 0), type, type);
    return regression_loss(
        shard, 400, [](Shard& s, const std::vector<float>& gradient, std::int64_t t) {
          const UpdateStep step{
              .learning_rate = 0.02 * std::pow(0.98, static_cast<double>(t)), .step = t};
          static_cast<void>(adamw_update(s.tensors(gradient), step, {.beta2 = 0.99}));
        });
  };
  const double exact = run(StateType::kFloat32);
  EXPECT_LT(exact, 0.1);  // from about 300
  // Errors of the states average out over steps; the loss may end a little higher or lower.
  EXPECT_LT(run(StateType::kBFloat16), 2 * exact);
  EXPECT_LT(run(StateType::kInt8Block), 2 * exact);
}

TEST(LowPrecisionStates, MuonMomentumConvergesWithEveryStateType) {
  constexpr std::size_t kColumns = 300;
  const auto run = [](StateType type) {
    Shard shard(std::vector<float>(kColumns, 0), type);
    std::vector<float> direction(kColumns);
    return regression_loss(
        shard, 400, [&](Shard& s, const std::vector<float>& gradient, std::int64_t t) {
          const UpdateStep step{
              .learning_rate = 0.2 * std::pow(0.98, static_cast<double>(t)), .step = t};
          static_cast<void>(
              muon_momentum_update(s.tensors(gradient), step, {.momentum = 0.9}, direction.data()));
          // One row: its orthogonal factor is the row over its norm.
          double norm = 0;
          for (const float u : direction) {
            norm += static_cast<double>(u) * static_cast<double>(u);
          }
          for (float& u : direction) {
            u = static_cast<float>(static_cast<double>(u) / std::sqrt(norm));
          }
          static_cast<void>(muon_apply_update(s.tensors(gradient), step, 5, direction.data()));
        });
  };
  const double exact = run(StateType::kFloat32);
  EXPECT_LT(exact, 1e-2);
  EXPECT_LT(run(StateType::kBFloat16), 2 * exact + 1e-3);
  EXPECT_LT(run(StateType::kInt8Block), 2 * exact + 1e-3);
}

}  // namespace
}  // namespace muster::kernels
