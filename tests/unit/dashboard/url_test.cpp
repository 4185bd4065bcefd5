// SPDX-License-Identifier: Apache-2.0
#include "dashboard/server/url.h"

#include <gtest/gtest.h>

namespace muster::dashboard {
namespace {

TEST(Url, DecodesSegmentsAndQuery) {
  const auto url = parse_target("/api/runs/my%20run/range?from=1&name=a+b%26c&flag#x");
  ASSERT_TRUE(url.ok());
  EXPECT_EQ(url->segments, (std::vector<std::string>{"api", "runs", "my run", "range"}));
  EXPECT_EQ(url->query.at("from"), "1");
  EXPECT_EQ(url->query.at("name"), "a b&c");
  EXPECT_EQ(url->query.at("flag"), "");
}

TEST(Url, KeepsAnEncodedSlashInsideItsSegment) {
  const auto url = parse_target("/api/runs/a%2Fb");
  ASSERT_TRUE(url.ok());
  EXPECT_EQ(url->segments.back(), "a/b");
}

TEST(Url, TakesAnEscapeAtTheVeryEnd) {
  const auto url = parse_target("/a%41");
  ASSERT_TRUE(url.ok());
  EXPECT_EQ(url->segments.back(), "aA");
}

TEST(Url, RefusesEveryFormOfTheParentFolder) {
  for (const char* target :
       {"/../etc/passwd", "/assets/..", "/%2e%2e/etc/passwd", "/a/%2E./b", "/./a", "/a%5c..%5cb"}) {
    EXPECT_EQ(parse_target(target).status().code(), StatusCode::kInvalidArgument) << target;
  }
}

TEST(Url, RefusesMalformedEscapesAndNul) {
  for (const char* target : {"/%", "/%4", "/%zz", "/a%00b", "/x?y=%f", "noslash", ""}) {
    EXPECT_EQ(parse_target(target).status().code(), StatusCode::kInvalidArgument) << target;
  }
}

}  // namespace
}  // namespace muster::dashboard
