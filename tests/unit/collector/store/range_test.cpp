// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/collector/store/store_fixture.h"

#include <muster/common/random.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>

namespace muster::store {

namespace {

using Samples = std::map<std::int64_t, float>;

std::uint32_t bits(float value) {
  return std::bit_cast<std::uint32_t>(value);
}

// What the buckets must be, straight from the contract.
std::vector<Bucket> brute_force(
    const Samples& samples, std::int64_t begin, std::int64_t end, std::int64_t width) {
  std::map<std::int64_t, Bucket> buckets;
  const std::int64_t first = begin / width * width;
  const std::int64_t last = (end + width - 1) / width * width;
  for (const auto& [step, value] : samples) {
    if (step < first || step >= last) {
      continue;
    }
    const auto [found, fresh] = buckets.try_emplace(step / width);
    Bucket& bucket = found->second;
    bucket.step_first = fresh ? step : bucket.step_first;
    bucket.step_last = step;
    if (!std::isfinite(value)) {
      ++bucket.nonfinite_count;
      if (bucket.count == 0) {
        bucket.min = bucket.max = bucket.last = value;
      }
      continue;
    }
    bucket.min = bucket.count == 0 ? value : std::min(bucket.min, value);
    bucket.max = bucket.count == 0 ? value : std::max(bucket.max, value);
    bucket.last = value;
    ++bucket.count;
  }
  std::vector<Bucket> result;
  for (const auto& [index, bucket] : buckets) {
    result.push_back(bucket);
  }
  return result;
}

void expect_same(const std::vector<Bucket>& found, const std::vector<Bucket>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    SCOPED_TRACE("bucket at step " + std::to_string(expected[i].step_first));
    ASSERT_EQ(found[i].step_first, expected[i].step_first);
    ASSERT_EQ(found[i].step_last, expected[i].step_last);
    ASSERT_EQ(bits(found[i].min), bits(expected[i].min));
    ASSERT_EQ(bits(found[i].max), bits(expected[i].max));
    ASSERT_EQ(bits(found[i].last), bits(expected[i].last));
    ASSERT_EQ(found[i].count, expected[i].count);
    ASSERT_EQ(found[i].nonfinite_count, expected[i].nonfinite_count);
  }
}

// Mostly numbers, some NaN, infinities, denormals and negative zeros.
float odd_value(Random& random) {
  switch (random.below(40)) {
    case 0:
      return std::bit_cast<float>(0x7fc00000U | static_cast<std::uint32_t>(random.below(1000)));
    case 1:
      return std::numeric_limits<float>::infinity();
    case 2:
      return -std::numeric_limits<float>::infinity();
    case 3:
      return std::numeric_limits<float>::denorm_min();
    case 4:
      return -0.0F;
    default:
      return static_cast<float>(random.normal());
  }
}

class RangeTest : public StoreTest {
 protected:
  // Adds the steps of `samples` from `begin` on as frames, seqs following on.
  void add(const Samples& samples, const Identity& identity = kRank0) {
    std::vector<SampleFrame> frames;
    for (const auto& [step, value] : samples) {
      SampleFrame& frame = frames.emplace_back();
      frame.step = step;
      frame.values = {value, 1.0F};
    }
    const Status status = store_->add_frames(identity, make_schema().hash(), next_seq_, frames);
    ASSERT_TRUE(status.ok()) << status.to_string();
    next_seq_ += frames.size();
  }

  void expect_brute_force(const Samples& samples, Random& random) {
    const std::int64_t series = series_id("run", "train_loss_nats", -1);
    const std::int64_t end = samples.rbegin()->first + 1;
    for (const std::int32_t buckets_max : {2, 5, 17, 100, 1000, 1 << 20}) {
      const std::int64_t from =
          static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(end)));
      for (const auto& [begin, stop] :
           {std::pair{std::int64_t{0}, end}, std::pair{from, from + 1 + end / 3}}) {
        const SeriesRange found = range("run", series, 1, begin, stop, buckets_max);
        ASSERT_TRUE(std::has_single_bit(static_cast<std::uint64_t>(found.bucket_steps)));
        ASSERT_LE(found.buckets.size(), static_cast<std::size_t>(buckets_max));
        expect_same(
            found.buckets, brute_force(samples, begin, std::min(stop, end), found.bucket_steps));
      }
    }
  }

  std::uint64_t next_seq_{1};
};

}  // namespace

TEST_F(RangeTest, EqualsBruteForceBeforeDuringAndAfterCompaction) {
  for (const std::uint64_t seed : {51U, 52U, 53U}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    TearDown();
    SetUp();
    next_seq_ = 1;
    open_store();
    join(kRank0, make_schema());
    Random random{seed};
    Samples samples;
    std::int64_t step = static_cast<std::int64_t>(random.below(5000));
    while (samples.size() < 9000) {
      // Gaps of all sizes, whole empty stretches among them.
      step += random.below(500) == 0 ? static_cast<std::int64_t>(random.below(4000)) : 1;
      samples[step] = odd_value(random);
    }
    add(samples);
    commit();
    expect_brute_force(samples, random);
    // One stretch only.
    ASSERT_TRUE(store_->compact().ok());
    commit();
    expect_brute_force(samples, random);
    compact_all();
    expect_brute_force(samples, random);
  }
}

TEST_F(RangeTest, LateFramesAreMergedIntoTransposedStretches) {
  constexpr std::uint64_t kSeed = 54;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  open_store();
  join(kRank0, make_schema());
  Random random{kSeed};
  Samples early;
  Samples late;
  for (std::int64_t step = 0; step < 6000; ++step) {
    (random.below(10) == 0 ? late : early)[step] = odd_value(random);
  }
  early[6000] = 1.0F;
  add(early);
  commit();
  compact_all();
  add(late);
  commit();
  Samples all = early;
  all.insert(late.begin(), late.end());
  expect_brute_force(all, random);
  compact_all();
  expect_brute_force(all, random);
  EXPECT_EQ(store_->counters().duplicates, 0);
}

TEST_F(RangeTest, StepThatIsTransposedAlreadyIsADuplicate) {
  open_store();
  join(kRank0, make_schema());
  Samples samples;
  for (std::int64_t step = 0; step < 3000; ++step) {
    samples[step] = 1.0F;
  }
  add(samples);
  compact_all();
  add({{10, 99.0F}, {2999, 99.0F}});
  commit();
  EXPECT_EQ(store_->counters().duplicates, 2);
  Random random{1};
  expect_brute_force(samples, random);
}

TEST_F(RangeTest, OnePointInManyIsNeverSampledAway) {
  open_store();
  join(kRank0, make_schema());
  Samples samples;
  for (std::int64_t step = 0; step < 150'000; ++step) {
    samples[step] = 2.0F;
  }
  samples[77'777] = 500.0F;
  samples[77'778] = -500.0F;
  samples[100'001] = std::numeric_limits<float>::quiet_NaN();
  add(samples);
  commit();
  const std::int64_t series = series_id("run", "train_loss_nats", -1);
  for (const bool compacted : {false, true}) {
    if (compacted) {
      compact_all();
    }
    for (const std::int32_t buckets_max : {2, 100, 2000}) {
      float highest = 0;
      float lowest = 0;
      std::uint32_t nonfinite = 0;
      for (const Bucket& bucket : range("run", series, 1, 0, -1, buckets_max).buckets) {
        highest = std::max(highest, bucket.max);
        lowest = std::min(lowest, bucket.min);
        nonfinite += bucket.nonfinite_count;
      }
      EXPECT_EQ(highest, 500.0F);
      EXPECT_EQ(lowest, -500.0F);
      EXPECT_EQ(nonfinite, 1U);
    }
  }
}

TEST_F(RangeTest, AppendingNeverMovesOrChangesAClosedBucket) {
  constexpr std::uint64_t kSeed = 55;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  open_store();
  join(kRank0, make_schema());
  Random random{kSeed};
  Samples all;
  std::map<std::int64_t, std::vector<Bucket>> before;  // By width.
  for (int round = 0; round < 12; ++round) {
    Samples more;
    for (int i = 0; i < 700; ++i) {
      const auto step = static_cast<std::int64_t>(all.size() + more.size());
      more[step] = odd_value(random);
    }
    add(more);
    commit();
    if (round % 3 == 2) {
      compact_all();
    }
    all.insert(more.begin(), more.end());
    const SeriesRange now = range("run", series_id("run", "train_loss_nats", -1), 1, 0, -1, 200);
    auto& old = before[now.bucket_steps];
    if (!old.empty()) {
      old.pop_back();  // Was still open.
      ASSERT_GE(now.buckets.size(), old.size());
      expect_same({now.buckets.begin(), now.buckets.begin() + std::ssize(old)}, old);
    }
    old = now.buckets;
  }
}

TEST_F(RangeTest, PanningNeverChangesABucket) {
  open_store();
  join(kRank0, make_schema());
  Random random{56};
  Samples samples;
  for (std::int64_t step = 0; step < 5000; ++step) {
    samples[step] = odd_value(random);
  }
  add(samples);
  compact_all();
  const std::int64_t series = series_id("run", "train_loss_nats", -1);
  std::map<std::int64_t, Bucket> seen;
  for (std::int64_t begin = 0; begin + 2000 < 5000; begin += 37) {
    const SeriesRange found = range("run", series, 1, begin, begin + 2000, 34);
    ASSERT_EQ(found.bucket_steps, 64);
    for (const Bucket& bucket : found.buckets) {
      const auto [at, fresh] = seen.try_emplace(bucket.step_first / 64, bucket);
      expect_same({bucket}, {at->second});
    }
  }
}

TEST_F(RangeTest, EmptyRangesAreEmptyAndUnknownSeriesAreNamed) {
  open_store();
  join(kRank0, make_schema());
  add({{100, 1.0F}});
  commit();
  const std::int64_t series = series_id("run", "train_loss_nats", -1);
  EXPECT_TRUE(range("run", series, 1, 0, 100).buckets.empty());
  EXPECT_TRUE(range("run", series, 1, 101, -1).buckets.empty());
  EXPECT_TRUE(range("run", series, 1, 50, 40).buckets.empty());
  EXPECT_TRUE(range("run", series, 7).buckets.empty());
  EXPECT_EQ(range("run", series, 1, -5, 101).buckets.size(), 1U);
  EXPECT_EQ(query().range("run", 999, 1, 0, -1, 10).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(query().range("other", series, 1, 0, -1, 10).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(
      query().range("run", series, 1, 0, -1, 1).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(RangeTest, StepsAtTheLimitAreKept) {
  open_store();
  join(kRank0, make_schema());
  const std::int64_t last = (std::int64_t{1} << 35) - 1;
  add({{0, 1.0F}, {last, 2.0F}});
  compact_all();
  const SeriesRange found = range("run", series_id("run", "train_loss_nats", -1), 1, 0, -1, 100);
  ASSERT_EQ(found.buckets.size(), 2U);
  EXPECT_EQ(found.buckets[1].step_last, last);
  EXPECT_EQ(found.buckets[1].last, 2.0F);
}

}  // namespace muster::store
