// SPDX-License-Identifier: Apache-2.0
#include "cli/text/table.h"
#include "cli/text/units.h"

#include <gtest/gtest.h>

namespace muster::cli {

using std::chrono::hours;
using std::chrono::seconds;

TEST(Units, WritesBytesWithTheUnitThatFits) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.0 KiB");
  EXPECT_EQ(format_bytes(1024 * 1024 - 1), "1.0 MiB");
  EXPECT_EQ(format_bytes(std::int64_t{3} << 29), "1.5 GiB");
  EXPECT_EQ(format_bytes(std::int64_t{1} << 62), "4096.0 PiB");
}

TEST(Units, WritesAgesInTheUnitThatFits) {
  EXPECT_EQ(format_age(seconds{0}), "0 s");
  EXPECT_EQ(format_age(seconds{119}), "119 s");
  EXPECT_EQ(format_age(seconds{120}), "2 min");
  EXPECT_EQ(format_age(hours{3}), "3 h");
  EXPECT_EQ(format_age(hours{49}), "2 d");
  EXPECT_EQ(format_age(seconds{-1}), "in the future");
  EXPECT_EQ(format_age_of(0, 5), "-");
}

TEST(Units, WritesShapes) {
  EXPECT_EQ(format_shape({}), "[]");
  EXPECT_EQ(format_shape(std::vector<std::int64_t>{4, 8}), "[4, 8]");
}

TEST(Table, AlignsColumnsToTheWidestCell) {
  Table table{{{"NAME"}, {"N", Align::kRight}, {"X"}}};
  table.add({"a", "100", ""});
  table.add({"räuber", "2", "yes"});
  EXPECT_EQ(
      table.to_string(),
      "NAME      N  X\n"
      "a       100\n"
      "räuber    2  yes\n");
}

}  // namespace muster::cli
