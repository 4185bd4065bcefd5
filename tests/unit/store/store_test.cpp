#include "store_fixture.h"

#include <bit>
#include <cmath>
#include <limits>

namespace muster::store {

namespace {

const Identity kRank0 = rank_of("run", 1, 0);
const Identity kRank1 = rank_of("run", 1, 1);

float plain(std::int64_t step, std::size_t column) {
  return static_cast<float>(step) + static_cast<float>(column) * 0.25F;
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

}  // namespace muster::store
