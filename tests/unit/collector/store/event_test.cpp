// SPDX-License-Identifier: Apache-2.0
#include "collector/store/src/map_codec.h"
#include "tests/unit/collector/store/store_fixture.h"

#include <bit>
#include <cmath>
#include <limits>

namespace muster::store {

namespace {

Event make_event(std::int64_t step) {
  Event event;
  event.kind = event_kind::kFinding;
  event.severity = Severity::kError;
  event.step = step;
  event.wall_unix_ns = 123;
  event.reason = "loss \"went\" up; it's bad \xc3\xa9";
  event.inputs = {{"z", 7.5}, {"big", 9007199254740993.0}};
  event.labels = {{"rule", "spike"}, {"empty", ""}};
  return event;
}

}  // namespace

TEST_F(StoreTest, EventsComeBackAsTheyWent) {
  open_store();
  join(kRank0, make_schema());
  ASSERT_TRUE(store_->add_event(kRank0, 1, make_event(5)).ok());
  ASSERT_TRUE(store_->add_event(rank_of("run", 1, -1), 0, make_event(-1)).ok());
  commit();
  const auto events = query().events("run", 0, 10).value();
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].event, make_event(5));
  EXPECT_EQ(events[0].rank, 0);
  EXPECT_EQ(events[0].generation, 1);
  EXPECT_EQ(events[1].rank, -1);
  EXPECT_EQ(store_->counters().events, 2);
}

TEST_F(StoreTest, InputsThatAreNotFiniteSurviveBitForBit) {
  open_store();
  join(kRank0, make_schema());
  Event event = make_event(1);
  const double odd_nan = std::bit_cast<double>(0x7ff8000000abcdefULL);
  event.inputs = {{"nan", odd_nan}, {"inf", -std::numeric_limits<double>::infinity()}};
  ASSERT_TRUE(store_->add_event(kRank0, 1, event).ok());
  commit();
  const auto events = query().events("run", 0, 10).value();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(std::bit_cast<std::uint64_t>(events[0].event.inputs.at("nan")), 0x7ff8000000abcdefULL);
  EXPECT_TRUE(std::isinf(events[0].event.inputs.at("inf")));
}

TEST_F(StoreTest, EventsShareTheSeqsOfFrames) {
  open_store();
  join(kRank0, make_schema());
  ASSERT_TRUE(store_->add_event(kRank0, 4, make_event(1)).ok());
  ASSERT_TRUE(store_->add_event(kRank0, 4, make_event(1)).ok());
  ASSERT_TRUE(store_->add_event(kRank0, 3, make_event(1)).ok());
  commit();
  EXPECT_EQ(store_->counters().events, 1);
  EXPECT_EQ(store_->counters().duplicates, 2);
  EXPECT_EQ(query().events("run", 0, 10).value().size(), 1U);
}

TEST_F(StoreTest, EventsArePagedByTheirIds) {
  open_store();
  join(kRank0, make_schema());
  join(rank_of("other", 1, 0), make_schema());
  for (std::int64_t i = 0; i < 10; ++i) {
    ASSERT_TRUE(store_->add_event(kRank0, 0, make_event(i)).ok());
    ASSERT_TRUE(store_->add_event(rank_of("other", 1, 0), 0, make_event(100 + i)).ok());
  }
  commit();
  std::int64_t after = 0;
  std::vector<std::int64_t> steps;
  while (true) {
    const auto page = query().events("run", after, 3).value();
    if (page.empty()) {
      break;
    }
    EXPECT_LE(page.size(), 3U);
    for (const StoredEvent& stored : page) {
      EXPECT_GT(stored.event_id, after);
      after = stored.event_id;
      steps.push_back(stored.event.step);
    }
  }
  EXPECT_EQ(steps, (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_TRUE(query().events("run", 0, 0).value().empty());
  EXPECT_TRUE(query().events("run", 0, -1).value().empty());
}

TEST_F(StoreTest, EventOfAnUnknownRunIsRefused) {
  open_store();
  EXPECT_EQ(
      store_->add_event(rank_of("ghost", 1, -1), 0, make_event(1)).code(), StatusCode::kNotFound);
}

TEST(MapCodec, DamagedBytesAreRefused) {
  const auto bytes = encode_map(std::map<std::string, std::string>{{"key", "value"}, {"a", "b"}});
  for (std::size_t size = 1; size < bytes.size(); ++size) {
    const auto decoded = decode_text_map(std::span{bytes}.first(size));
    // A cut between two entries is a shorter map; any other is damage.
    EXPECT_TRUE(!decoded.ok() || decoded.value().size() == 1) << size;
  }
  EXPECT_FALSE(decode_number_map(std::span{bytes}.first(9)).ok());
}

}  // namespace muster::store
