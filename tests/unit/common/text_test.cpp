// SPDX-License-Identifier: Apache-2.0
#include <muster/common/text.h>

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <locale>
#include <string>
#include <string_view>

namespace muster {

namespace {

enum class Colour { kRed, kBlue };

std::string to_string(Colour colour) {
  return colour == Colour::kRed ? "red" : "blue";
}

struct Comma : std::numpunct<char> {
  char do_decimal_point() const override { return ','; }

  char do_thousands_sep() const override { return '.'; }

  std::string do_grouping() const override { return "\3"; }
};

TEST(Fixed, AndGeneralAreWhatPrintfMakesInTheCLocaleUnderAnyOther) {
  const std::locale before = std::locale::global(std::locale(std::locale(), new Comma));
  EXPECT_EQ(fixed(1234567.891, 2), "1234567.89");
  EXPECT_EQ(fixed(-0.04, 1), "-0.0");
  EXPECT_EQ(fixed(1e300, 0).size(), 301U);
  EXPECT_EQ(general(0.95, 17), "0.94999999999999996");
  EXPECT_EQ(general(1e-7, 3), "1e-07");
  EXPECT_EQ(general(12345678, 12), "12345678");
  EXPECT_EQ(concat(1234567, ' ', 0.5), "1234567 0.5");
  EXPECT_EQ(parse<double>("0.5"), 0.5);
  std::locale::global(before);
}

TEST(Concat, JoinsStringsOfEveryKind) {
  const std::string text = "string";
  const char* pointer = "pointer";
  EXPECT_EQ(
      concat("literal ", text, ' ', std::string_view{"view"}, " ", pointer),
      "literal string view pointer");
  EXPECT_EQ(concat(), "");
}

TEST(Concat, WritesIntegersOfEveryWidth) {
  EXPECT_EQ(concat(std::int8_t{-5}, ' ', std::uint8_t{200}, ' ', short{-3}), "-5 200 -3");
  EXPECT_EQ(
      concat(std::numeric_limits<std::int64_t>::min(), ' ', UINT64_MAX),
      "-9223372036854775808 18446744073709551615");
}

TEST(Concat, WritesTheShortestTextThatParsesToTheSameNumber) {
  EXPECT_EQ(concat(0.1, ' ', 0.1F, ' ', 1024.0, ' ', 1e300), "0.1 0.1 1024 1e+300");
  EXPECT_EQ(parse<double>(concat(1.0 / 3.0)), 1.0 / 3.0);
  EXPECT_EQ(concat(std::numeric_limits<double>::infinity(), ' ', std::nan("")), "inf nan");
}

TEST(Concat, WritesBoolsPathsAndTypesWithAToString) {
  EXPECT_EQ(concat(true, ' ', false), "true false");
  EXPECT_EQ(concat(std::filesystem::path{"/a b/c"}), "/a b/c");
  EXPECT_EQ(concat(Colour::kRed, '/', Colour::kBlue), "red/blue");
}

// A decimal comma and grouped digits, as many locales have them.
class Commas final : public std::numpunct<char> {
  [[nodiscard]] char do_decimal_point() const override { return ','; }

  [[nodiscard]] char do_thousands_sep() const override { return '.'; }

  [[nodiscard]] std::string do_grouping() const override { return "\3"; }
};

TEST(Concat, IgnoresTheLocale) {
  const std::locale before = std::locale::global({std::locale::classic(), new Commas});
  EXPECT_EQ(concat(1234567, ' ', 0.5), "1234567 0.5");
  EXPECT_EQ(parse<double>("0.5"), 0.5);
  std::locale::global(before);
}

TEST(Parse, ReadsIntegersUpToTheirLimits) {
  EXPECT_EQ(parse<int>("-17"), -17);
  EXPECT_EQ(parse<std::uint16_t>("65535"), 65535);
  EXPECT_EQ(parse<std::uint16_t>("65536"), std::nullopt);
  EXPECT_EQ(parse<std::int64_t>("-9223372036854775808"), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(parse<std::uint64_t>("18446744073709551616"), std::nullopt);
}

TEST(Parse, ReadsFloatingPointNumbers) {
  EXPECT_EQ(parse<double>("-2.5e3"), -2500.0);
  EXPECT_EQ(parse<float>("0.25"), 0.25F);
  EXPECT_EQ(parse<double>("1e999"), std::nullopt);
}

TEST(Parse, NeedsTheWholeText) {
  for (const std::string_view text : {"", " 1", "1 ", "+1", "1x", "x", "-", "1.5", "0x10"}) {
    EXPECT_EQ(parse<int>(text), std::nullopt) << text;
  }
  EXPECT_EQ(parse<unsigned>("-1"), std::nullopt);
}

TEST(Hex, PrintsBytesInOrder) {
  const std::array bytes{std::byte{0x00}, std::byte{0xaf}, std::byte{0x19}};
  EXPECT_EQ(to_hex(bytes), "00af19");
  EXPECT_EQ(to_hex(std::span<const std::byte>{}), "");
}

TEST(Hex, PrintsIntegersWithLeadingZeros) {
  EXPECT_EQ(to_hex(std::uint64_t{0x0123456789abcdef}), "0123456789abcdef");
  EXPECT_EQ(to_hex(std::uint64_t{10}), "000000000000000a");
}

TEST(Hex, ReadsBackWhatItPrints) {
  std::string bytes;
  for (int value = 0; value < 256; ++value) {
    bytes.push_back(static_cast<char>(value));
  }
  EXPECT_EQ(from_hex(to_hex(std::as_bytes(std::span{bytes}))), bytes);
  EXPECT_EQ(from_hex("4aFf"), "J\xff");
  EXPECT_EQ(from_hex(""), "");
}

TEST(Hex, RefusesOddLengthsAndOtherCharacters) {
  for (const std::string_view text : {"a", "0g", "g0", "0x10", " 0", "00 "}) {
    EXPECT_EQ(from_hex(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace muster
