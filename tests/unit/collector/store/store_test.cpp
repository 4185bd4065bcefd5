// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/collector/store/store_fixture.h"

#include <sqlite3.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>

namespace muster::store {

namespace {

const Identity kRank1 = rank_of("run", 1, 1);

float plain(std::int64_t step, std::size_t column) {
  return static_cast<float>(step) + static_cast<float>(column) * 0.25F;
}

std::string content_of(const std::filesystem::path& path) {
  std::ifstream file{path, std::ios::binary};
  std::ostringstream content;
  content << file.rdbuf();
  return content.str();
}

void run_sql(const std::filesystem::path& path, const char* sql) {
  sqlite3* handle = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &handle), SQLITE_OK);
  EXPECT_EQ(sqlite3_exec(handle, sql, nullptr, nullptr, nullptr), SQLITE_OK);
  EXPECT_EQ(sqlite3_close(handle), SQLITE_OK);
}

}  // namespace

TEST_F(StoreTest, WhatWasCommittedIsThereAfterReopening) {
  open_store();
  join(kRank0, make_schema());
  ASSERT_TRUE(add_steps(kRank0, make_schema(), 0, 10, plain).ok());
  commit();
  open_store();
  const SeriesRange found = range("run", series_id("run", "train_loss_nats", -1), 1);
  ASSERT_EQ(found.buckets.size(), 10U);
  EXPECT_EQ(found.bucket_steps, 1);
  EXPECT_EQ(found.buckets[9].step_first, 9);
  EXPECT_EQ(found.buckets[9].last, 9.0F);
  EXPECT_EQ(store_->open_session(kRank0, 2).value(), 10U);
}

TEST_F(StoreTest, WhatWasNotCommittedIsGone) {
  open_store();
  join(kRank0, make_schema());
  commit();
  ASSERT_TRUE(add_steps(kRank0, make_schema(), 0, 10, plain).ok());
  open_store();
  EXPECT_TRUE(query().generations("run").value().empty());
  EXPECT_EQ(store_->open_session(kRank0, 2).value(), 0U);
}

TEST_F(StoreTest, EpochGrowsWithEveryOpening) {
  open_store();
  EXPECT_EQ(store_->epoch(), 1);
  open_store();
  EXPECT_EQ(store_->epoch(), 2);
}

TEST_F(StoreTest, SecondOpenerIsRefusedByName) {
  open_store();
  const auto second = Store::open(database_, clock_);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::kAlreadyExists);
  EXPECT_NE(second.status().message().find("pid "), std::string::npos);
  EXPECT_NE(second.status().message().find(database_.string()), std::string::npos);
}

TEST_F(StoreTest, NewerFileIsRefusedAndNotTouched) {
  open_store();
  join(kRank0, make_schema());
  commit();
  store_.reset();
  run_sql(database_, "PRAGMA user_version = 99; PRAGMA wal_checkpoint(TRUNCATE);");
  const std::string before = content_of(database_);
  const auto opened = Store::open(database_, clock_);
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.status().code(), StatusCode::kVersionMismatch);
  EXPECT_NE(opened.status().message().find("99"), std::string::npos);
  EXPECT_EQ(Query::open(database_).status().code(), StatusCode::kVersionMismatch);
  EXPECT_EQ(content_of(database_), before);
}

TEST_F(StoreTest, SomebodyElsesDatabaseIsRefusedAndNotTouched) {
  run_sql(database_, "CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1);");
  const std::string before = content_of(database_);
  EXPECT_EQ(Store::open(database_, clock_).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Query::open(database_).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(content_of(database_), before);
}

TEST_F(StoreTest, FileThatIsNoDatabaseIsRefusedAndNotTouched) {
  const std::string text(5000, 'x');
  std::ofstream{database_} << text;
  EXPECT_EQ(Store::open(database_, clock_).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(content_of(database_), text);
}

TEST_F(StoreTest, MissingFolderIsNamed) {
  const auto opened = Store::open(folder_ / "nowhere" / "a.db", clock_);
  ASSERT_FALSE(opened.ok());
  EXPECT_NE(opened.status().message().find("nowhere"), std::string::npos);
  EXPECT_EQ(Query::open(folder_ / "b.db").status().code(), StatusCode::kNotFound);
}

TEST_F(StoreTest, SeqsStoredBeforeAreDuplicates) {
  open_store();
  join(kRank0, make_schema());
  ASSERT_TRUE(add_steps(kRank0, make_schema(), 0, 10, plain).ok());
  ASSERT_TRUE(add_steps(kRank0, make_schema(), 5, 15, plain).ok());
  commit();
  EXPECT_EQ(store_->counters().frames, 15);
  EXPECT_EQ(store_->counters().duplicates, 5);
  open_store();
  EXPECT_EQ(join(kRank0, make_schema()), 15U);
  ASSERT_TRUE(add_steps(kRank0, make_schema(), 0, 15, plain).ok());
  EXPECT_EQ(store_->counters().duplicates, 15);
}

TEST_F(StoreTest, SameStepOfAnotherIncarnationIsIgnored) {
  open_store();
  join(kRank0, make_schema());
  const Identity again = rank_of("run", 1, 0, "b");
  join(again, make_schema());
  ASSERT_TRUE(add_steps(kRank0, make_schema(), 0, 10, plain).ok());
  ASSERT_TRUE(add_steps(again, make_schema(), 0, 12, [](auto, auto) { return 7.0F; }).ok());
  commit();
  EXPECT_EQ(store_->counters().duplicates, 10);
  const SeriesRange found = range("run", series_id("run", "train_loss_nats", -1), 1);
  ASSERT_EQ(found.buckets.size(), 12U);
  EXPECT_EQ(found.buckets[9].last, 9.0F);
  EXPECT_EQ(found.buckets[11].last, 7.0F);
}

TEST_F(StoreTest, RollbackKeepsBothHistories) {
  open_store();
  join(kRank0, make_schema());
  ASSERT_TRUE(add_steps(kRank0, make_schema(), 0, 3000, plain).ok());
  compact_all();
  const Identity resumed = rank_of("run", 2, 0, "b");
  join(resumed, make_schema());
  std::vector<SampleFrame> frames(500);
  for (std::size_t i = 0; i < frames.size(); ++i) {
    frames[i].step = 2000 + static_cast<std::int64_t>(i);
    frames[i].values = {-1.0F, -1.0F};
  }
  ASSERT_TRUE(store_->add_frames(resumed, make_schema().hash(), 1, frames).ok());
  commit();
  const std::int64_t series = series_id("run", "train_loss_nats", -1);
  EXPECT_EQ(range("run", series, 1).buckets.size(), 3000U);
  EXPECT_EQ(range("run", series, 1, 2100, 2101).buckets[0].last, 2100.0F);
  EXPECT_EQ(range("run", series, 2).buckets.size(), 500U);
  EXPECT_EQ(range("run", series, 2, 2100, 2101).buckets[0].last, -1.0F);
  const auto generations = query().generations("run").value();
  ASSERT_EQ(generations.size(), 2U);
  EXPECT_EQ(generations[0].step_last, 2999);
  EXPECT_EQ(generations[1].step_first, 2000);
  const RunInfo info = query().run("run").value();
  EXPECT_EQ(info.generation, 2);
  EXPECT_EQ(info.first_step, 0);
  EXPECT_EQ(info.last_step, 2499);
  EXPECT_EQ(info.last_loss, -1.0);
  EXPECT_EQ(info.sample_count, 2 * 3500);
}

TEST_F(StoreTest, SchemaMayChangeInTheMiddleOfAStretch) {
  open_store();
  const MetricSchema before = make_schema(2);
  MetricSchema after = make_schema(3);
  // The same metrics at other positions, and one more.
  std::swap(after.metrics[2].index, after.metrics[4].index);
  join(kRank0, before);
  join(kRank0, after);
  ASSERT_TRUE(add_steps(kRank0, before, 0, 500, plain).ok());
  ASSERT_TRUE(add_steps(kRank0, after, 500, 1100, plain).ok());
  commit();
  const std::int64_t moved = series_id("run", "extra", 0, 0);
  const std::int64_t added = series_id("run", "extra", 0, 2);
  for (const bool compacted : {false, true}) {
    if (compacted) {
      compact_all();
    }
    const auto all = range("run", moved, 1).buckets;
    ASSERT_EQ(all.size(), 1100U);
    EXPECT_EQ(all[499].last, plain(499, 2));
    EXPECT_EQ(all[500].last, plain(500, 4));
    const auto late = range("run", added, 1).buckets;
    ASSERT_EQ(late.size(), 600U);
    EXPECT_EQ(late[0].step_first, 500);
    EXPECT_EQ(late[0].last, plain(500, 2));
  }
}

TEST_F(StoreTest, JobMetricsComeFromRankZeroAlone) {
  open_store();
  join(kRank0, make_schema());
  join(kRank1, make_schema());
  ASSERT_TRUE(add_steps(kRank0, make_schema(), 0, 2, plain).ok());
  ASSERT_TRUE(add_steps(kRank1, make_schema(), 0, 2, [](auto, auto) { return 9.0F; }).ok());
  commit();
  EXPECT_EQ(query().series("run").value().size(), 3U);
  EXPECT_EQ(range("run", series_id("run", "train_loss_nats", -1), 1).buckets[1].last, 1.0F);
  EXPECT_EQ(range("run", series_id("run", "train_compute_seconds", 1), 1).buckets[1].last, 9.0F);
  EXPECT_EQ(query().run("run").value().sample_count, 2 * 2 + 2 * 1);
}

TEST_F(StoreTest, NanLossIsNoNumberInTheOverview) {
  open_store();
  join(kRank0, make_schema());
  ASSERT_TRUE(add_steps(kRank0, make_schema(), 0, 5, plain).ok());
  commit();
  EXPECT_EQ(query().run("run").value().last_loss, 4.0);
  ASSERT_TRUE(add_steps(kRank0, make_schema(), 5, 6, [](auto, auto) {
                return std::numeric_limits<float>::quiet_NaN();
              }).ok());
  commit();
  EXPECT_TRUE(std::isnan(query().run("run").value().last_loss));
}

TEST_F(StoreTest, FramesThatDoNotFitAreRefusedAsAWhole) {
  open_store();
  join(kRank0, make_schema());
  std::vector<SampleFrame> frames(2);
  frames[0].values = {1.0F, 2.0F};
  frames[1].step = 1;
  frames[1].values = {1.0F};
  const std::uint64_t hash = make_schema().hash();
  EXPECT_EQ(store_->add_frames(kRank0, hash, 1, frames).code(), StatusCode::kInvalidArgument);
  frames[1].values = {1.0F, 2.0F};
  for (const std::int64_t step : {std::int64_t{-1}, std::int64_t{1} << 35}) {
    frames[1].step = step;
    EXPECT_EQ(store_->add_frames(kRank0, hash, 1, frames).code(), StatusCode::kInvalidArgument);
  }
  frames[1].step = 1;
  EXPECT_EQ(store_->add_frames(kRank0, hash, 0, frames).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(
      store_->add_frames(kRank0, hash + 1, 1, frames).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(store_->add_frames(kRank1, hash, 1, frames).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(store_->counters().frames, 0);
  EXPECT_TRUE(store_->add_frames(kRank0, hash, 1, frames).ok());
  EXPECT_EQ(store_->counters().frames, 2);
}

TEST_F(StoreTest, BadIdentitiesAndSchemasAreRefused) {
  open_store();
  EXPECT_EQ(
      store_->open_session(rank_of("", 1, 0), 1).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(
      store_->open_session(rank_of("run", 1, -2), 1).status().code(), StatusCode::kInvalidArgument);
  join(kRank0, make_schema());
  MetricSchema holes = make_schema();
  holes.metrics[1].id = 5;
  EXPECT_EQ(store_->register_schema(kRank0, holes).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(store_->register_schema(kRank1, make_schema()).code(), StatusCode::kFailedPrecondition);
  const Identity launcher = rank_of("run", 1, -1);
  ASSERT_TRUE(store_->open_session(launcher, 0).ok());
  EXPECT_EQ(
      store_->add_frames(launcher, make_schema().hash(), 1, {}).code(),
      StatusCode::kInvalidArgument);
}

TEST_F(StoreTest, RanksAreThoseOfTheNewestGeneration) {
  open_store();
  join(kRank0, make_schema());
  join(kRank1, make_schema());
  ASSERT_TRUE(add_steps(kRank1, make_schema(), 0, 7, plain).ok());
  const Identity next0 = rank_of("run", 2, 0, "b");
  const Identity next1 = rank_of("run", 2, 1, "c");
  join(next0, make_schema());
  join(next1, make_schema());
  ASSERT_TRUE(store_->open_session(rank_of("run", 2, -1, "launcher"), 0).ok());
  ASSERT_TRUE(add_steps(next1, make_schema(), 4, 6, plain).ok());
  clock_.advance(std::chrono::seconds{5});
  store_->note_heartbeat(next1, 9, 3);
  store_->close_session(next0);
  commit();
  const auto ranks = query().ranks("run").value();
  ASSERT_EQ(ranks.size(), 2U);
  EXPECT_FALSE(ranks[0].connected);
  EXPECT_EQ(ranks[0].step, -1);
  EXPECT_EQ(ranks[0].incarnation, "b");
  EXPECT_TRUE(ranks[1].connected);
  EXPECT_EQ(ranks[1].generation, 2);
  EXPECT_EQ(ranks[1].incarnation, "c");
  EXPECT_EQ(ranks[1].step, 9);
  EXPECT_EQ(ranks[1].dropped_count, 3);
  EXPECT_EQ(ranks[1].last_seen_unix_ns, unix_ns(clock_.wall_now()));
  EXPECT_EQ(ranks[1].compute_seconds, static_cast<double>(plain(5, 1)));
  EXPECT_EQ(query().run("run").value().dropped_count, 3);
  EXPECT_EQ(query().run("run").value().world_size, 2);
  open_store();
  EXPECT_FALSE(query().ranks("run").value()[1].connected);
}

TEST_F(StoreTest, HeartbeatOfAClosedSessionIsIgnored) {
  open_store();
  store_->note_heartbeat(kRank0, 5, 0);
  store_->close_session(kRank0);
  commit();
  EXPECT_TRUE(query().runs().value().empty());
}

TEST_F(StoreTest, RunsComeNewestFirst) {
  open_store();
  join(rank_of("old", 1, 0), make_schema());
  clock_.advance(std::chrono::seconds{1});
  join(rank_of("new", 1, 0), make_schema());
  commit();
  const auto runs = query().runs().value();
  ASSERT_EQ(runs.size(), 2U);
  EXPECT_EQ(runs[0].run_id, "new");
  EXPECT_EQ(runs[0].last_step, -1);
  EXPECT_TRUE(std::isnan(runs[0].last_loss));
  EXPECT_EQ(query().run("other").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(query().series("other").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(query().ranks("other").status().code(), StatusCode::kNotFound);
}

TEST_F(StoreTest, DataVersionGrowsWithCommitsThatChangeSomething) {
  open_store();
  const std::int64_t before = query().data_version().value();
  commit();
  EXPECT_EQ(query().data_version().value(), before);
  join(kRank0, make_schema());
  EXPECT_EQ(query().data_version().value(), before);
  commit();
  EXPECT_GT(query().data_version().value(), before);
}

TEST_F(StoreTest, CompactionLeavesOnlyTheOpenStretchInFrames) {
  open_store();
  join(kRank0, make_schema(20));
  ASSERT_TRUE(add_steps(kRank0, make_schema(20), 0, 10'000, plain).ok());
  compact_all();
  EXPECT_FALSE(store_->compact().value());
  store_.reset();
  sqlite3* handle = nullptr;
  ASSERT_EQ(sqlite3_open(database_.c_str(), &handle), SQLITE_OK);
  sqlite3_stmt* statement = nullptr;
  ASSERT_EQ(
      sqlite3_prepare_v2(handle, "SELECT count(*) FROM frames", -1, &statement, nullptr),
      SQLITE_OK);
  ASSERT_EQ(sqlite3_step(statement), SQLITE_ROW);
  EXPECT_EQ(sqlite3_column_int64(statement, 0), 10'000 % 1024);
  sqlite3_finalize(statement);
  sqlite3_close(handle);
}

TEST_F(StoreTest, WhatAnEarlierProcessLeftIsCompactedAfterReopening) {
  open_store();
  join(kRank0, make_schema());
  ASSERT_TRUE(add_steps(kRank0, make_schema(), 0, 5000, plain).ok());
  commit();
  open_store();
  EXPECT_FALSE(store_->compact().value());
  commit();
  EXPECT_EQ(range("run", series_id("run", "train_loss_nats", -1), 1).buckets.size(), 5000U);
}

}  // namespace muster::store
