// SPDX-License-Identifier: Apache-2.0
// All series of a metric at one step.
#include "tests/unit/collector/store/store_fixture.h"

#include <cmath>

namespace muster::store {
namespace {

constexpr std::size_t kRankColumns = 2;  // Before the first "extra".

class Step : public StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    open_store();
    for (std::int32_t rank = 0; rank < 2; ++rank) {
      join(rank_of("run", 1, rank), schema_);
    }
  }

  // 1000 rank + 10 step + index
  void send(std::int32_t rank, std::int64_t begin, std::int64_t end) {
    const Status status = add_steps(
        rank_of("run", 1, rank), schema_, begin, end, [&](std::int64_t step, std::size_t column) {
          const auto index = static_cast<std::int64_t>(column) - std::int64_t{kRankColumns};
          return static_cast<float>(1000 * rank + 10 * step + index);
        });
    ASSERT_TRUE(status.ok()) << status.to_string();
    commit();
  }

  StepValues at(
      std::int64_t step, const std::string& metric = "extra", std::int64_t generation = 1) {
    auto values = query().at_step("run", metric, generation, step);
    EXPECT_TRUE(values.ok()) << values.status().to_string();
    return std::move(values).value_or({});
  }

  MetricSchema schema_{make_schema(3)};
};

TEST_F(Step, HoldsEverySeriesOfTheMetricAscending) {
  send(0, 0, 10);
  send(1, 0, 10);
  const StepValues values = at(7);
  EXPECT_EQ(values.step, 7);
  EXPECT_EQ(values.generation, 1);
  EXPECT_EQ(values.step_first, 0);
  EXPECT_EQ(values.step_last, 9);
  EXPECT_EQ(values.unit, "1");
  ASSERT_EQ(values.values.size(), 6U);
  for (std::size_t i = 0; i < 6; ++i) {
    const StepValue& value = values.values[i];
    EXPECT_EQ(value.rank, static_cast<std::int32_t>(i / 3));
    EXPECT_EQ(value.index, static_cast<std::int32_t>(i % 3));
    EXPECT_TRUE(value.present);
    EXPECT_EQ(value.value, static_cast<float>(1000 * (i / 3) + 70 + i % 3));
  }
}

TEST_F(Step, OfAJobsMetricHasRankMinusOne) {
  send(0, 0, 3);
  send(1, 0, 3);
  const StepValues values = at(2, "train_loss_nats");
  ASSERT_EQ(values.values.size(), 1U);
  EXPECT_EQ(values.values[0].rank, -1);
  EXPECT_EQ(values.values[0].value, 18.0F);
}

TEST_F(Step, NewestIsTheLastThatAllSendersHave) {
  send(0, 0, 20);
  send(1, 0, 15);
  const StepValues values = at(-1);
  EXPECT_EQ(values.step, 14);
  EXPECT_EQ(values.values[0].value, 140.0F);
  EXPECT_EQ(values.values[3].value, 1140.0F);
}

TEST_F(Step, ThatSomeRankHasNotSentIsThereForTheOthers) {
  send(0, 0, 20);
  send(1, 0, 15);
  const StepValues values = at(17);
  ASSERT_EQ(values.values.size(), 6U);
  EXPECT_TRUE(values.values[0].present);
  EXPECT_FALSE(values.values[3].present);
}

TEST_F(Step, IsTheSameBeforeAndAfterTransposing) {
  send(0, 0, 2100);
  send(1, 0, 2100);
  std::vector<StepValues> before;
  for (const std::int64_t step : {0, 1023, 1024, 1500, 2047, 2048, 2099}) {
    before.push_back(at(step));
  }
  compact_all();
  for (const StepValues& expected : before) {
    const StepValues values = at(expected.step);
    ASSERT_EQ(values.values.size(), 6U);
    for (std::size_t i = 0; i < 6; ++i) {
      EXPECT_TRUE(values.values[i].present) << expected.step;
      EXPECT_EQ(values.values[i].value, expected.values[i].value) << expected.step;
    }
  }
}

TEST_F(Step, NaNIsAValue) {
  const Status status = add_steps(
      rank_of("run", 1, 0), schema_, 0, 1, [](std::int64_t, std::size_t) { return std::nanf(""); });
  ASSERT_TRUE(status.ok());
  commit();
  const StepValues values = at(0, "train_loss_nats");
  ASSERT_EQ(values.values.size(), 1U);
  EXPECT_TRUE(values.values[0].present);
  EXPECT_TRUE(std::isnan(values.values[0].value));
}

TEST_F(Step, OfASchemaWithoutTheSeriesIsMissingThere) {
  send(0, 0, 5);
  send(1, 0, 5);
  const MetricSchema narrow = make_schema(1);
  join(rank_of("run", 2, 0), narrow);
  ASSERT_TRUE(add_steps(rank_of("run", 2, 0), narrow, 0, 3, [](std::int64_t, std::size_t) {
                return 5.0F;
              }).ok());
  commit();
  const StepValues values = at(-1, "extra", 2);
  EXPECT_EQ(values.step, 2);
  ASSERT_EQ(values.values.size(), 6U);
  EXPECT_TRUE(values.values[0].present);
  EXPECT_FALSE(values.values[1].present);
  EXPECT_FALSE(values.values[3].present);
}

TEST_F(Step, OutsideOfWhatWasSentHoldsNothing) {
  send(0, 5, 10);
  for (const std::int64_t step : {0, 4, 10, 5000}) {
    EXPECT_FALSE(at(step).values.at(0).present) << step;
  }
  const StepValues other = at(-1, "extra", 7);
  EXPECT_EQ(other.step, -1);
  EXPECT_FALSE(other.values.at(0).present);
  EXPECT_TRUE(at(7, "no_such_metric").values.empty());
}

TEST_F(Step, OfAnUnknownRunIsNotFound) {
  EXPECT_EQ(query().at_step("nobody", "extra", 1, 0).status().code(), StatusCode::kNotFound);
}

TEST_F(Step, OfMoreSeriesThanAnAnswerHoldsIsRefused) {
  MetricSchema wide;
  for (std::uint32_t i = 0; i <= kStepValuesMax; ++i) {
    MetricDescriptor& metric = wide.metrics.emplace_back();
    metric.id = i;
    metric.name = "wide";
    metric.index = static_cast<std::int32_t>(i);
  }
  join(rank_of("run", 1, 0), wide);
  commit();
  const auto values = query().at_step("run", "wide", 1, 0);
  ASSERT_FALSE(values.ok());
  EXPECT_EQ(values.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(values.status().message().find("65536"), std::string::npos);
}

}  // namespace
}  // namespace muster::store
