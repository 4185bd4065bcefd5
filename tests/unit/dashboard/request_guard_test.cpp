// SPDX-License-Identifier: Apache-2.0
#include "dashboard/server/request_guard.h"

#include <gtest/gtest.h>

namespace muster::dashboard {
namespace {

HttpRequest command_request() {
  HttpRequest request;
  request.method = "POST";
  request.headers = {
      {"host", "127.0.0.1:29680"},
      {"content-type", "application/json; charset=utf-8"},
      {"x-muster-operator", "dashboard"}};
  return request;
}

TEST(RequestGuard, KnowsLoopbackNames) {
  for (const char* name : {"localhost", "localhost:80", "127.0.0.1:1", "127.9.9.9", "[::1]:80"}) {
    EXPECT_TRUE(is_loopback_name(name)) << name;
  }
  for (const char* name :
       {"", "evil.example", "127.0.0.1.evil.example", "localhost.evil", "10.0.0.1", "[::2]"}) {
    EXPECT_FALSE(is_loopback_name(name)) << name;
  }
}

TEST(RequestGuard, RefusesAForeignHostNameOnLoopback) {
  HttpRequest request;
  request.headers["host"] = "rebound.example";
  EXPECT_EQ(check_host(request, true).code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(check_host(request, false).ok());
}

TEST(RequestGuard, AllowsACommandFromItsOwnPage) {
  HttpRequest request = command_request();
  request.headers["origin"] = "http://127.0.0.1:29680";
  EXPECT_TRUE(check_operator(request, "", true).ok());
}

TEST(RequestGuard, TakesAMediaTypeInAnyCase) {
  HttpRequest request = command_request();
  for (const char* type :
       {"Application/JSON", "application/json ;charset=utf-8", " APPLICATION/json"}) {
    request.headers["content-type"] = type;
    EXPECT_TRUE(check_operator(request, "", true).ok()) << type;
  }
}

TEST(RequestGuard, RefusesWhatAForeignFormCanSend) {
  HttpRequest request = command_request();
  request.headers["content-type"] = "text/plain";
  EXPECT_EQ(check_operator(request, "", true).code(), StatusCode::kInvalidArgument);

  request = command_request();
  request.headers.erase("x-muster-operator");
  EXPECT_EQ(check_operator(request, "", true).code(), StatusCode::kFailedPrecondition);

  request = command_request();
  request.headers["origin"] = "http://evil.example";
  EXPECT_EQ(check_operator(request, "", true).code(), StatusCode::kFailedPrecondition);
}

TEST(RequestGuard, NeedsTheTokenWhenOneIsSet) {
  HttpRequest request = command_request();
  EXPECT_FALSE(check_operator(request, "secret", true).ok());
  request.headers["authorization"] = "Bearer wrong";
  EXPECT_FALSE(check_operator(request, "secret", true).ok());
  request.headers["authorization"] = "Bearer secret";
  EXPECT_TRUE(check_operator(request, "secret", true).ok());
}

TEST(RequestGuard, TakesNoCommandsBeyondLoopbackWithoutAToken) {
  EXPECT_EQ(check_operator(command_request(), "", false).code(), StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace muster::dashboard
