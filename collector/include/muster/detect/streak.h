// SPDX-License-Identifier: Apache-2.0
// A condition over consecutive steps: opens after holding for a number of steps in a row, and
// closes after as many without. A value.
#pragma once

namespace muster::detect {

class Streak {
 public:
  // Adds a step. Returns true when the streak opens: `holds` for the `steps`-th time in a row.
  bool update(bool holds, int steps) {
    run_ = holds == holding_ ? run_ + 1 : 1;
    holding_ = holds;
    if (run_ < steps || holds == open_) {
      return false;
    }
    open_ = holds;
    return open_;
  }

  // Returns true from the opening to the close.
  [[nodiscard]] bool open() const { return open_; }

 private:
  int run_{0};  // Steps in a row with `holding_`.
  bool holding_{false};
  bool open_{false};
};

}  // namespace muster::detect
