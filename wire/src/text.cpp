// SPDX-License-Identifier: Apache-2.0
#include "wire/src/text.h"

#include <cstddef>
#include <cstdint>

namespace muster::wire {

namespace {

std::uint8_t byte_at(std::string_view text, std::size_t at) {
  return at < text.size() ? static_cast<std::uint8_t>(text[at]) : std::uint8_t{0};
}

bool is_continuation(std::uint8_t byte) {
  return (byte & 0xC0U) == 0x80U;
}

// The second byte also rules out overlong forms, surrogates and values above U+10FFFF.
bool second_byte_fits(std::uint8_t first, std::uint8_t second) {
  switch (first) {
    case 0xE0:
      return second >= 0xA0 && second <= 0xBF;
    case 0xED:
      return second >= 0x80 && second <= 0x9F;
    case 0xF0:
      return second >= 0x90 && second <= 0xBF;
    case 0xF4:
      return second >= 0x80 && second <= 0x8F;
    default:
      return is_continuation(second);
  }
}

std::size_t announced_size(std::uint8_t first) {
  if (first < 0x80) {
    return 1;
  }
  if (first >= 0xC2 && first <= 0xDF) {
    return 2;
  }
  if (first >= 0xE0 && first <= 0xEF) {
    return 3;
  }
  return first >= 0xF0 && first <= 0xF4 ? 4 : 0;
}

// Bytes of the well-formed character at `at`, 0 when there is none.
std::size_t character_size(std::string_view text, std::size_t at) {
  const std::uint8_t first = byte_at(text, at);
  const std::size_t size = announced_size(first);
  if (size <= 1) {
    return size;
  }
  if (at + size > text.size() || !second_byte_fits(first, byte_at(text, at + 1))) {
    return 0;
  }
  for (std::size_t i = 2; i < size; ++i) {
    if (!is_continuation(byte_at(text, at + i))) {
      return 0;
    }
  }
  return size;
}

}  // namespace

bool is_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t size = character_size(text, at);
    if (size == 0) {
      return false;
    }
    at += size;
  }
  return true;
}

std::string to_utf8(std::string_view text) {
  std::string clean;
  clean.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t size = character_size(text, at);
    if (size == 0) {
      clean += '?';
      ++at;
    } else {
      clean.append(text, at, size);
      at += size;
    }
  }
  return clean;
}

}  // namespace muster::wire
