// SPDX-License-Identifier: Apache-2.0
// All detectors of one run over its stream of steps, fed in any order, judging in step order.
//
// Watermark policy. Steps are judged in ascending order. A step that is not the next one waits for
// the missing ones until `reorder_steps` steps wait; then the gap is given up and judging continues
// at the lowest waiting step. A step of such a gap that still arrives is late: it is counted and
// judged only for what needs no history (nonfinite). A step judged before is a duplicate: ignored
// and counted. The same steps therefore give the same findings in any order that is off by less
// than `reorder_steps`. A generation begins at the first of its steps that arrives; steps of older
// generations are ignored.
//
// A new generation empties all windows: until they have warmed up, only nonfinite values and logits
// are found. Skipped steps and values that are not finite never enter a window.
//
// Attention modes. Loss and gradient norm have a baseline per set of modes of all layers, logits
// one per head and mode. A switch to a new mode starts a new window, which has to warm up; a switch
// back resumes the old one. Episodes that are open when a mode ends are closed with it.
//
// A value; copy it to fork a simulation. Not thread-safe.
#pragma once

#include <muster/detect/detector.h>
#include <muster/detect/expert_imbalance_detector.h>
#include <muster/detect/flat_detector.h>
#include <muster/detect/max_logit_detector.h>
#include <muster/detect/mode_tracker.h>
#include <muster/detect/nonfinite_detector.h>
#include <muster/detect/reach_detector.h>
#include <muster/detect/spike_detector.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace muster::detect {

struct JobDetectorOptions {
  SpikeOptions loss{loss_spike_options()};
  SpikeOptions gradient_norm{gradient_norm_spike_options()};
  FlatOptions flat;
  MaxLogitOptions max_logit;
  ReachOptions reach;
  ExpertImbalanceOptions expert_imbalance;
  std::size_t baselines_max{16};  // Sets of modes remembered; the least recently used is evicted.
  std::size_t reorder_steps{16};
};

class JobDetector {
 public:
  explicit JobDetector(JobDetectorOptions options);

  // Returns the findings of this observation and of those that waited for it, ascending by step.
  [[nodiscard]] std::vector<Finding> observe(const StepObservation& observation);

  // Records a layer's mode from an event; see ModeTracker. Call before the step of the change.
  void note(const ModeChange& change) { modes_.note(change); }

  // Judges all steps that still wait, despite gaps: at the end of a run or generation.
  [[nodiscard]] std::vector<Finding> flush();

  [[nodiscard]] std::uint64_t late_count() const { return late_count_; }

  [[nodiscard]] std::uint64_t duplicate_count() const { return duplicate_count_; }

  // Returns the number of times a layer switched to another mode's baseline.
  [[nodiscard]] std::uint64_t switch_count() const { return modes_.switch_count(); }

 private:
  // Usual loss and gradient norm under one set of modes.
  struct Baseline {
    SpikeDetector loss;
    SpikeDetector gradient_norm;
    std::int64_t used_step{0};
  };

  void begin_generation(std::int64_t generation);
  void judge_waiting(std::vector<Finding>& findings);
  void judge_lowest(std::vector<Finding>& findings);
  void judge(const StepObservation& observation, std::vector<Finding>& findings);
  [[nodiscard]] Baseline& baseline_of(std::int64_t step);
  void observe_past(const StepObservation& observation, std::vector<Finding>& findings);
  void give_up(std::int64_t step_begin, std::int64_t step_end);

  JobDetectorOptions options_;
  NonfiniteDetector nonfinite_;
  FlatDetector flat_;
  MaxLogitDetector max_logit_;
  ReachDetector reach_;
  ExpertImbalanceDetector expert_imbalance_;
  ModeTracker modes_;
  std::map<std::vector<int>, Baseline> baselines_;  // By the modes of all layers.
  std::vector<int> baseline_key_;                   // Modes of the last step judged.
  std::optional<std::int64_t> generation_;
  std::optional<std::int64_t> next_step_;            // Empty before the generation's first step.
  std::map<std::int64_t, StepObservation> waiting_;  // At most reorder_steps.
  std::map<std::int64_t, std::int64_t> given_up_;    // Gaps [begin, end), the newest 64.
  std::uint64_t late_count_{0};
  std::uint64_t duplicate_count_{0};
};

}  // namespace muster::detect
