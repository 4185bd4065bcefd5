// SPDX-License-Identifier: Apache-2.0
// A store in a folder of its own, with verbs that keep the tests short.
#pragma once

#include "tests/support/scratch_folder.h"

#include <muster/common/clock.h>
#include <muster/store/query.h>
#include <muster/store/store.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace muster::store {

inline Identity rank_of(
    const std::string& run,
    std::int64_t generation,
    std::int32_t rank,
    const std::string& incarnation = "a") {
  return Identity{run, Generation{generation}, Rank{rank}, incarnation};
}

inline const Identity kRank0 = rank_of("run", 1, 0);

// One job-scope train_loss_nats, one rank-scope train_compute_seconds, then `extra` rank-scope
// columns.
inline MetricSchema make_schema(std::uint32_t extra = 0) {
  MetricSchema schema;
  const auto add = [&schema](const char* name, MetricScope scope, std::int32_t index) {
    MetricDescriptor& metric = schema.metrics.emplace_back();
    metric.id = static_cast<std::uint32_t>(schema.metrics.size() - 1);
    metric.name = name;
    metric.unit = "1";
    metric.scope = scope;
    metric.index = index;
  };
  add("train_loss_nats", MetricScope::kJob, -1);
  add("train_compute_seconds", MetricScope::kRank, -1);
  for (std::uint32_t i = 0; i < extra; ++i) {
    add("extra", MetricScope::kRank, static_cast<std::int32_t>(i));
  }
  return schema;
}

class StoreTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = scratch_.emplace().path();
    database_ = folder_ / "muster.db";
    clock_.advance(std::chrono::seconds{1000});
  }

  void TearDown() override {
    query_.reset();
    store_.reset();
    scratch_.reset();
  }

  void open_store() {
    store_.reset();
    auto store = Store::open(database_, clock_);
    ASSERT_TRUE(store.ok()) << store.status().to_string();
    store_ = std::move(store).value();
  }

  Query& query() {
    if (!query_) {
      auto opened = Query::open(database_);
      EXPECT_TRUE(opened.ok()) << opened.status().to_string();
      query_ = std::move(opened).value();
    }
    return *query_;
  }

  // Opens the session and registers the schema.
  std::uint64_t join(const Identity& identity, const MetricSchema& schema) {
    const auto acked = store_->open_session(identity, 2);
    EXPECT_TRUE(acked.ok()) << acked.status().to_string();
    const Status registered = store_->register_schema(identity, schema);
    EXPECT_TRUE(registered.ok()) << registered.to_string();
    return acked.value();
  }

  using ValueOf = std::function<float(std::int64_t step, std::size_t column)>;

  // Frames of steps [begin, end), with seq = step + 1.
  Status add_steps(
      const Identity& identity,
      const MetricSchema& schema,
      std::int64_t begin,
      std::int64_t end,
      const ValueOf& value_of) {
    std::vector<SampleFrame> frames;
    for (std::int64_t step = begin; step < end; ++step) {
      SampleFrame& frame = frames.emplace_back();
      frame.step = step;
      frame.wall_unix_ns = step * 1000;
      for (std::size_t column = 0; column < schema.metrics.size(); ++column) {
        frame.values.push_back(value_of(step, column));
      }
    }
    return store_->add_frames(
        identity, schema.hash(), static_cast<std::uint64_t>(begin) + 1, frames);
  }

  void commit() {
    const Status status = store_->commit();
    ASSERT_TRUE(status.ok()) << status.to_string();
  }

  void compact_all() {
    while (true) {
      const auto more = store_->compact();
      ASSERT_TRUE(more.ok()) << more.status().to_string();
      if (!more.value()) {
        break;
      }
    }
    commit();
  }

  std::int64_t series_id(
      const std::string& run, const std::string& name, std::int32_t rank, std::int32_t index = -1) {
    const auto all = query().series(run);
    EXPECT_TRUE(all.ok()) << all.status().to_string();
    for (const SeriesInfo& info : all.value()) {
      if (info.name == name && info.rank == rank && info.index == index) {
        return info.series_id;
      }
    }
    ADD_FAILURE() << "no series " << name << " of rank " << rank;
    return -1;
  }

  SeriesRange range(
      const std::string& run,
      std::int64_t series,
      std::int64_t generation,
      std::int64_t begin = 0,
      std::int64_t end = -1,
      std::int32_t buckets_max = 1 << 30) {
    auto result = query().range(run, series, generation, begin, end, buckets_max);
    EXPECT_TRUE(result.ok()) << result.status().to_string();
    return std::move(result).value_or({});
  }

  std::optional<test::ScratchFolder> scratch_;  // A new one after each SetUp.
  std::filesystem::path folder_;
  std::filesystem::path database_;
  ManualClock clock_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Query> query_;
};

}  // namespace muster::store
