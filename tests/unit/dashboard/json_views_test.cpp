// SPDX-License-Identifier: Apache-2.0
#include "dashboard/server/json_views.h"

#include <gtest/gtest.h>

#include <limits>

namespace muster::dashboard {
namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(JsonViews, WritesNonFiniteNumbersAsNames) {
  store::StoredEvent stored;
  stored.event.inputs = {
      {"a", std::numeric_limits<double>::quiet_NaN()},
      {"b", -std::numeric_limits<double>::infinity()}};
  const std::string text = events_json({stored});
  EXPECT_TRUE(contains(text, R"("a":"NaN")")) << text;
  EXPECT_TRUE(contains(text, R"("b":"-Infinity")")) << text;
}

TEST(JsonViews, WritesAStepAsColumnsAndWhatIsMissingAsNull) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  store::StepValues values;
  values.generation = 2;
  values.step = 9;
  values.step_first = 3;
  values.step_last = 11;
  values.unit = "tokens";
  values.values = {
      {1, -1, 0, 0, "", 4.0F, true}, {2, -1, 0, 1, "g", 0.0F, false}, {3, 5, 1, 0, "", kNaN, true}};
  EXPECT_EQ(
      step_json("m", values),
      R"({"generation":2,"group":["","g",""],"index":[0,1,0],"layer":[0,0,1],"metric":"m",)"
      R"("rank":[-1,-1,5],"step":9,"step_first":3,"step_last":11,"unit":"tokens",)"
      R"("value":[4.0,null,"NaN"]})");
}

TEST(JsonViews, RepairsTextThatIsNotUtf8) {
  store::StoredEvent stored;
  stored.event.reason = "bad \xff byte";
  EXPECT_TRUE(contains(events_json({stored}), "bad \xEF\xBF\xBD byte"));
}

TEST(JsonViews, LeavesUnchangedPartsOutOfAnUpdate) {
  LiveUpdate update;
  update.now_unix_ns = 5'000'000;
  EXPECT_EQ(live_json(update), R"({"now_unix_ms":5})");
}

TEST(JsonViews, ParsesACommand) {
  const auto command =
      parse_command_request(R"({"kind":"set_qk_clip_threshold","argument":80,"reason":"why"})");
  ASSERT_TRUE(command.ok());
  EXPECT_EQ(command->kind, CommandKind::kSetQkClipThreshold);
  EXPECT_EQ(command->argument, 80.0);
  EXPECT_EQ(command->reason, "why");
}

TEST(JsonViews, NamesTheFieldThatIsWrongInACommand) {
  const std::pair<const char*, const char*> cases[] = {
      {"[]", "JSON object"},
      {"{", "JSON object"},
      {R"({"kind":"explode","reason":""})", "\"kind\""},
      {R"({"kind":7,"reason":""})", "\"kind\""},
      {R"({"kind":"stop"})", "\"reason\""},
      {R"({"kind":"stop","reason":"x","argument":"1"})", "\"argument\""},
      {R"({"kind":"set_qk_clip_threshold","reason":"x","argument":-1})", "\"argument\""}};
  for (const auto& [body, field] : cases) {
    const auto command = parse_command_request(body);
    EXPECT_EQ(command.status().code(), StatusCode::kInvalidArgument) << body;
    EXPECT_TRUE(contains(command.status().message(), field)) << command.status().message();
  }
}

TEST(JsonViews, BoundsTheReasonOfACommand) {
  const std::string body = R"({"kind":"stop","reason":")" + std::string(501, 'x') + "\"}";
  EXPECT_FALSE(parse_command_request(body).ok());
}

}  // namespace
}  // namespace muster::dashboard
