// SPDX-License-Identifier: Apache-2.0
#include "dashboard/server/live_feed.h"

#include "tests/unit/dashboard/fake_query.h"

#include <gtest/gtest.h>

namespace muster::dashboard {
namespace {

class LiveFeedTest : public ::testing::Test {
 protected:
  void add_event(std::int64_t id) {
    store::StoredEvent stored;
    stored.event_id = id;
    stored.event.kind = "finding";
    fake_.events.push_back(stored);
    ++fake_.version;
  }

  FakeStore fake_ = night_store();
  QuerySource queries_{factory_of(fake_)};
  ManualClock clock_;
};

TEST_F(LiveFeedTest, BeginsWithTheWholeState) {
  fake_.ranks.push_back({});
  LiveFeed feed{queries_, clock_, "night", 0};
  const std::string text = feed.next();
  EXPECT_NE(text.find("event: update"), std::string::npos);
  EXPECT_NE(text.find("\"last_step\":40"), std::string::npos);
  EXPECT_NE(text.find("\"ranks\""), std::string::npos);
  EXPECT_NE(text.find("\"commands\""), std::string::npos);
  EXPECT_EQ(text.substr(text.size() - 2), "\n\n");
}

TEST_F(LiveFeedTest, SaysNothingWhileTheStoreStandsStill) {
  LiveFeed feed{queries_, clock_, "night", 0};
  EXPECT_NE(feed.next(), "");
  EXPECT_EQ(feed.next(), "");
}

TEST_F(LiveFeedTest, SendsOnlyChangedRanks) {
  fake_.ranks.resize(2);
  fake_.ranks[1].rank = 1;
  LiveFeed feed{queries_, clock_, "night", 0};
  EXPECT_NE(feed.next(), "");
  fake_.ranks[1].step = 41;
  ++fake_.version;
  const std::string text = feed.next();
  EXPECT_NE(text.find("\"rank\":1"), std::string::npos);
  EXPECT_EQ(text.find("\"rank\":0"), std::string::npos) << text;
  EXPECT_EQ(text.find("\"commands\""), std::string::npos) << text;
}

TEST_F(LiveFeedTest, ResumesAfterTheGivenEvent) {
  add_event(3);
  add_event(4);
  LiveFeed feed{queries_, clock_, "night", 3};
  const std::string text = feed.next();
  EXPECT_NE(text.find("id: 4\n"), std::string::npos);
  EXPECT_EQ(text.find("\"id\":3"), std::string::npos);
}

TEST_F(LiveFeedTest, CatchesUpWithManyEventsInPieces) {
  for (std::int64_t id = 1; id <= 700; ++id) {
    add_event(id);
  }
  LiveFeed feed{queries_, clock_, "night", 0};
  EXPECT_NE(feed.next().find("id: 500\n"), std::string::npos);
  EXPECT_NE(feed.next().find("id: 700\n"), std::string::npos);
  EXPECT_EQ(feed.next(), "");
}

TEST_F(LiveFeedTest, SendsAHeartbeatAfterSilence) {
  LiveFeed feed{queries_, clock_, "night", 0};
  EXPECT_NE(feed.next(), "");
  clock_.advance(std::chrono::seconds{5});
  EXPECT_EQ(feed.next(), ": heartbeat\n\n");
  EXPECT_EQ(feed.next(), "");
}

TEST_F(LiveFeedTest, RecoversWhenTheStoreComesBack) {
  LiveFeed feed{queries_, clock_, "night", 0};
  EXPECT_NE(feed.next(), "");
  fake_.broken = true;
  EXPECT_EQ(feed.next(), "");
  fake_.broken = false;
  EXPECT_NE(feed.next().find("event: update"), std::string::npos);
}

}  // namespace
}  // namespace muster::dashboard
