// SPDX-License-Identifier: Apache-2.0
#include <muster/common/log.h>
#include <muster/common/telemetry.h>

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>

namespace muster {

namespace {

MetricSchema two_metrics() {
  MetricSchema schema;
  schema.metrics.push_back(
      {0, "loss", "nats", MetricKind::kInstant, MetricScope::kJob, -1, -1, ""});
  schema.metrics.push_back(
      {1, "max_logit", "1", MetricKind::kInstant, MetricScope::kRank, 3, 5, "attention"});
  return schema;
}

TEST(MetricSchema, EqualSchemasHaveEqualHashes) {
  EXPECT_EQ(two_metrics().hash(), two_metrics().hash());
}

TEST(MetricSchema, EveryFieldCountsInTheHash) {
  const std::vector<std::function<void(MetricDescriptor&)>> changes{
      [](MetricDescriptor& m) { m.id = 2; },
      [](MetricDescriptor& m) { m.name = "max_logits"; },
      [](MetricDescriptor& m) { m.unit = "nats"; },
      [](MetricDescriptor& m) { m.kind = MetricKind::kRate; },
      [](MetricDescriptor& m) { m.scope = MetricScope::kJob; },
      [](MetricDescriptor& m) { m.layer = 4; },
      [](MetricDescriptor& m) { m.index = 6; },
      [](MetricDescriptor& m) { m.group = "experts"; }};
  std::set<std::uint64_t> hashes{two_metrics().hash()};
  for (const auto& change : changes) {
    MetricSchema schema = two_metrics();
    change(schema.metrics[1]);
    EXPECT_TRUE(hashes.insert(schema.hash()).second);
  }
}

TEST(MetricSchema, OrderAndStringBordersCountInTheHash) {
  MetricSchema swapped = two_metrics();
  std::swap(swapped.metrics[0], swapped.metrics[1]);
  EXPECT_NE(swapped.hash(), two_metrics().hash());
  MetricSchema moved = two_metrics();
  moved.metrics[0].name = "los";
  moved.metrics[0].unit = "snats";
  EXPECT_NE(moved.hash(), two_metrics().hash());
}

TEST(CommandKind, EveryKindAndStateHasItsOwnName) {
  std::set<std::string> names;
  for (int kind = 1; kind <= 4; ++kind) {
    names.insert(to_string(static_cast<CommandKind>(kind)));
  }
  for (int state = 1; state <= 5; ++state) {
    names.insert(to_string(static_cast<CommandState>(state)));
  }
  EXPECT_EQ(names.size(), 9U);
  EXPECT_EQ(names.count("unknown"), 0U);
}

TEST(LogLevel, NamesAreParsedAndUnknownOnesMeanInfo) {
  EXPECT_EQ(parse_log_level("debug"), LogLevel::kDebug);
  EXPECT_EQ(parse_log_level("warning"), LogLevel::kWarning);
  EXPECT_EQ(parse_log_level("error"), LogLevel::kError);
  EXPECT_EQ(parse_log_level("off"), LogLevel::kOff);
  EXPECT_EQ(parse_log_level("loud"), LogLevel::kInfo);
}

}  // namespace

}  // namespace muster
