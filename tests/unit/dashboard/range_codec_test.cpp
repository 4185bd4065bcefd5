// SPDX-License-Identifier: Apache-2.0
#include "dashboard/server/range_codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace muster::dashboard {
namespace {

template <typename T>
T read_at(const std::string& bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

store::SeriesRange one_bucket_range() {
  store::SeriesRange range;
  range.series_id = 7;
  range.generation = 3;
  range.step_begin = 100;
  range.step_end = 200;
  range.bucket_steps = 64;
  range.buckets.push_back({128, 191, std::numeric_limits<float>::quiet_NaN(), 5.0F, -0.0F, 60, 4});
  return range;
}

TEST(RangeCodec, WritesTheDocumentedLayout) {
  const std::string bytes = encode_ranges({one_bucket_range()});
  EXPECT_EQ(bytes.substr(0, 4), "MRNG");
  EXPECT_EQ(read_at<std::uint32_t>(bytes, 4), 1U);
  EXPECT_EQ(read_at<std::uint32_t>(bytes, 8), 1U);
  EXPECT_EQ(read_at<double>(bytes, 16), 7.0);   // series
  EXPECT_EQ(read_at<double>(bytes, 24), 3.0);   // generation
  EXPECT_EQ(read_at<double>(bytes, 48), 64.0);  // bucket width
  EXPECT_EQ(read_at<std::uint32_t>(bytes, 56), 1U);
  EXPECT_EQ(read_at<double>(bytes, 64), 128.0);  // step_first
  EXPECT_EQ(read_at<double>(bytes, 72), 191.0);  // step_last
  EXPECT_EQ(read_at<float>(bytes, 84), 5.0F);    // max
  EXPECT_EQ(read_at<std::uint32_t>(bytes, 92), 60U);
  EXPECT_EQ(read_at<std::uint32_t>(bytes, 96), 4U);
}

TEST(RangeCodec, CarriesNanAndNegativeZeroBitExact) {
  const std::string bytes = encode_ranges({one_bucket_range()});
  EXPECT_TRUE(std::isnan(read_at<float>(bytes, 80)));
  EXPECT_TRUE(std::signbit(read_at<float>(bytes, 88)));
}

TEST(RangeCodec, StartsEveryEntryAtAMultipleOfEight) {
  const std::string bytes = encode_ranges({one_bucket_range(), one_bucket_range()});
  EXPECT_EQ(bytes.size() % 8, 0U);
  EXPECT_EQ(read_at<double>(bytes, 16 + 48 + 40), 7.0);
}

TEST(RangeCodec, EncodesAnEmptyAnswer) {
  EXPECT_EQ(encode_ranges({}).size(), 16U);
}

}  // namespace
}  // namespace muster::dashboard
