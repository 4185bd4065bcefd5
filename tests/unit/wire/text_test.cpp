// SPDX-License-Identifier: Apache-2.0
// Bytes that a text field may carry.
#include "wire/src/text.h"

#include <gtest/gtest.h>

#include <string>

namespace muster::wire {
namespace {

TEST(Utf8, AcceptsOneToFourByteCharacters) {
  EXPECT_TRUE(is_utf8(""));
  EXPECT_TRUE(is_utf8("plain"));
  EXPECT_TRUE(is_utf8(std::string(1, '\0')));
  EXPECT_TRUE(is_utf8("\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x90\x8B"));
  EXPECT_TRUE(is_utf8("\xED\x9F\xBF\xEE\x80\x80\xF4\x8F\xBF\xBF"));
}

TEST(Utf8, RefusesOverlongFormsSurrogatesAndValuesBeyondUnicode) {
  EXPECT_FALSE(is_utf8("\xC0\x80"));
  EXPECT_FALSE(is_utf8("\xE0\x9F\xBF"));
  EXPECT_FALSE(is_utf8("\xF0\x8F\xBF\xBF"));
  EXPECT_FALSE(is_utf8("\xED\xA0\x80"));
  EXPECT_FALSE(is_utf8("\xF4\x90\x80\x80"));
  EXPECT_FALSE(is_utf8("\xF8\x88\x80\x80\x80"));
}

TEST(Utf8, RefusesCutAndStrayBytes) {
  EXPECT_FALSE(is_utf8("\xE2\x82"));
  EXPECT_FALSE(is_utf8("\x80"));
  EXPECT_FALSE(is_utf8("\xF0\x9F\x90z"));
}

TEST(Utf8, RepairsOnlyTheBadBytes) {
  EXPECT_EQ(to_utf8("a\xC3\xA9\xFFz\xE2\x82"), "a\xC3\xA9?z??");
  EXPECT_TRUE(is_utf8(to_utf8("\xE2\x82\xF0\x9F\x90")));
}

}  // namespace
}  // namespace muster::wire
