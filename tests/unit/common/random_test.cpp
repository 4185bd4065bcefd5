// SPDX-License-Identifier: Apache-2.0
#include <muster/common/check.h>
#include <muster/common/random.h>

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

namespace muster {

namespace {

using Block = std::array<std::uint32_t, 4>;

// The vectors that Random123 publishes for philox4x32-10.
TEST(Philox, MatchesThePublishedVectors) {
  EXPECT_EQ(philox(0, 0, 0), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr std::uint64_t kOnes = ~std::uint64_t{0};
  EXPECT_EQ(philox(kOnes, kOnes, kOnes), (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(
      philox(0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88),
      (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, SameSeedAndStreamGiveTheSameSequence) {
  Random a{42, 7};
  Random b{42, 7};
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(a.next_u64(), b.next_u64());
  }
}

TEST(Random, StreamsAndSeedsDiffer) {
  std::set<std::uint64_t> values;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    for (std::uint64_t stream = 0; stream < 10; ++stream) {
      values.insert(Random{seed, stream}.next_u64());
    }
  }
  EXPECT_EQ(values.size(), 100U);
}

TEST(Random, SeekContinuesTheSequenceExactly) {
  Random random{3};
  static_cast<void>(random.normal());
  static_cast<void>(random.below(10));
  const std::uint64_t position = random.counter();
  const double wanted = random.normal();
  Random restored{3};
  restored.seek(position);
  EXPECT_EQ(restored.normal(), wanted);
}

TEST(Random, UniformFillsTheUnitIntervalEvenly) {
  constexpr int kCount = 100000;
  Random random{20261};
  std::vector<int> histogram(10);
  for (int i = 0; i < kCount; ++i) {
    const double value = random.uniform();
    ASSERT_GE(value, 0.0);
    ASSERT_LT(value, 1.0);
    ++histogram[static_cast<std::size_t>(value * 10.0)];
  }
  for (const int count : histogram) {
    EXPECT_NEAR(count, kCount / 10, 500);  // Five standard deviations of 95.
  }
}

TEST(Random, BelowIsEvenForBoundsThatDoNotDivide) {
  constexpr int kCount = 70000;
  Random random{20262};
  std::vector<int> histogram(7);
  for (int i = 0; i < kCount; ++i) {
    ++histogram[static_cast<std::size_t>(random.below(7))];
  }
  for (const int count : histogram) {
    EXPECT_NEAR(count, kCount / 7, 465);  // Five standard deviations of 93.
  }
}

TEST(Random, BelowStaysBelowLargeBounds) {
  Random random{20263};
  constexpr std::uint64_t kBound = (std::uint64_t{1} << 63) + 1;  // Rejects almost half.
  for (int i = 0; i < 1000; ++i) {
    ASSERT_LT(random.below(kBound), kBound);
  }
  EXPECT_EQ(random.below(1), 0U);
}

TEST(Random, BelowZeroIsRefused) {
  EXPECT_THROW(static_cast<void>(Random{1}.below(0)), CheckFailure);
}

TEST(Random, NormalHasMeanZeroAndVarianceOne) {
  constexpr int kCount = 100000;
  Random random{20264};
  double sum = 0.0;
  double squares = 0.0;
  for (int i = 0; i < kCount; ++i) {
    const double value = random.normal();
    ASSERT_TRUE(std::isfinite(value));
    sum += value;
    squares += value * value;
  }
  EXPECT_NEAR(sum / kCount, 0.0, 5.0 / std::sqrt(kCount));
  EXPECT_NEAR(squares / kCount, 1.0, 5.0 * std::sqrt(2.0 / kCount));
}

TEST(RandomHexId, IsThirtyTwoHexDigitsAndNeverTheSame) {
  const std::string id = random_hex_id();
  EXPECT_EQ(id.size(), 32U);
  EXPECT_EQ(id.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_NE(id, random_hex_id());
}

}  // namespace

}  // namespace muster
