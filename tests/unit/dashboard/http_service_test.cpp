// SPDX-License-Identifier: Apache-2.0
#include "dashboard/server/http_service.h"

#include "dashboard/server/start_server.h"
#include "tests/unit/dashboard/fake_query.h"
#include "tests/unit/dashboard/http_client.h"

#include <gtest/gtest.h>

#include <future>

namespace muster::dashboard {
namespace {

HttpResponse echo(const HttpRequest& request) {
  HttpResponse response;
  response.body = request.method + " " + request.target + " " + request.body;
  return response;
}

std::unique_ptr<HttpService> start_or_fail(HttpService::Handler handler, HttpLimits limits = {}) {
  auto service = HttpService::start("127.0.0.1:0", std::move(handler), limits);
  EXPECT_TRUE(service.ok()) << service.status().to_string();
  return std::move(service).value();
}

TEST(HttpService, AnswersARequest) {
  const auto service = start_or_fail(echo);
  const std::string answer = fetch(service->address(), "/a?b=c");
  EXPECT_EQ(answer.substr(0, 15), "HTTP/1.1 200 OK");
  EXPECT_NE(answer.find("GET /a?b=c"), std::string::npos);
  EXPECT_TRUE(service->is_loopback());
}

TEST(HttpService, KeepsAConnectionForMoreRequests) {
  const auto service = start_or_fail(echo);
  HttpClient client{service->address()};
  client.send("GET /one HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_NE(client.read_until("GET /one ").find("200 OK"), std::string::npos);
  client.send("GET /two HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_NE(client.read_until("GET /two ").find("200 OK"), std::string::npos);
}

TEST(HttpService, AnswersAClientThatAsksWhetherToSendItsBody) {
  const auto service = start_or_fail(echo);
  HttpClient client{service->address()};
  client.send(
      "POST /x HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
      "Content-Length: 4\r\n\r\n");
  EXPECT_NE(client.read_until("\r\n\r\n").find("HTTP/1.1 100 Continue"), std::string::npos);
  client.send("body");
  EXPECT_NE(client.read_until("POST /x body").find("200 OK"), std::string::npos);
}

TEST(HttpService, TakesATargetThatNamesItsHost) {
  const auto host = [](const HttpRequest& request) {
    HttpResponse response;
    response.body = request.target + " of " + request.header("host") + "!";
    return response;
  };
  const auto service = start_or_fail(host);
  HttpClient client{service->address()};
  client.send("GET http://localhost:80/a?b=c HTTP/1.1\r\nHost: other\r\n\r\n");
  EXPECT_NE(client.read_until("/a?b=c of localhost:80!").find("200 OK"), std::string::npos);
  client.send("GET HTTP://localhost HTTP/1.1\r\nHost: other\r\n\r\n");
  EXPECT_NE(client.read_until("/ of localhost!").find("200 OK"), std::string::npos);
}

TEST(HttpService, SendsNoBodyForHead) {
  const auto service = start_or_fail(echo);
  const std::string answer = fetch(service->address(), "/page", "HEAD");
  EXPECT_NE(answer.find("Content-Length: 11\r\n"), std::string::npos) << answer;
  EXPECT_EQ(answer.substr(answer.size() - 4), "\r\n\r\n");
}

TEST(HttpService, RefusesALargeHeader) {
  const auto service = start_or_fail(echo);
  const std::string answer = fetch(service->address(), "/" + std::string(20'000, 'x'));
  EXPECT_NE(answer.find(" 431 "), std::string::npos) << answer;
}

TEST(HttpService, RefusesALargeBody) {
  const auto service = start_or_fail(echo);
  HttpClient client{service->address()};
  client.send("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999\r\n\r\n");
  EXPECT_NE(client.read_to_end().find(" 413 "), std::string::npos);
}

TEST(HttpService, RefusesWhatIsNotHttp) {
  const auto service = start_or_fail(echo);
  HttpClient client{service->address()};
  client.send("\x16\x03\x01 hello\r\n\r\n");
  EXPECT_NE(client.read_to_end().find(" 400 "), std::string::npos);
}

TEST(HttpService, DropsAClientThatNeverFinishesItsRequest) {
  HttpLimits limits;
  limits.read_deadline = std::chrono::milliseconds{100};
  const auto service = start_or_fail(echo, limits);
  HttpClient client{service->address()};
  client.send("GET / HTTP/1.1\r\nHost:");
  EXPECT_EQ(client.read_to_end(), "");
  EXPECT_TRUE(client.is_closed());
}

TEST(HttpService, ServesOthersWhileOneStalls) {
  const auto service = start_or_fail(echo);
  HttpClient stalled{service->address()};
  stalled.send("GET / HT");
  EXPECT_NE(fetch(service->address(), "/").find("200 OK"), std::string::npos);
}

TEST(HttpService, ClosesConnectionsOverTheCap) {
  HttpLimits limits;
  limits.connections_max = 1;
  const auto service = start_or_fail(echo, limits);
  HttpClient first{service->address()};
  first.send("GET /first HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_NE(first.read_until("GET /first").find("200 OK"), std::string::npos);
  HttpClient second{service->address()};
  EXPECT_EQ(second.read_to_end(), "");
  EXPECT_TRUE(second.is_closed());
}

TEST(HttpService, StreamsUntilTheSourceEnds) {
  HttpLimits limits;
  limits.stream_interval = std::chrono::milliseconds{1};
  const auto service = start_or_fail(
      [](const HttpRequest&) {
        HttpResponse response;
        response.content_type = "text/event-stream";
        auto left = std::make_shared<int>(3);
        response.stream = [left]() -> std::optional<std::string> {
          if (*left == 0) {
            return std::nullopt;
          }
          return "piece " + std::to_string((*left)--) + "\n";
        };
        return response;
      },
      limits);
  const std::string answer = fetch(service->address(), "/");
  EXPECT_NE(answer.find("text/event-stream"), std::string::npos);
  EXPECT_NE(answer.find("piece 3\npiece 2\npiece 1\n"), std::string::npos);
}

TEST(HttpService, SaysThatItIsBusyInsteadOfQueueingWithoutBound) {
  std::promise<void> entered;
  std::promise<void> release;
  HttpLimits limits;
  limits.jobs_max = 1;
  const auto service = start_or_fail(
      [&](const HttpRequest& request) {
        entered.set_value();
        release.get_future().wait();
        return echo(request);
      },
      limits);
  HttpClient slow{service->address()};
  slow.send("GET /slow HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  entered.get_future().wait();
  const std::string answer = fetch(service->address(), "/other");
  EXPECT_NE(answer.find(" 503 "), std::string::npos) << answer;
  EXPECT_NE(answer.find("Retry-After: 1"), std::string::npos) << answer;
  release.set_value();
  EXPECT_NE(slow.read_to_end().find("GET /slow"), std::string::npos);
}

TEST(HttpService, StopsWithOpenConnectionsAndStreams) {
  const auto service = start_or_fail([](const HttpRequest&) {
    HttpResponse response;
    response.stream = []() -> std::optional<std::string> { return "tick\n"; };
    return response;
  });
  HttpClient idle{service->address()};
  HttpClient streaming{service->address()};
  streaming.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_NE(streaming.read_until("tick\n").find("200 OK"), std::string::npos);
  service->stop();
  service->stop();
  EXPECT_EQ(idle.read_to_end(), "");
}

TEST(HttpService, NamesThePortThatIsInUse) {
  const auto service = start_or_fail(echo);
  const auto second = HttpService::start(service->address(), echo);
  EXPECT_EQ(second.status().code(), StatusCode::kAlreadyExists);
  EXPECT_NE(second.status().message().find(service->address()), std::string::npos);
  EXPECT_NE(second.status().message().find("choose another"), std::string::npos);
}

TEST(HttpService, RefusesMalformedAddresses) {
  for (const char* bad :
       {"",
        "29680",
        "host",
        ":1",
        "127.0.0.1:",
        "127.0.0.1:x",
        "127.0.0.1:70000",
        "example.org:80"}) {
    EXPECT_EQ(HttpService::start(bad, echo).status().code(), StatusCode::kInvalidArgument) << bad;
  }
}

TEST(Server, ServesPageApiAndLiveUpdates) {
  FakeStore fake = night_store();
  const SystemClock clock;
  ServerOptions options;
  options.listen = "127.0.0.1:0";
  const auto server = start_server(options, factory_of(fake), clock);
  ASSERT_TRUE(server.ok()) << server.status().to_string();
  const std::string address = server.value()->url().substr(7);
  EXPECT_NE(fetch(address, "/").find("<!doctype html>"), std::string::npos);
  EXPECT_NE(fetch(address, "/api/runs").find("night"), std::string::npos);
  HttpClient client{address};
  client.send("GET /api/runs/night/live HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_NE(client.read_until("\n\n").find("event: update"), std::string::npos);
  server.value()->stop();
}

}  // namespace
}  // namespace muster::dashboard
