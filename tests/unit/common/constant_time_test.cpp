// SPDX-License-Identifier: Apache-2.0
#include <muster/common/constant_time.h>

#include <gtest/gtest.h>

#include <string_view>

namespace muster {

namespace {

TEST(ConstantTime, AcceptsTheSecretOnly) {
  EXPECT_TRUE(equal_in_constant_time("secret", "secret"));
  for (const std::string_view wrong :
       {"", "secre", "secreT", "Secret", "secrets", "secretsecret"}) {
    EXPECT_FALSE(equal_in_constant_time(wrong, "secret")) << wrong;
  }
}

TEST(ConstantTime, AnEmptySecretEqualsOnlyAnEmptyText) {
  EXPECT_TRUE(equal_in_constant_time("", ""));
  EXPECT_FALSE(equal_in_constant_time("x", ""));
}

TEST(ConstantTime, ComparesBytesAboveAscii) {
  EXPECT_TRUE(equal_in_constant_time("\xff\x80", "\xff\x80"));
  EXPECT_FALSE(equal_in_constant_time("\xff\x80", "\xff\x00"));
}

}  // namespace
}  // namespace muster
