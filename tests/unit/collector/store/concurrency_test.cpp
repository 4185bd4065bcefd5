// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/collector/store/store_fixture.h"

#include <atomic>
#include <thread>

namespace muster::store {

namespace {}  // namespace

TEST_F(StoreTest, ReadersSeeWholeCommitsWhileTheWriterWritesAndCompacts) {
  open_store();
  const MetricSchema schema = make_schema(10);
  join(kRank0, schema);
  commit();
  const std::int64_t series = series_id("run", "train_loss_nats", -1);
  std::atomic<bool> done{false};
  std::atomic<std::int64_t> committed{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i) {
    readers.emplace_back([&] {
      auto reader = Query::open(database_).value();
      std::size_t before = 0;
      bool last_round = false;
      while (!last_round) {
        last_round = done.load();
        const auto at_least = static_cast<std::size_t>(committed.load());
        const auto found = reader->range("run", series, 1, 0, -1, 1 << 20);
        ASSERT_TRUE(found.ok()) << found.status().to_string();
        const std::size_t count = found.value().buckets.size();
        ASSERT_EQ(count % 100, 0U) << "half a commit was seen";
        ASSERT_GE(count, before);
        ASSERT_GE(count, at_least);
        before = count;
      }
      ASSERT_EQ(before, 6000U);
    });
  }
  for (std::int64_t step = 0; step < 6000; step += 100) {
    ASSERT_TRUE(add_steps(kRank0, schema, step, step + 100, [](std::int64_t s, std::size_t) {
                  return static_cast<float>(s);
                }).ok());
    ASSERT_TRUE(store_->compact().ok());
    commit();
    committed = step + 100;
  }
  done = true;
  for (std::thread& reader : readers) {
    reader.join();
  }
}

TEST_F(StoreTest, ReaderLeavesTheLogToTheWriter) {
  open_store();
  join(kRank0, make_schema());
  ASSERT_TRUE(add_steps(kRank0, make_schema(), 0, 100, [](auto, auto) { return 1.0F; }).ok());
  commit();
  const auto log = database_.string() + "-wal";
  const auto size = std::filesystem::file_size(log);
  const auto database_size = std::filesystem::file_size(database_);
  ASSERT_GT(size, 0U);
  EXPECT_EQ(query().runs().value().size(), 1U);
  query_.reset();
  EXPECT_EQ(std::filesystem::file_size(log), size);
  EXPECT_EQ(std::filesystem::file_size(database_), database_size);
}

}  // namespace muster::store
