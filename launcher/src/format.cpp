// SPDX-License-Identifier: Apache-2.0
#include "launcher/src/format.h"

#include <array>
#include <cstdio>

namespace muster::launcher {

std::string format_seconds(std::chrono::nanoseconds duration) {
  std::array<char, 32> text{};
  const double seconds = std::chrono::duration<double>(duration).count();
  std::snprintf(text.data(), text.size(), "%.1f s", seconds);
  return text.data();
}

}  // namespace muster::launcher
