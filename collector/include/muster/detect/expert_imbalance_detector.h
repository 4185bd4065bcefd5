// SPDX-License-Identifier: Apache-2.0
// Finds unequal work of ranks while the load of experts is as usual: rho (max over mean rank load)
// jumps but maxvio (of experts) stays. Then the cause is the placement of experts, not the router,
// and moving or copying experts helps.
//
// Each layer is judged against its own last values, as SpikeDetector judges: while rho is high both
// windows are frozen, and after `freeze_steps_max` steps the new level is accepted.
//
// A value; steps must come in order (see JobDetector).
#pragma once

#include <muster/detect/detector.h>
#include <muster/detect/robust_window.h>
#include <muster/detect/streak.h>

#include <cstddef>
#include <map>
#include <vector>

namespace muster::detect {

struct ExpertImbalanceOptions {
  double z{5.0};         // rho is high above it.
  double maxvio_z{3.0};  // maxvio is flat up to it.
  int steps{8};          // In a row.
  std::size_t window{128};
  std::size_t warmup{64};
  std::size_t freeze_steps_max{128};

  friend bool operator==(const ExpertImbalanceOptions&, const ExpertImbalanceOptions&) = default;
};

class ExpertImbalanceDetector {
 public:
  explicit ExpertImbalanceDetector(ExpertImbalanceOptions options) : options_(options) {}

  // Skips layers whose rho is not finite. A layer without maxvio counts as flat.
  [[nodiscard]] std::vector<Finding> observe(const StepObservation& observation);

  void reset() { layers_.clear(); }

 private:
  struct Layer {
    explicit Layer(std::size_t window);

    RobustWindow rho;
    RobustWindow maxvio;
    std::vector<ExpertLayer> frozen;  // Values held back since rho became high.
    Streak streak;
  };

  void remember(Layer& layer, const ExpertLayer& seen, bool freeze) const;

  ExpertImbalanceOptions options_;
  std::map<int, Layer> layers_;
};

}  // namespace muster::detect
