// SPDX-License-Identifier: Apache-2.0
// The EP rank that the others wait for, from the wait matrix: M[i][j] is the time that rank i
// waited for EP rank j in a step. A straggler has a heavy column; its victims have heavy rows.
//
// Every rank sends its own row, every few steps. A step is judged once all sending ranks have sent
// it, in ascending order. A step with a missing row is skipped when `reorder_steps` wait, because
// its columns would weigh too little.
//
// A value; copy it to fork a simulation. Not thread-safe.
#pragma once

#include <muster/detect/detector.h>
#include <muster/detect/streak.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

namespace muster::detect {

struct WaitOptions {
  double mads{3.0};  // High: further than this over the median of the other columns.
  int steps{32};     // In a row.
  // A MAD counts as at least this share of the median and at least so many seconds: the columns of
  // two idle ranks always differ by something.
  double mad_relative_min{0.1};
  double mad_seconds_min{1e-3};
  std::size_t reorder_steps{512};

  friend bool operator==(const WaitOptions&, const WaitOptions&) = default;
};

// Row of the wait matrix that one rank sends for a step.
struct WaitRow {
  std::int64_t generation{0};
  std::int64_t step{0};
  std::int32_t rank{-1};        // of the job
  std::vector<double> seconds;  // [EP ranks]
};

class WaitDetector {
 public:
  explicit WaitDetector(WaitOptions options) : options_(options) {}

  // Ignores a repeated row, a row whose step was judged, and rows of an older generation or of
  // another width. A new generation starts afresh.
  [[nodiscard]] std::vector<Finding> observe(const WaitRow& row);

 private:
  struct Step {
    std::vector<double> columns;   // Sums over rows.
    std::set<std::int32_t> ranks;  // Ranks whose rows are in the sums.
  };

  void begin(const WaitRow& row);
  [[nodiscard]] bool complete(const Step& step) const;
  void judge_waiting(std::vector<Finding>& findings);
  void judge(std::int64_t step, const std::vector<double>& columns, std::vector<Finding>& findings);

  WaitOptions options_;
  std::optional<std::int64_t> generation_;
  std::size_t width_{0};
  std::set<std::int32_t> senders_;
  std::map<std::int64_t, Step> waiting_;  // At most reorder_steps.
  std::int64_t judged_step_{-1};
  std::vector<Streak> streaks_;  // [width]
};

}  // namespace muster::detect
