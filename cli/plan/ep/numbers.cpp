// SPDX-License-Identifier: Apache-2.0
#include "cli/plan/ep/numbers.h"

#include <muster/common/text.h>

#include <array>
#include <charconv>
#include <cmath>
#include <string_view>

namespace muster::cli {

std::string decimal(double value, int digits) {
  return fixed(value, digits);
}

namespace {

// Three significant digits: "4.23", "88.1", "543".
std::string three_digits(double value) {
  return decimal(value, value < 9.995 ? 2 : (value < 99.95 ? 1 : 0));
}

template <std::size_t kCount>
std::string scaled(double value, const std::array<const char*, kCount>& units) {
  std::size_t unit = 0;
  while (value >= 999.5 && unit + 1 < kCount) {
    value /= 1000;
    ++unit;
  }
  return three_digits(value) + " " + units[unit];
}

}  // namespace

std::string grouped(std::int64_t count) {
  std::string text = std::to_string(count);
  for (std::size_t i = text.size(); i > 3 && text[i - 4] != '-'; i -= 3) {
    text.insert(i - 3, ",");
  }
  return text;
}

std::string decimal_bytes(double bytes) {
  if (bytes < 999.5) {
    return decimal(bytes, 0) + " B";
  }
  return scaled(bytes / 1000, std::array{"kB", "MB", "GB", "TB", "PB"});
}

std::string short_seconds(double seconds) {
  if (seconds <= 0) {
    return "0";
  }
  return scaled(seconds * 1e6, std::array{"us", "ms", "s"});
}

std::string percent(double fraction) {
  return decimal(100 * fraction, 1) + " %";
}

Expected<double> parse_rate(const std::string& text, const std::string& flag) {
  constexpr std::string_view kSuffixes = "kMGTP";
  std::string_view digits = text;
  double factor = 1;
  if (const auto at = digits.empty() ? kSuffixes.npos : kSuffixes.find(digits.back());
      at != kSuffixes.npos) {
    factor = std::pow(1000.0, static_cast<double>(at + 1));
    digits.remove_suffix(1);
  }
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc{} || end != digits.data() + digits.size() || !std::isfinite(value) ||
      value <= 0) {
    return invalid_argument(
        flag, " must be a positive number with k, M, G, T or P, such as 450G, got '", text, "'");
  }
  return value * factor;
}

Expected<parallel::EpBalanceMode> parse_balance_mode(const std::string& text) {
  if (text == "none") {
    return parallel::EpBalanceMode::kNone;
  }
  if (text == "exact") {
    return parallel::EpBalanceMode::kExact;
  }
  if (text == "tolerant") {
    return parallel::EpBalanceMode::kTolerant;
  }
  return invalid_argument("--mode must be one of none, exact, tolerant, got '", text, "'");
}

std::string describe_planner(const parallel::EpShape& shape, const parallel::EpBalance& balance) {
  const auto plain = [](double value) { return general(value, 6); };
  std::string text;
  switch (balance.mode) {
    case parallel::EpBalanceMode::kNone:
      text = "no balancing";
      break;
    case parallel::EpBalanceMode::kExact:
      text = "exact";
      break;
    case parallel::EpBalanceMode::kTolerant:
      text = "tolerant " + plain(balance.tolerance);
      break;
  }
  text += ", " + std::to_string(shape.slot_count()) + " slots, padding " +
          std::to_string(shape.padding);
  text += shape.compact ? ", compact" : "";
  if (!balance.speeds.empty()) {
    text += ", speeds";
    for (const double speed : balance.speeds) {
      text += " " + plain(speed);
    }
  }
  if (balance.homes_max > 1) {
    text += ", up to " + std::to_string(balance.homes_max) + " homes";
  }
  return text;
}

}  // namespace muster::cli
