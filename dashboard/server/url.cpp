// SPDX-License-Identifier: Apache-2.0
#include "dashboard/server/url.h"

#include <optional>

namespace muster::dashboard {

namespace {

std::optional<unsigned> hex_value(char digit) {
  if (digit >= '0' && digit <= '9') {
    return static_cast<unsigned>(digit - '0');
  }
  if (digit >= 'a' && digit <= 'f') {
    return static_cast<unsigned>(digit - 'a') + 10U;
  }
  if (digit >= 'A' && digit <= 'F') {
    return static_cast<unsigned>(digit - 'A') + 10U;
  }
  return std::nullopt;
}

Expected<std::string> decode(std::string_view text, bool plus_is_space) {
  std::string decoded;
  decoded.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    char letter = text[i];
    if (letter == '%') {
      const auto high = i + 2 < text.size() ? hex_value(text[i + 1]) : std::nullopt;
      const auto low = i + 2 < text.size() ? hex_value(text[i + 2]) : std::nullopt;
      if (!high || !low) {
        return invalid_argument("malformed percent escape in \"" + std::string(text) + "\"");
      }
      letter = static_cast<char>((*high << 4U) | *low);
      i += 2;
    } else if (letter == '+' && plus_is_space) {
      letter = ' ';
    }
    if (letter == '\0') {
      return invalid_argument("a NUL byte has no place in an address");
    }
    decoded.push_back(letter);
  }
  return decoded;
}

// Calls `take` with each piece of `text` between `separator`s.
template <typename Take>
Status split(std::string_view text, char separator, const Take& take) {
  while (true) {
    const std::size_t end = text.find(separator);
    MUSTER_RETURN_IF_ERROR(take(text.substr(0, end)));
    if (end == std::string_view::npos) {
      return {};
    }
    text.remove_prefix(end + 1);
  }
}

Status add_segment(Url& url, std::string_view raw) {
  MUSTER_ASSIGN_OR_RETURN(std::string segment, decode(raw, false));
  if (segment == "." || segment == ".." || segment.find('\\') != std::string::npos) {
    return invalid_argument("the path part \"" + segment + "\" is not allowed");
  }
  if (!segment.empty()) {
    url.segments.push_back(std::move(segment));
  }
  return {};
}

Status add_parameter(Url& url, std::string_view raw) {
  if (raw.empty()) {
    return {};
  }
  const std::size_t equals = raw.find('=');
  MUSTER_ASSIGN_OR_RETURN(std::string name, decode(raw.substr(0, equals), true));
  std::string value;
  if (equals != std::string_view::npos) {
    MUSTER_ASSIGN_OR_RETURN(value, decode(raw.substr(equals + 1), true));
  }
  url.query.insert_or_assign(std::move(name), std::move(value));
  return {};
}

}  // namespace

Expected<Url> parse_target(std::string_view target) {
  if (target.empty() || target.front() != '/') {
    return invalid_argument("the request target must begin with \"/\"");
  }
  target = target.substr(0, target.find('#'));
  const std::size_t question = target.find('?');
  Url url;
  MUSTER_RETURN_IF_ERROR(split(target.substr(0, question), '/', [&url](std::string_view piece) {
    return add_segment(url, piece);
  }));
  if (question != std::string_view::npos) {
    MUSTER_RETURN_IF_ERROR(split(target.substr(question + 1), '&', [&url](std::string_view piece) {
      return add_parameter(url, piece);
    }));
  }
  return url;
}

}  // namespace muster::dashboard
