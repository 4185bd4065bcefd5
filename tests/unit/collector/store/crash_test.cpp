// SPDX-License-Identifier: Apache-2.0
// What is on the disk when the process dies at any moment.
#include "tests/unit/collector/store/store_fixture.h"

#include <muster/common/random.h>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

namespace muster::store {

namespace {

float plain(std::int64_t step, std::size_t column) {
  return static_cast<float>(step) + static_cast<float>(column);
}

constexpr std::int64_t kBatch = 50;

// Every sample up to `steps` is there, with its value, nothing doubled, nothing beyond.
void expect_exactly(Query& query, std::int64_t steps) {
  const auto all = query.series("run").value();
  for (const SeriesInfo& info : all) {
    const auto found = query.range("run", info.series_id, 1, 0, -1, 1 << 24);
    ASSERT_TRUE(found.ok()) << found.status().to_string();
    ASSERT_EQ(found.value().buckets.size(), static_cast<std::size_t>(steps));
    for (std::int64_t step = 0; step < steps; ++step) {
      const Bucket& bucket = found.value().buckets[static_cast<std::size_t>(step)];
      ASSERT_EQ(bucket.step_first, step);
      ASSERT_EQ(bucket.count, 1U);
    }
  }
}

}  // namespace

class CrashTest : public StoreTest {
 protected:
  // Writes, compacts and commits until killed; one byte into the pipe after every commit.
  [[noreturn]] void write_until_killed(int pipe) {
    open_store();
    const MetricSchema schema = make_schema(6);
    join(kRank0, schema);
    for (std::int64_t step = 0;; step += kBatch) {
      const bool stored = add_steps(kRank0, schema, step, step + kBatch, plain).ok() &&
                          store_->compact().ok() && store_->commit().ok();
      if (!stored || ::write(pipe, "c", 1) != 1) {
        std::_Exit(1);
      }
    }
  }

  // Kills a writer after `commits` commits and `more_us` of work on; returns the commits it told
  // of.
  std::int64_t kill_a_writer(std::int64_t commits, useconds_t more_us) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      ::close(ends[0]);
      write_until_killed(ends[1]);
    }
    ::close(ends[1]);
    std::int64_t told = 0;
    char byte = 0;
    while (told < commits && ::read(ends[0], &byte, 1) == 1) {
      ++told;
    }
    EXPECT_EQ(told, commits) << "the writer ended by itself";
    // Dies somewhere within the batches that follow, not at a boundary: this is the point of it.
    ::usleep(more_us);
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status));
    while (::read(ends[0], &byte, 1) == 1) {
      ++told;
    }
    ::close(ends[0]);
    return told;
  }
};

TEST_F(CrashTest, KilledWriterLosesNothingItCommittedAndDoublesNothing) {
  constexpr std::uint64_t kSeed = 61;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  Random random{kSeed};
  for (int round = 0; round < 8; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    TearDown();
    SetUp();
    const std::int64_t told = kill_a_writer(
        1 + static_cast<std::int64_t>(random.below(60)),
        static_cast<useconds_t>(random.below(3000)));
    open_store();
    const auto acked = static_cast<std::int64_t>(store_->open_session(kRank0, 2).value());
    // The last commit may have been made without having been told of.
    ASSERT_TRUE(acked == told * kBatch || acked == (told + 1) * kBatch) << acked << " " << told;
    commit();
    expect_exactly(query(), acked);
    const auto more = store_->compact();
    ASSERT_TRUE(more.ok()) << more.status().to_string();
    commit();
    expect_exactly(query(), acked);
    EXPECT_EQ(query().run("run").value().sample_count, acked * 8);
  }
}

TEST_F(CrashTest, CopyTakenInTheMiddleOfATransactionHoldsTheLastCommit) {
  open_store();
  // Wide frames: the open transaction outgrows the page cache and spills into the log.
  const MetricSchema schema = make_schema(2000);
  join(kRank0, schema);
  ASSERT_TRUE(add_steps(kRank0, schema, 0, 1500, plain).ok());
  commit();
  ASSERT_TRUE(add_steps(kRank0, schema, 1500, 7500, plain).ok());
  ASSERT_TRUE(store_->compact().ok());
  const auto copy = folder_ / "copy.db";
  std::filesystem::copy_file(database_, copy);
  std::filesystem::copy_file(database_.string() + "-wal", copy.string() + "-wal");
  auto opened = Store::open(copy, clock_);
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  EXPECT_EQ(opened.value()->open_session(kRank0, 2).value(), 1500U);
  auto copied = Query::open(copy);
  ASSERT_TRUE(copied.ok()) << copied.status().to_string();
  const auto generations = copied.value()->generations("run").value();
  ASSERT_EQ(generations.size(), 1U);
  EXPECT_EQ(generations[0].step_last, 1499);
  const auto loss = copied.value()->range(
      "run", copied.value()->series("run").value()[0].series_id, 1, 0, -1, 1 << 20);
  EXPECT_EQ(loss.value().buckets.size(), 1500U);
}

// Files may not grow beyond `bytes` while this lives, as on a full disk.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    EXPECT_EQ(::getrlimit(RLIMIT_FSIZE, &before_), 0);
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limited{bytes, before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &limited), 0);
  }

  ~FullDisk() {
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &before_), 0);
    std::signal(SIGXFSZ, handler_);
  }

  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;
  FullDisk(FullDisk&&) = delete;
  FullDisk& operator=(FullDisk&&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int){nullptr};
};

TEST_F(CrashTest, FullDiskUndoesTheTransactionAndSendingAgainRepairsIt) {
  open_store();
  const MetricSchema schema = make_schema(6);
  join(kRank0, schema);
  ASSERT_TRUE(add_steps(kRank0, schema, 0, 10, plain).ok());
  commit();
  {
    const FullDisk full{std::filesystem::file_size(database_.string() + "-wal") + 20'000};
    ASSERT_TRUE(add_steps(kRank0, schema, 10, 3000, plain).ok());
    const Status failed = store_->commit();
    ASSERT_FALSE(failed.ok());
    EXPECT_NE(failed.message().find("undone"), std::string::npos) << failed.to_string();
    EXPECT_EQ(add_steps(kRank0, schema, 3000, 3010, plain).code(), StatusCode::kFailedPrecondition);
  }
  EXPECT_EQ(join(kRank0, schema), 10U);
  ASSERT_TRUE(add_steps(kRank0, schema, 10, 3000, plain).ok());
  compact_all();
  expect_exactly(query(), 3000);
  EXPECT_EQ(query().run("run").value().sample_count, 3000 * 8);
}

TEST_F(CrashTest, FailedWriteIsReportedOnceMoreByTheNextCommit) {
  open_store();
  const MetricSchema schema = make_schema(3000);
  join(kRank0, schema);
  commit();
  Status failed;
  {
    const FullDisk full{std::filesystem::file_size(database_.string() + "-wal") + 20'000};
    // More than the page cache holds: the log must be written before the commit.
    for (std::int64_t step = 0; step < 8000 && failed.ok(); step += 500) {
      failed = add_steps(kRank0, schema, step, step + 500, plain);
    }
  }
  ASSERT_FALSE(failed.ok());
  // Even what was added meanwhile: this commit may ack nothing.
  join(kRank0, schema);
  ASSERT_TRUE(add_steps(kRank0, schema, 0, 10, plain).ok());
  EXPECT_EQ(store_->commit().code(), failed.code());
  EXPECT_EQ(join(kRank0, schema), 0U);
  ASSERT_TRUE(add_steps(kRank0, schema, 0, 10, plain).ok());
  commit();
  EXPECT_EQ(query().run("run").value().sample_count, 10 * 3002);
}

}  // namespace muster::store
