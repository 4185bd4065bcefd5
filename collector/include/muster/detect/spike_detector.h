// SPDX-License-Identifier: Apache-2.0
// Finds jumps of a scalar: one step above a robust threshold, or several of the last few.
//
// Values are judged against median and MAD of the last accepted ones. While a value or an episode
// is abnormal the window is frozen, so that a spike does not become the normal it is judged by;
// after `freeze_steps_max` frozen values the new level is accepted as a new regime.
//
// A value; copy it to fork a simulation. Steps must come in order (see JobDetector).
#pragma once

#include <muster/detect/detector.h>
#include <muster/detect/robust_window.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

namespace muster::detect {

struct SpikeOptions {
  std::string subject;           // "loss", "gradient_norm".
  bool logarithmic{false};       // Judge log(value): for norms, which spread over decades.
  double z_threshold{6.0};       // One step above it is a "spike".
  int persist_count{2};          // This many of ...
  int persist_window{3};         // ... the last so many are a "spike_persistent".
  std::size_t window{128};       // Accepted values remembered.
  std::size_t warmup{64};        // Accepted values after a reset before anything is found.
  int freeze_steps_max{128};     // Frozen values in a row before the new level is accepted.
  std::size_t known_highs{8};    // So many highs within ...
  std::int64_t known_span{512};  // ... so many values are usual: a part of the data is harder.
  double known_ratio{1.5};       // A high that exceeds them by more is found still.
  ScaleFloor floor;
};

// The operating points of docs/concepts/detectors.md: loss z > 6, log of the gradient norm z > 5.
[[nodiscard]] SpikeOptions loss_spike_options();
[[nodiscard]] SpikeOptions gradient_norm_spike_options();

class SpikeDetector {
 public:
  explicit SpikeDetector(SpikeOptions options);

  // Skips a value that is not finite, or not positive where logarithms are judged. Finds a "spike"
  // when a streak of high values begins, unless
  // values as high have come again and again (`known_highs`), and a "spike_persistent" once per
  // episode; an episode ends after `persist_window` normal values.
  [[nodiscard]] std::vector<Finding> observe(std::int64_t step, double value);

  // Pauses while another baseline is in use: ends open episodes and keeps the window. Values that
  // are still high afterwards are found again.
  void suspend();

  // Forgets everything: after a restart, or any change that makes old values incomparable.
  void reset();

  [[nodiscard]] bool alarming() const { return alarming_; }

 private:
  [[nodiscard]] bool update_episode(bool high);
  // Notes a high; true if it is one of a kind that has become usual.
  [[nodiscard]] bool is_known_high(double judged);
  void remember(double judged, bool freeze);
  [[nodiscard]] Finding describe(
      const char* rule, Severity severity, std::int64_t step, double value, double z) const;

  SpikeOptions options_;
  RobustWindow window_;
  std::vector<double> frozen_;  // Values held back since the window was frozen.
  std::vector<bool> recent_;    // Highs among the last `persist_window` values, oldest first.
  std::deque<std::pair<std::int64_t, double>> highs_;  // Count at the time and height, lone ones.
  std::int64_t count_{0};                              // Values judged.
  bool streak_{false};                                 // The last value was high.
  bool alarming_{false};
};

}  // namespace muster::detect
