// SPDX-License-Identifier: Apache-2.0
#include <muster/common/text.h>

#include <array>
#include <charconv>
#include <system_error>

namespace muster {

namespace {

constexpr std::string_view kHexDigits = "0123456789abcdef";

// Appends the decimal form, of which the longest (a double) has 24 characters.
template <typename T>
void append_number(std::string& out, T value) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  out.append(text.data(), end);
}

// Returns -1 for a character that is not a digit.
int hex_value(char digit) {
  if (digit >= '0' && digit <= '9') {
    return digit - '0';
  }
  if (digit >= 'a' && digit <= 'f') {
    return digit - 'a' + 10;
  }
  if (digit >= 'A' && digit <= 'F') {
    return digit - 'A' + 10;
  }
  return -1;
}

}  // namespace

namespace text_detail {

void append_integer(std::string& out, std::int64_t value) {
  append_number(out, value);
}

void append_integer(std::string& out, std::uint64_t value) {
  append_number(out, value);
}

void append_floating(std::string& out, float value) {
  append_number(out, value);
}

void append_floating(std::string& out, double value) {
  append_number(out, value);
}

}  // namespace text_detail

namespace {

std::string formatted(double value, std::chars_format format, int digits) {
  // The largest double has 309 digits before its point.
  std::string text(static_cast<std::size_t>(digits) + 330, ' ');
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value, format, digits);
  text.resize(static_cast<std::size_t>(end.ptr - text.data()));
  return text;
}

}  // namespace

std::string fixed(double value, int digits) {
  return formatted(value, std::chars_format::fixed, digits);
}

std::string general(double value, int digits) {
  return formatted(value, std::chars_format::general, digits);
}

template <typename T>
std::optional<T> parse(std::string_view text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stop != end) {
    return std::nullopt;
  }
  return value;
}

template std::optional<signed char> parse(std::string_view text);
template std::optional<unsigned char> parse(std::string_view text);
template std::optional<short> parse(std::string_view text);
template std::optional<unsigned short> parse(std::string_view text);
template std::optional<int> parse(std::string_view text);
template std::optional<unsigned> parse(std::string_view text);
template std::optional<long> parse(std::string_view text);
template std::optional<unsigned long> parse(std::string_view text);
template std::optional<long long> parse(std::string_view text);
template std::optional<unsigned long long> parse(std::string_view text);
template std::optional<float> parse(std::string_view text);
template std::optional<double> parse(std::string_view text);

std::string to_hex(std::span<const std::byte> bytes) {
  std::string text;
  text.reserve(2 * bytes.size());
  for (const std::byte byte : bytes) {
    text.push_back(kHexDigits[std::to_integer<std::size_t>(byte >> 4)]);
    text.push_back(kHexDigits[std::to_integer<std::size_t>(byte & std::byte{15})]);
  }
  return text;
}

std::string to_hex(std::uint64_t value) {
  std::string text(16, '0');
  for (std::size_t i = 16; i-- > 0; value >>= 4) {
    text[i] = kHexDigits[value & 15];
  }
  return text;
}

std::optional<std::string> from_hex(std::string_view digits) {
  if (digits.size() % 2 != 0) {
    return std::nullopt;
  }
  std::string bytes;
  bytes.reserve(digits.size() / 2);
  for (std::size_t i = 0; i < digits.size(); i += 2) {
    const int high = hex_value(digits[i]);
    const int low = hex_value(digits[i + 1]);
    if (high < 0 || low < 0) {
      return std::nullopt;
    }
    bytes.push_back(static_cast<char>(16 * high + low));
  }
  return bytes;
}

}  // namespace muster
