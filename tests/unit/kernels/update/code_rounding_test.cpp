// SPDX-License-Identifier: Apache-2.0
// Stochastic rounding of 8-bit codes: unbiased, independent of cuts, and no state stalls.
#include "tests/unit/kernels/update/reference.h"

#include <muster/common/text.h>

namespace muster::kernels {
namespace {

using test::cast;
using test::kStateTypes;
using test::normal_values;
using test::Shard;

// One state of `count` elements after one step from 0 that stores `values` as they are.
std::vector<float> stored_once(
    bool is_signed, const std::vector<float>& values, std::int64_t step, std::int64_t base = 0) {
  const std::vector<float> zeros(values.size(), 0);
  Shard shard(zeros, StateType::kInt8Block, StateType::kInt8Block);
  UpdateTensors t = shard.tensors(values);
  t.index_base = base;
  if (is_signed) {
    std::vector<float> direction(values.size());
    static_cast<void>(muon_momentum_update(t, {.step = step, .seed = 9}, {}, direction.data()));
    return shard.first.values();
  }
  // v of RMSProp with alpha 0 is g^2.
  std::vector<float> roots;
  for (const float value : values) {
    roots.push_back(std::sqrt(value));
  }
  t.gradient = roots.data();
  static_cast<void>(rmsprop_update(t, {.step = step, .seed = 9}, {.alpha = 0}));
  return shard.second.values();
}

// Values over all pieces of the map, at their borders and between.
std::vector<float> values_over_the_map(bool is_signed) {
  std::vector<float> values(256, 0);
  values[0] = 1;
  for (std::size_t i = 1; i < values.size(); ++i) {
    values[i] = static_cast<float>(std::pow(10.0, -6.2 * static_cast<double>(i) / 256));
    if (is_signed && i % 2 == 0) {
      values[i] *= -1;
    }
  }
  return values;
}

TEST(CodeRounding, IsUnbiasedEverywhereInTheMap) {
  constexpr int kDraws = 4000;
  for (const bool is_signed : {true, false}) {
    const auto values = values_over_the_map(is_signed);
    const auto& map = quant_map(is_signed);
    std::vector<double> sum(values.size(), 0);
    for (int draw = 1; draw <= kDraws; ++draw) {
      const auto stored = stored_once(is_signed, values, draw);
      for (std::size_t i = 0; i < values.size(); ++i) {
        sum[i] += static_cast<double>(stored[i]);
      }
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto above = std::upper_bound(map.begin(), map.end(), values[i]);
      const float gap = above == map.end() ? 0 : *above - *(above - 1);
      if (!is_signed && values[i] < map[1]) {
        continue;  // never becomes 0
      }
      // A mean of draws between two codes: at most gap / 2 / sqrt(draws), five times.
      ASSERT_NEAR(
          sum[i] / kDraws,
          static_cast<double>(values[i]),
          static_cast<double>(gap) * 2.5 / std::sqrt(kDraws) + 2e-5 * std::abs(sum[i]) / kDraws)
          << "signed " << is_signed << ", element " << i;
    }
  }
}

TEST(CodeRounding, TakesOneOfTheTwoCodesAround) {
  for (const bool is_signed : {true, false}) {
    const auto values = values_over_the_map(is_signed);
    const auto& map = quant_map(is_signed);
    for (int draw = 1; draw <= 50; ++draw) {
      const auto stored = stored_once(is_signed, values, draw);
      for (std::size_t i = 1; i < values.size(); ++i) {
        const auto above = std::lower_bound(map.begin(), map.end(), values[i]);
        const float tolerance = std::abs(values[i]) * 1e-5F;
        ASSERT_LE(stored[i], *above + tolerance);
        ASSERT_GE(stored[i], *(above - 1) - tolerance);
      }
    }
  }
}

TEST(CodeRounding, ValuesOfTheMapStay) {
  for (const bool is_signed : {true, false}) {
    const auto& map = quant_map(is_signed);
    const std::vector<float> values(map.begin(), map.end());
    const auto stored = stored_once(is_signed, values, 1);
    std::size_t moved = 0;
    for (std::size_t code = 0; code < values.size(); ++code) {
      moved += std::abs(stored[code] - values[code]) > 1e-5F * std::abs(values[code]) ? 1U : 0U;
    }
    // The roots of v are rounded themselves; 1e-5 of the draws is a tie.
    EXPECT_LE(moved, 1U) << is_signed;
  }
}

TEST(CodeRounding, DependsOnTheGlobalIndexAndNotOnTheCut) {
  const auto gradient = cast<float>(normal_values(5, 1024));
  const auto run = [&](std::vector<std::size_t> cuts, std::int64_t base) {
    Shard shard(std::vector<float>(1024, 0), StateType::kInt8Block, StateType::kInt8Block);
    for (std::int64_t t = 1; t <= 3; ++t) {
      for (std::size_t c = 0; c + 1 < cuts.size(); ++c) {
        UpdateTensors part = shard.tensors(gradient, cuts[c], cuts[c + 1]);
        part.index_base = base;
        static_cast<void>(adamw_update(part, {.step = t, .seed = 3}, {}));
      }
    }
    return shard;
  };
  EXPECT_EQ(run({0, 1024}, 0), run({0, 256, 768, 1024}, 0));
  EXPECT_NE(run({0, 1024}, 0).first, run({0, 1024}, 7).first);
  // Across the border of the upper half of an index.
  const std::int64_t border = (std::int64_t{1} << 32) - 515;
  EXPECT_EQ(run({0, 1024}, border), run({0, 256, 768, 1024}, border));
}

TEST(CodeRounding, NearestGivesTheCodesOfQuantise) {
  const auto gradient = cast<float>(normal_values(6, 600));
  Shard shard(std::vector<float>(600, 0), StateType::kInt8Block);
  std::vector<float> direction(600);
  static_cast<void>(muon_momentum_update(
      shard.tensors(gradient),
      {.code_rounding = CodeRounding::kNearest},
      {.nesterov = false},
      direction.data()));
  std::vector<std::uint8_t> codes(600);
  std::vector<float> absmax(3);
  quantise(true, direction, codes, absmax);
  std::vector<float> expected(600);
  dequantise(true, codes, absmax, expected);
  EXPECT_EQ(shard.first.values(), expected);
}

// ---- drift -------------------------------------------------------------------------------------

using Rule = UpdateStatistics (*)(const UpdateTensors&, const UpdateStep&);

struct NamedRule {
  const char* name;
  Rule update;
};

const NamedRule kRules[] = {
    {"momentum",
     [](const UpdateTensors& t, const UpdateStep& s) { return momentum_update(t, s, {}); }},
    {"nesterov",
     [](const UpdateTensors& t, const UpdateStep& s) {
       return momentum_update(t, s, {.nesterov = true});
     }},
    {"rmsprop",
     [](const UpdateTensors& t, const UpdateStep& s) { return rmsprop_update(t, s, {}); }},
    {"adam",
     [](const UpdateTensors& t, const UpdateStep& s) {
       return adam_update(t, s, {.beta2 = 0.95});
     }},
    {"adamw",
     [](const UpdateTensors& t, const UpdateStep& s) {
       return adamw_update(t, s, {.beta2 = 0.95});
     }},
    {"muon momentum", [](const UpdateTensors& t, const UpdateStep& s) {
       std::vector<float> direction(static_cast<std::size_t>(t.count));
       const UpdateStatistics sums = muon_momentum_update(t, s, {}, direction.data());
       for (std::int64_t i = 0; i < t.count; ++i) {
         t.parameter[i] -=
             static_cast<float>(s.learning_rate) * direction[static_cast<std::size_t>(i)];
       }
       return sums;
     }}};

// In every block one element is busy; the others have a gradient in the first ten steps only.
Shard drifted(Rule update, StateType first, StateType second, int steps, CodeRounding rounding) {
  constexpr std::size_t kCount = 2048;
  Shard shard(std::vector<float>(kCount, 0), first, second);
  std::vector<float> gradient(kCount);
  for (int t = 1; t <= steps; ++t) {
    for (std::size_t i = 0; i < kCount; ++i) {
      const float quiet = 0.02F + 0.9F * static_cast<float>(i % 256) / 256;
      gradient[i] = i % 256 == 0 ? 1.0F : t <= 10 ? quiet : 0.0F;
    }
    static_cast<void>(update(
        shard.tensors(gradient),
        {.learning_rate = 1, .step = t, .seed = 11, .code_rounding = rounding}));
  }
  return shard;
}

double quiet_mean(const std::vector<float>& values) {
  double mean = 0;
  double count = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i % 256 != 0) {
      mean += static_cast<double>(values[i]);
      count += 1;
    }
  }
  return mean / count;
}

TEST(Drift, EveryRuleEndsWhereItDoesWithFp32StatesWhateverTheirType) {
  constexpr int kSteps = 1000;
  for (const NamedRule& rule : kRules) {
    const Shard exact = drifted(
        rule.update, StateType::kFloat32, StateType::kFloat32, kSteps, CodeRounding::kStochastic);
    for (const StateType first : kStateTypes) {
      for (const StateType second : kStateTypes) {
        SCOPED_TRACE(concat(rule.name, ", first ", first, ", second ", second));
        const Shard stored = drifted(rule.update, first, second, kSteps, CodeRounding::kStochastic);
        const double moved = quiet_mean(stored.parameter);
        const double expected = quiet_mean(exact.parameter);
        EXPECT_NEAR(moved / expected, 1, 0.1);
      }
    }
  }
}

TEST(Drift, ABusyElementHoldsNoMomentumOfItsNeighbours) {
  for (const StateType type : kStateTypes) {
    const Shard shard =
        drifted(kRules[5].update, type, StateType::kFloat32, 310, CodeRounding::kStochastic);
    EXPECT_LT(quiet_mean(shard.first.values()), 1e-4) << to_string(type);
  }
  // The busy element's momentum is 20, those of the others were up to 8.
  const Shard nearest = drifted(
      kRules[5].update, StateType::kInt8Block, StateType::kFloat32, 310, CodeRounding::kNearest);
  EXPECT_GT(quiet_mean(nearest.first.values()), 0.1);
}

}  // namespace
}  // namespace muster::kernels
