// SPDX-License-Identifier: Apache-2.0
#include "cli/demo/status_line.h"

#include <muster/common/text.h>

#include <cmath>
#include <cstdio>

namespace muster::demo {

namespace {

constexpr auto kPlainInterval = std::chrono::seconds{5};
constexpr std::size_t kWidthMax = 110;

}  // namespace

std::string status_text(const Glimpse& glimpse, std::int64_t steps, int ranks) {
  return concat(
      "step ",
      glimpse.step + 1,
      '/',
      steps,
      "  loss ",
      fixed(glimpse.loss, 3),
      "  ",
      std::llround(glimpse.tokens_per_second),
      " tokens/s  ",
      glimpse.ranks_alive,
      '/',
      ranks,
      " ranks  ",
      glimpse.last_event);
}

void StatusLine::show(const std::string& text) {
  const MonotonicTime now = clock_.now();
  if (is_terminal_) {
    current_ = text.substr(0, kWidthMax);
    std::printf("\r\033[K%s", current_.c_str());
    std::fflush(stdout);
  } else if (text != current_ && now - shown_at_ >= kPlainInterval) {
    current_ = text;
    shown_at_ = now;
    std::printf("%s\n", text.c_str());
    std::fflush(stdout);
  }
}

void StatusLine::note(const std::string& text) {
  if (is_terminal_) {
    std::printf("\r\033[K%s\n%s", text.c_str(), current_.c_str());
  } else {
    std::printf("%s\n", text.c_str());
  }
  std::fflush(stdout);
}

void StatusLine::clear() {
  if (is_terminal_) {
    std::printf("\r\033[K");
    std::fflush(stdout);
  }
  current_.clear();
}

}  // namespace muster::demo
