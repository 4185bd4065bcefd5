// SPDX-License-Identifier: Apache-2.0
// The one live line of a demo.
#pragma once

#include "cli/demo/watch.h"

#include <muster/common/clock.h>

#include <chrono>
#include <cstdint>
#include <string>

namespace muster::demo {

// "step 120/600  loss 2.431  15 320 tokens/s  4/4 ranks  checkpoint_committed at step 100"
[[nodiscard]] std::string status_text(const Glimpse& glimpse, std::int64_t steps, int ranks);

// Redraws one line on a terminal; elsewhere prints a line every five seconds.
//
// Not thread-safe.
class StatusLine {
 public:
  // `clock` must outlive the line.
  explicit StatusLine(bool is_terminal, const Clock& clock = Clock::system())
      : clock_(clock), is_terminal_(is_terminal) {}

  void show(const std::string& text);
  // A lasting line above the live one.
  void note(const std::string& text);
  // Removes the live line.
  void clear();

 private:
  const Clock& clock_;
  bool is_terminal_;
  std::string current_;
  MonotonicTime shown_at_{};
};

}  // namespace muster::demo
