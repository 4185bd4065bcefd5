// SPDX-License-Identifier: Apache-2.0
#include "dashboard/server/query_parameters.h"

#include <gtest/gtest.h>

namespace muster::dashboard {
namespace {

using Values = std::map<std::string, std::string>;

TEST(QueryParameters, ReadsIntegersWithinBounds) {
  const Values values{{"from", "17"}, {"empty", ""}};
  const QueryParameters parameters{values};
  EXPECT_EQ(*parameters.integer("from", 0, 0, 100), 17);
  EXPECT_EQ(*parameters.integer("empty", 5, 0, 100), 5);
  EXPECT_EQ(*parameters.integer("absent", -1, 0, 100), -1);
}

TEST(QueryParameters, NamesTheParameterAndTheBoundsInItsErrors) {
  for (const char* bad : {"101", "-1", "1.5", "x", "99999999999999999999", "1 "}) {
    const Values values{{"buckets", bad}};
    const auto status = QueryParameters{values}.integer("buckets", 0, 0, 100).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << bad;
    EXPECT_NE(status.message().find("\"buckets\""), std::string::npos);
    EXPECT_NE(status.message().find("from 0 to 100"), std::string::npos);
  }
}

TEST(QueryParameters, ExpandsRangesOfIds) {
  const Values values{{"series", "7,3-5,9"}};
  EXPECT_EQ(
      *QueryParameters{values}.id_list("series", 10), (std::vector<std::int64_t>{7, 3, 4, 5, 9}));
}

TEST(QueryParameters, RefusesMalformedIdLists) {
  for (const char* bad : {"x", "1,", "5-3", "-1", "1--2", "1-", ",1"}) {
    const Values values{{"series", bad}};
    EXPECT_EQ(
        QueryParameters{values}.id_list("series", 10).status().code(), StatusCode::kInvalidArgument)
        << bad;
  }
}

TEST(QueryParameters, RefusesAHugeRangeWithoutExpandingIt) {
  const Values values{{"series", "0-9223372036854775807"}};
  EXPECT_FALSE(QueryParameters{values}.id_list("series", 8192).ok());
  const Values exact{{"series", "0-9"}};
  EXPECT_EQ(QueryParameters{exact}.id_list("series", 10)->size(), 10U);
  EXPECT_FALSE(QueryParameters{exact}.id_list("series", 9).ok());
}

}  // namespace
}  // namespace muster::dashboard
