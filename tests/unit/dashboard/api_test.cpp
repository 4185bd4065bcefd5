// SPDX-License-Identifier: Apache-2.0
#include "dashboard/server/api.h"

#include "tests/unit/dashboard/fake_query.h"

#include <gtest/gtest.h>

#include <cstring>

namespace muster::dashboard {
namespace {

class ApiTest : public ::testing::Test {
 protected:
  HttpResponse ask(const std::string& target, const std::string& method = "GET") {
    HttpRequest request;
    request.method = method;
    request.target = target;
    request.headers["host"] = "127.0.0.1:29680";
    return api().handle(request);
  }

  HttpResponse post_command(const std::string& body, const std::string& run = "night") {
    HttpRequest request;
    request.method = "POST";
    request.target = "/api/runs/" + run + "/commands";
    request.body = body;
    request.headers = {
        {"host", "localhost"}, {"content-type", "application/json"}, {"x-muster-operator", "me"}};
    return api().handle(request);
  }

  void take_commands() {
    options_.issue_command = [this](
                                 const std::string& run,
                                 CommandKind kind,
                                 double argument,
                                 const std::string& reason) -> Expected<CommandId> {
      issued_.push_back(
          run + " " + to_string(kind) + " " + std::to_string(argument) + " " + reason);
      return CommandId{42};
    };
  }

  Api& api() {
    if (!api_) {
      api_.emplace(options_, factory_of(fake_), clock_);
    }
    return *api_;
  }

  FakeStore fake_ = night_store();
  ManualClock clock_;
  ServerOptions options_;
  std::vector<std::string> issued_;
  std::optional<Api> api_;
};

TEST_F(ApiTest, ListsRuns) {
  const HttpResponse response = ask("/api/runs");
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.content_type, "application/json");
  EXPECT_NE(response.body.find("\"run_id\":\"night\""), std::string::npos);
  EXPECT_NE(response.body.find("\"commands\":\"off\""), std::string::npos);
}

TEST_F(ApiTest, ShowsARunWithItsGenerations) {
  const HttpResponse response = ask("/api/runs/night");
  EXPECT_EQ(response.status, 200);
  EXPECT_NE(response.body.find("\"generation\":1"), std::string::npos);
  EXPECT_NE(response.body.find("\"step_last\":25"), std::string::npos);
}

TEST_F(ApiTest, AnswersNotFoundForUnknownThings) {
  for (const char* target :
       {"/api/runs/day",
        "/api/runs/day/series",
        "/api/runs/day/events",
        "/api/runs/day/live",
        "/api/runs/day/range?series=1",
        "/api/runs/night/nothing",
        "/api",
        "/nothing"}) {
    EXPECT_EQ(ask(target).status, 404) << target;
  }
}

TEST_F(ApiTest, AsksTheStoreForEverySeriesAndGeneration) {
  const HttpResponse response =
      ask("/api/runs/night/range?series=4,8-9&generation=1,2&from=10&to=20&buckets=5");
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.content_type, "application/octet-stream");
  ASSERT_EQ(fake_.range_calls.size(), 6U);
  EXPECT_EQ(fake_.range_calls[0].generation, 1);
  EXPECT_EQ(fake_.range_calls[5].generation, 2);
  EXPECT_EQ(fake_.range_calls[5].series, 9);
  EXPECT_EQ(fake_.range_calls[5].begin, 10);
  EXPECT_EQ(fake_.range_calls[5].end, 20);
  EXPECT_EQ(fake_.range_calls[5].buckets, 5);
  std::uint32_t entries = 0;
  std::memcpy(&entries, response.body.data() + 8, sizeof(entries));
  EXPECT_EQ(entries, 6U);
}

TEST_F(ApiTest, MeansTheNewestGenerationWhenNoneIsNamed) {
  EXPECT_EQ(ask("/api/runs/night/range?series=4").status, 200);
  ASSERT_EQ(fake_.range_calls.size(), 1U);
  EXPECT_EQ(fake_.range_calls[0].generation, 2);
  EXPECT_EQ(fake_.range_calls[0].end, -1);
}

TEST_F(ApiTest, ShowsAMetricAtAStepOfTheNewestGeneration) {
  EXPECT_EQ(ask("/api/runs/night/step?metric=train_moe_expert_tokens").status, 200);
  ASSERT_EQ(fake_.step_calls.size(), 1U);
  EXPECT_EQ(fake_.step_calls[0].metric, "train_moe_expert_tokens");
  EXPECT_EQ(fake_.step_calls[0].generation, 2);
  EXPECT_EQ(fake_.step_calls[0].step, -1);
}

TEST_F(ApiTest, ShowsAMetricAtTheStepAndGenerationAskedFor) {
  fake_.step_values.step = 17;
  fake_.step_values.unit = "tokens";
  fake_.step_values.values = {{7, -1, 0, 3, "", 12.5F, true}};
  const HttpResponse response = ask("/api/runs/night/step?metric=m&step=17&generation=1");
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.content_type, "application/json");
  EXPECT_EQ(fake_.step_calls.at(0).generation, 1);
  EXPECT_EQ(fake_.step_calls.at(0).step, 17);
  EXPECT_NE(response.body.find("\"value\":[12.5]"), std::string::npos) << response.body;
}

TEST_F(ApiTest, RefusesBadStepsAndSaysWhy) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "metric"},
      {"metric=", "metric"},
      {"metric=m&step=x", "step"},
      {"metric=m&step=-2", "step"},
      {"metric=m&generation=1e3", "generation"}};
  for (const auto& [query, name] : cases) {
    const HttpResponse response = ask(std::string("/api/runs/night/step?") + query);
    EXPECT_EQ(response.status, 400) << query;
    EXPECT_NE(response.body.find(name), std::string::npos) << response.body;
  }
  EXPECT_TRUE(fake_.step_calls.empty());
  EXPECT_EQ(ask("/api/runs/day/step?metric=m").status, 404);
}

TEST_F(ApiTest, RefusesBadRangesAndSaysWhy) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "series"},
      {"series=x", "series"},
      {"series=1&from=-1", "from"},
      {"series=1&from=9&to=3", "to"},
      {"series=1&buckets=0", "buckets"},
      {"series=1&buckets=1e9", "buckets"},
      {"series=0-8000&buckets=8192", "buckets"}};
  for (const auto& [query, name] : cases) {
    const HttpResponse response = ask(std::string("/api/runs/night/range?") + query);
    EXPECT_EQ(response.status, 400) << query;
    EXPECT_NE(response.body.find(name), std::string::npos) << response.body;
  }
  EXPECT_TRUE(fake_.range_calls.empty());
}

TEST_F(ApiTest, PagesThroughEvents) {
  fake_.events.resize(3);
  for (std::size_t i = 0; i < 3; ++i) {
    fake_.events[i].event_id = static_cast<std::int64_t>(i) + 1;
  }
  const HttpResponse response = ask("/api/runs/night/events?after=1&limit=1");
  EXPECT_NE(response.body.find("\"id\":2"), std::string::npos);
  EXPECT_EQ(response.body.find("\"id\":3"), std::string::npos);
  EXPECT_EQ(ask("/api/runs/night/events?limit=0").status, 400);
}

TEST_F(ApiTest, IssuesACommandOnce) {
  take_commands();
  const HttpResponse response =
      post_command(R"({"kind":"checkpoint_now","argument":0,"reason":"before lunch"})");
  EXPECT_EQ(response.status, 201);
  EXPECT_EQ(response.body, R"({"id":42})");
  ASSERT_EQ(issued_.size(), 1U);
  EXPECT_EQ(issued_[0], "night checkpoint_now 0.000000 before lunch");
}

TEST_F(ApiTest, IssuesNothingForABadCommand) {
  take_commands();
  EXPECT_EQ(post_command("{}").status, 400);
  EXPECT_EQ(post_command(R"({"kind":"stop","reason":""})", "day").status, 404);
  EXPECT_TRUE(issued_.empty());
}

TEST_F(ApiTest, SaysThatAReadOnlyDashboardTakesNoCommands) {
  EXPECT_EQ(post_command(R"({"kind":"stop","reason":""})").status, 501);
}

TEST_F(ApiTest, RefusesOtherMethods) {
  const HttpResponse response = ask("/api/runs", "DELETE");
  EXPECT_EQ(response.status, 405);
  EXPECT_EQ(ask("/api/runs/night", "POST").status, 405);
}

TEST_F(ApiTest, RefusesAForeignHost) {
  HttpRequest request;
  request.method = "GET";
  request.target = "/api/runs";
  request.headers["host"] = "rebound.example";
  EXPECT_EQ(api().handle(request).status, 403);
}

TEST_F(ApiTest, ReportsHealthOfTheStore) {
  EXPECT_EQ(ask("/healthz").status, 200);
  fake_.broken = true;
  const HttpResponse response = ask("/healthz");
  EXPECT_EQ(response.status, 503);
  EXPECT_NE(response.body.find("went away"), std::string::npos);
}

TEST_F(ApiTest, PassesMetricsThrough) {
  EXPECT_EQ(ask("/metrics").status, 404);
  api_.reset();
  options_.metrics_text = [] { return std::string("train_step 40\n"); };
  EXPECT_EQ(ask("/metrics").body, "train_step 40\n");
}

TEST_F(ApiTest, TellsBrowsersToRunOnlyItsOwnScripts) {
  bool found = false;
  for (const auto& [name, value] : ask("/").headers) {
    found = found || (name == "Content-Security-Policy" &&
                      value.find("script-src 'self'") != std::string::npos);
  }
  EXPECT_TRUE(found);
}

TEST_F(ApiTest, RecoversWhenTheDatabaseAppearsLater) {
  bool present = false;
  Api late{
      options_,
      [&]() -> Expected<std::unique_ptr<store::Query>> {
        return present ? factory_of(fake_)() : not_found("no database yet");
      },
      clock_};
  HttpRequest request;
  request.method = "GET";
  request.target = "/api/runs";
  request.headers["host"] = "localhost";
  EXPECT_EQ(late.handle(request).status, 404);
  present = true;
  EXPECT_EQ(late.handle(request).status, 200);
}

}  // namespace
}  // namespace muster::dashboard
