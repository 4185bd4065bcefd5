// SPDX-License-Identifier: Apache-2.0
#include "dashboard/server/query_parameters.h"

#include <charconv>
#include <optional>
#include <string_view>

namespace muster::dashboard {

namespace {

std::optional<std::int64_t> parse_integer(std::string_view text) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stop != end || text.empty()) {
    return std::nullopt;
  }
  return value;
}

struct IdRange {
  std::int64_t first{0};
  std::int64_t last{0};
};

std::optional<IdRange> parse_id_range(std::string_view text) {
  const std::size_t dash = text.find('-');
  const auto first = parse_integer(text.substr(0, dash));
  const auto last = dash == std::string_view::npos ? first : parse_integer(text.substr(dash + 1));
  if (!first || !last || *first < 0 || *last < *first) {
    return std::nullopt;
  }
  return IdRange{*first, *last};
}

}  // namespace

Expected<std::int64_t> QueryParameters::integer(
    const std::string& name, std::int64_t fallback, std::int64_t min, std::int64_t max) const {
  const auto found = values_->find(name);
  if (found == values_->end() || found->second.empty()) {
    return fallback;
  }
  const auto value = parse_integer(found->second);
  if (!value || *value < min || *value > max) {
    return invalid_argument(
        "parameter \"",
        name,
        "\" is \"",
        found->second,
        "\"; expected a whole number from ",
        min,
        " to ",
        max);
  }
  return *value;
}

Expected<std::vector<std::int64_t>> QueryParameters::id_list(
    const std::string& name, std::size_t count_max) const {
  std::vector<std::int64_t> ids;
  const auto found = values_->find(name);
  if (found == values_->end() || found->second.empty()) {
    return ids;
  }
  std::string_view rest = found->second;
  while (true) {
    const std::size_t comma = rest.find(',');
    const auto range = parse_id_range(rest.substr(0, comma));
    if (!range) {
      return invalid_argument(
          "parameter \"" + name + "\" holds \"" + std::string(rest.substr(0, comma)) +
          "\"; expected numbers and ranges such as 3,5-9");
    }
    if (static_cast<std::uint64_t>(range->last - range->first) >= count_max - ids.size()) {
      return invalid_argument(
          "parameter \"",
          name,
          "\" names more than ",
          count_max,
          " items; ask in several requests");
    }
    for (std::int64_t id = range->first; id <= range->last; ++id) {
      ids.push_back(id);
    }
    if (comma == std::string_view::npos) {
      return ids;
    }
    rest.remove_prefix(comma + 1);
  }
}

}  // namespace muster::dashboard
