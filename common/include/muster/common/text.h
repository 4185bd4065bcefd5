// SPDX-License-Identifier: Apache-2.0
// Text from values and values from text: concat, parse and hexadecimal digits.
//
// All functions ignore the locale.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace muster {

// The overloads behind append_text, out of line so that this header needs neither <charconv> nor
// <filesystem>.
namespace text_detail {
void append_integer(std::string& out, std::int64_t value);
void append_integer(std::string& out, std::uint64_t value);
void append_floating(std::string& out, float value);
void append_floating(std::string& out, double value);

template <typename T>
concept PathLike = requires(const T& path) {
  { path.native() } -> std::convertible_to<std::string_view>;
};

template <typename T>
concept Printable = requires(const T& value) {
  { to_string(value) } -> std::convertible_to<std::string_view>;
};
}  // namespace text_detail

// Appends `value` as text: strings and std::filesystem::path as they are, char as a character,
// bool as "true" or "false", integers in decimal, float and double as the shortest text that
// parses to the same value ("nan", "inf"), anything else through the to_string of its namespace.
template <typename T>
void append_text(std::string& out, const T& value) {
  if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    out.append(std::string_view{value});
  } else if constexpr (std::same_as<T, bool>) {
    out.append(value ? "true" : "false");
  } else if constexpr (std::same_as<T, char>) {
    out.push_back(value);
  } else if constexpr (std::signed_integral<T>) {
    text_detail::append_integer(out, static_cast<std::int64_t>(value));
  } else if constexpr (std::unsigned_integral<T>) {
    text_detail::append_integer(out, static_cast<std::uint64_t>(value));
  } else if constexpr (std::floating_point<T>) {
    static_assert(!std::same_as<T, long double>, "convert to double first");
    text_detail::append_floating(out, value);
  } else if constexpr (text_detail::PathLike<T>) {
    out.append(std::string_view{value.native()});
  } else {
    static_assert(text_detail::Printable<T>, "the type needs a to_string in its own namespace");
    out.append(std::string_view{to_string(value)});
  }
}

// Returns all parts as one text: concat("rank ", rank, " of ", world_size).
template <typename... Parts>
[[nodiscard]] std::string concat(const Parts&... parts) {
  std::string out;
  (append_text(out, parts), ...);
  return out;
}

// Return the text of printf with "%.*f" and "%.*g" in the C locale.
[[nodiscard]] std::string fixed(double value, int digits);
[[nodiscard]] std::string general(double value, int digits);

// Parses all of `text` as a decimal T: an integer of 8 to 64 bits, float or double ("inf" and "nan"
// included). Returns no value if the text is empty, has other characters (leading spaces and "+"
// included), or is out of range.
template <typename T>
[[nodiscard]] std::optional<T> parse(std::string_view text);

// Returns two lower-case digits per byte.
[[nodiscard]] std::string to_hex(std::span<const std::byte> bytes);

// Returns 16 lower-case digits, the high ones first.
[[nodiscard]] std::string to_hex(std::uint64_t value);

// Returns the bytes of digit pairs in either case. Returns no value for an odd number of digits or
// for another character.
[[nodiscard]] std::optional<std::string> from_hex(std::string_view digits);

}  // namespace muster
