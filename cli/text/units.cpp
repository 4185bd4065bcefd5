// SPDX-License-Identifier: Apache-2.0
#include "cli/text/units.h"

#include <muster/common/text.h>

#include <array>

namespace muster::cli {

std::string format_bytes(std::int64_t bytes) {
  constexpr std::array kUnits{"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < 1024) {
    return std::to_string(bytes) + " B";
  }
  double value = static_cast<double>(bytes) / 1024.0;
  std::size_t unit = 0;
  while (value >= 1023.95 && unit + 1 < kUnits.size()) {
    value /= 1024.0;
    ++unit;
  }
  return fixed(value, 1) + " " + kUnits[unit];
}

std::string format_age(std::chrono::nanoseconds age) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(age).count();
  if (age.count() < 0) {
    return "in the future";
  }
  if (seconds < 120) {
    return std::to_string(seconds) + " s";
  }
  if (seconds < std::int64_t{2} * 3600) {
    return std::to_string(seconds / 60) + " min";
  }
  if (seconds < std::int64_t{48} * 3600) {
    return std::to_string(seconds / 3600) + " h";
  }
  return std::to_string(seconds / 86400) + " d";
}

std::string format_shape(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (const std::int64_t size : shape) {
    text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  }
  return text + "]";
}

std::string format_age_of(std::int64_t unix_ns, std::int64_t now_unix_ns) {
  return unix_ns == 0 ? "-" : format_age(std::chrono::nanoseconds{now_unix_ns - unix_ns});
}

}  // namespace muster::cli
