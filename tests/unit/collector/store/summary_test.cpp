// SPDX-License-Identifier: Apache-2.0
#include "collector/store/src/summary.h"

#include "tests/support/floats.h"

#include <muster/common/random.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace muster::store {

namespace {

using muster::test::kInfinityF;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// operator== on floats fails for NaN: compare the 24 bytes.
std::vector<std::byte> bytes_of(const Summary& summary) {
  std::vector<std::byte> bytes;
  append_summary(summary, 0, bytes);
  return bytes;
}

}  // namespace

TEST(Summary, KeepsExtremesAndCountsWhatIsNotFinite) {
  Summary summary;
  summary.add(1, 3.0F);
  summary.add(2, kNaN);
  summary.add(3, -1.0F);
  summary.add(4, kInfinityF);
  const Bucket bucket = to_bucket(summary);
  EXPECT_EQ(bucket.step_first, 1);
  EXPECT_EQ(bucket.step_last, 4);
  EXPECT_EQ(bucket.min, -1.0F);
  EXPECT_EQ(bucket.max, 3.0F);
  EXPECT_EQ(bucket.last, -1.0F);
  EXPECT_EQ(bucket.count, 2U);
  EXPECT_EQ(bucket.nonfinite_count, 2U);
}

TEST(Summary, OnlyNonfiniteValuesCarryTheLastOneBitForBit) {
  const float odd_nan = std::bit_cast<float>(0x7fc12345U);
  Summary summary;
  summary.add(1, kInfinityF);
  summary.add(2, odd_nan);
  EXPECT_EQ(summary.count, 0U);
  EXPECT_EQ(summary.nonfinite_count, 2U);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(summary.last), 0x7fc12345U);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(summary.max), 0x7fc12345U);
}

TEST(Summary, MergingDoesNotDependOnOrderOrGrouping) {
  constexpr std::uint64_t kSeed = 41;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  Random random{kSeed};
  for (int round = 0; round < 200; ++round) {
    std::vector<std::pair<std::int64_t, float>> samples;
    for (std::int64_t step = 0; step < 20; ++step) {
      const std::uint64_t kind = random.below(5);
      const float value = kind == 0   ? kNaN
                          : kind == 1 ? -kInfinityF
                                      : static_cast<float>(random.normal());
      samples.emplace_back(step, value);
    }
    Summary in_order;
    for (const auto& [step, value] : samples) {
      in_order.add(step, value);
    }
    for (std::size_t i = samples.size() - 1; i > 0; --i) {
      std::swap(samples[i], samples[random.below(i + 1)]);
    }
    std::vector<Summary> parts(3);
    for (const auto& [step, value] : samples) {
      parts[random.below(parts.size())].add(step, value);
    }
    Summary merged;
    for (const Summary& part : parts) {
      merged.merge(part);
    }
    ASSERT_EQ(bytes_of(merged), bytes_of(in_order));
  }
}

TEST(Summary, SurvivesItsEncoding) {
  Summary summary;
  for (std::int64_t step = 8192; step < 8192 + 4096; ++step) {
    summary.add(step, static_cast<float>(step % 100));
  }
  std::vector<std::byte> bytes;
  append_summary(summary, 8192, bytes);
  ASSERT_EQ(bytes.size(), kSummaryBytes);
  EXPECT_EQ(read_summary(std::span{bytes}.first<kSummaryBytes>(), 8192), summary);
}

}  // namespace muster::store
