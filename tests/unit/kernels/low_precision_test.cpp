// SPDX-License-Identifier: Apache-2.0
#include "tests/support/floats.h"
#include "tests/unit/kernels/numbers.h"

#include <muster/kernels/update_kernels.h>

#include <bit>
#include <limits>
#include <set>

namespace muster::kernels {
namespace {

using muster::test::kInfinityF;
using muster::test::kNanF;

using test::cast;
using test::normal_values;

std::uint16_t narrow_one(DType type, float value) {
  std::uint16_t bits = 0;
  narrow(type, {&value, 1}, {&bits, 1});
  return bits;
}

float widen_one(DType type, std::uint16_t bits) {
  float value = 0;
  widen(type, {&bits, 1}, {&value, 1});
  return value;
}

TEST(LowPrecision, Bf16IsTheUpperHalfOfAFloat) {
  EXPECT_EQ(narrow_one(DType::kBFloat16, 1.0F), 0x3F80);
  EXPECT_EQ(narrow_one(DType::kBFloat16, -2.0F), 0xC000);
  EXPECT_EQ(narrow_one(DType::kBFloat16, 0.999F), 0x3F80);
  EXPECT_EQ(widen_one(DType::kBFloat16, 0x3F81), 1.0078125F);
}

TEST(LowPrecision, Bf16TiesGoToEven) {
  EXPECT_EQ(narrow_one(DType::kBFloat16, std::bit_cast<float>(0x3F808000U)), 0x3F80);
  EXPECT_EQ(narrow_one(DType::kBFloat16, std::bit_cast<float>(0x3F818000U)), 0x3F82);
  EXPECT_EQ(narrow_one(DType::kBFloat16, std::bit_cast<float>(0x3F808001U)), 0x3F81);
}

TEST(LowPrecision, Fp16GoldenValues) {
  const std::pair<float, std::uint16_t> golden[] = {
      {1.0F, 0x3C00},
      {-2.0F, 0xC000},
      {0.0F, 0x0000},
      {-0.0F, 0x8000},
      {65504.0F, 0x7BFF},    // largest finite
      {65519.996F, 0x7BFF},  // just below the middle to 65536
      {65520.0F, 0x7C00},    // the middle: even is infinity
      {1e6F, 0x7C00},
      {-kInfinityF, 0xFC00},
      {0x1p-14F, 0x0400},        // smallest normal
      {0x1p-24F, 0x0001},        // smallest subnormal
      {0x1p-25F, 0x0000},        // half of it: even is 0
      {0x1.8p-24F, 0x0002},      // 1.5: even is 2
      {1.00048828125F, 0x3C00},  // 1 + 2^-11: tie to even
      {0x1.ffep-15F, 0x0400},    // the largest subnormal rounds up into the normals
      {0.1F, 0x2E66}};
  for (const auto& [value, bits] : golden) {
    EXPECT_EQ(narrow_one(DType::kFloat16, value), bits) << value;
  }
}

TEST(LowPrecision, EveryFiniteSixteenBitFloatSurvivesTheWayThroughFp32) {
  for (const DType type : {DType::kBFloat16, DType::kFloat16}) {
    std::vector<std::uint16_t> bits(65536);
    for (std::size_t i = 0; i < bits.size(); ++i) {
      bits[i] = static_cast<std::uint16_t>(i);
    }
    std::vector<float> values(bits.size());
    std::vector<std::uint16_t> back(bits.size());
    widen(type, bits, values);
    narrow(type, values, back);
    for (std::size_t i = 0; i < bits.size(); ++i) {
      if (std::isnan(values[i])) {
        EXPECT_TRUE(std::isnan(widen_one(type, back[i])));
      } else {
        ASSERT_EQ(back[i], bits[i]) << to_string(type) << " " << i;
      }
    }
  }
}

// The 16-bit float next to x by search among all of them.
TEST(LowPrecision, NarrowingFindsTheNearestValue) {
  const auto values = cast<float>(normal_values(11, 2000, 1e-3));
  for (const DType type : {DType::kBFloat16, DType::kFloat16}) {
    for (const float value : values) {
      const std::uint16_t bits = narrow_one(type, value);
      const auto error = [&](int step) {
        const float other = widen_one(type, static_cast<std::uint16_t>(bits + step));
        return std::abs(static_cast<double>(other) - static_cast<double>(value));
      };
      ASSERT_LE(error(0), error(1)) << value;
      ASSERT_LE(error(0), error(-1)) << value;
    }
  }
}

TEST(LowPrecision, NanStaysNanAndInfinityStays) {
  // A NaN whose payload lies below the cut must not become infinity.
  const float hidden = std::bit_cast<float>(0x7F800001U);
  for (const DType type : {DType::kBFloat16, DType::kFloat16}) {
    EXPECT_TRUE(std::isnan(widen_one(type, narrow_one(type, kNanF))));
    EXPECT_TRUE(std::isnan(widen_one(type, narrow_one(type, hidden))));
    EXPECT_TRUE(std::isnan(widen_one(type, narrow_one(type, -kNanF))));
    EXPECT_EQ(widen_one(type, narrow_one(type, kInfinityF)), kInfinityF);
    EXPECT_EQ(widen_one(type, narrow_one(type, -kInfinityF)), -kInfinityF);
  }
  EXPECT_EQ(narrow_one(DType::kBFloat16, std::numeric_limits<float>::max()), 0x7F80);
}

TEST(LowPrecision, AnElementDoesNotDependOnItsPlaceInTheArray) {
  const auto values = cast<float>(normal_values(12, 53));
  std::vector<std::uint16_t> whole(53);
  for (const DType type : {DType::kBFloat16, DType::kFloat16}) {
    narrow(type, values, whole);
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(whole[i], narrow_one(type, values[i]));
    }
  }
}

TEST(LowPrecision, ScalingScalesMasterAndCopy) {
  auto values = cast<float>(normal_values(13, 37));
  const auto before = values;
  std::vector<std::uint16_t> copy(37);
  scale_elements(values, copy, DType::kBFloat16, 0.75);
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(values[i], before[i] * 0.75F);
    EXPECT_EQ(copy[i], narrow_one(DType::kBFloat16, values[i]));
  }
  scale_elements(values, {}, DType::kBFloat16, 1);
  EXPECT_EQ(values[5], before[5] * 0.75F);
}

// ---- stochastic rounding ---------------------------------------------------------------------

std::vector<std::uint16_t> round_stochastic(
    const std::vector<float>& values, const RoundingKey& key, std::int64_t first_index = 0) {
  std::vector<std::uint16_t> result(values.size());
  narrow_stochastic(values, result, key, first_index);
  return result;
}

TEST(StochasticRounding, IsUnbiased) {
  constexpr std::size_t kCount = 1'000'000;
  const float below = 1.0F;
  const float above = 1.0078125F;
  for (const double part : {0.03, 0.25, 0.5, 0.9}) {
    const auto value = static_cast<float>(1 + part / 128);
    const double exact = (static_cast<double>(value) - 1) * 128;
    const auto bits = round_stochastic(
        std::vector<float>(kCount, value), {.seed = 1, .step = 17, .tensor = 0xABCDEF});
    std::size_t up = 0;
    for (const std::uint16_t b : bits) {
      const float rounded = std::bit_cast<float>(static_cast<std::uint32_t>(b) << 16U);
      ASSERT_TRUE(rounded == below || rounded == above);
      up += rounded == above ? 1U : 0U;
    }
    const double mean = static_cast<double>(up) / kCount;
    // Three standard deviations of a mean of coin flips.
    EXPECT_LT(std::abs(mean - exact), 3 * std::sqrt(exact * (1 - exact) / kCount)) << part;
  }
}

TEST(StochasticRounding, IsUnbiasedOverStepsAtOneIndex) {
  constexpr int kSteps = 100'000;
  int up = 0;
  for (int step = 1; step <= kSteps; ++step) {
    const auto bits = round_stochastic({1.00234375F}, {.seed = 5, .step = step, .tensor = 3}, 77);
    up += bits[0] == 0x3F81 ? 1 : 0;
  }
  EXPECT_LT(std::abs(static_cast<double>(up) / kSteps - 0.3), 3 * std::sqrt(0.21 / kSteps));
}

double correlation(const std::vector<std::uint16_t>& a, const std::vector<std::uint16_t>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum += (a[i] == 0x3F81 ? 1 : -1) * (b[i] == 0x3F81 ? 1 : -1);
  }
  return sum / static_cast<double>(a.size());
}

TEST(StochasticRounding, KeysThatDifferInOnePartAreUncorrelated) {
  constexpr std::size_t kCount = 200'000;
  const std::vector<float> halfway(kCount, 1.00390625F);
  const RoundingKey key{.seed = 7, .step = 100, .tensor = 42};
  const auto base = round_stochastic(halfway, key);
  const RoundingKey others[] = {
      {.seed = 8, .step = 100, .tensor = 42},
      {.seed = 7, .step = 101, .tensor = 42},
      {.seed = 7, .step = 100, .tensor = 43},
      {.seed = 42, .step = 100, .tensor = 7}};
  const double bound = 4 / std::sqrt(static_cast<double>(kCount));
  for (const RoundingKey& other : others) {
    EXPECT_LT(std::abs(correlation(base, round_stochastic(halfway, other))), bound);
  }
  // Nor do neighbours, distant elements or the upper half of the index repeat.
  for (const std::int64_t shift : {1LL, 2LL, 16LL, 256LL, 65536LL, 1LL << 32, 3LL << 33}) {
    EXPECT_LT(std::abs(correlation(base, round_stochastic(halfway, key, shift))), bound) << shift;
  }
}

TEST(StochasticRounding, IsAFunctionOfTheGlobalIndexAlone) {
  const auto values = cast<float>(normal_values(14, 1000));
  const RoundingKey key{.seed = 3, .step = 5, .tensor = 9};
  // Across the border of 2^32, where the upper half of the index changes inside a pack.
  for (const std::int64_t first : {0LL, 12345LL, (1LL << 32) - 503}) {
    const auto whole = round_stochastic(values, key, first);
    for (const std::ptrdiff_t cut : {1, 17, 256, 503, 777}) {
      const std::vector<float> left(values.begin(), values.begin() + cut);
      const std::vector<float> right(values.begin() + cut, values.end());
      auto parts = round_stochastic(left, key, first);
      const auto rest = round_stochastic(right, key, first + cut);
      parts.insert(parts.end(), rest.begin(), rest.end());
      ASSERT_EQ(parts, whole) << first << " " << cut;
    }
  }
}

TEST(StochasticRounding, HasTheSameBitsOnEveryInstructionSet) {
  // Frozen: this suite runs on all of them, and checkpoints rely on it across releases.
  const std::vector<float> values(8, 1.00390625F);
  const auto bits = round_stochastic(values, {.seed = 1, .step = 2, .tensor = 3}, 1000);
  std::string pattern;
  for (const std::uint16_t b : bits) {
    pattern += b == 0x3F81 ? '1' : '0';
  }
  EXPECT_EQ(pattern, "11101101");
}

TEST(StochasticRounding, ExactAndNonfiniteValuesPass) {
  const std::vector<float> values{
      1.5F, 0.0F, -0.0F, kInfinityF, -kInfinityF, kNanF, std::bit_cast<float>(0x7F800001U)};
  for (std::int64_t step = 1; step < 50; ++step) {
    const auto bits = round_stochastic(values, {.seed = 1, .step = step});
    EXPECT_EQ(bits[0], 0x3FC0);
    EXPECT_EQ(bits[1], 0x0000);
    EXPECT_EQ(bits[2], 0x8000);
    EXPECT_EQ(bits[3], 0x7F80);
    EXPECT_EQ(bits[4], 0xFF80);
    EXPECT_TRUE(std::isnan(widen_one(DType::kBFloat16, bits[5])));
    EXPECT_TRUE(std::isnan(widen_one(DType::kBFloat16, bits[6])));
  }
}

TEST(StochasticRounding, NegativeValuesRoundByMagnitude) {
  const std::vector<float> positive(1000, 1.003F);
  const std::vector<float> negative(1000, -1.003F);
  const auto a = round_stochastic(positive, {.seed = 2});
  const auto b = round_stochastic(negative, {.seed = 2});
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i] | 0x8000, b[i]);
  }
}

}  // namespace
}  // namespace muster::kernels
