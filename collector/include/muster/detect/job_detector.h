// All detectors of one run over its stream of steps, fed in any order, judging in step order.
//
// Watermark policy. Steps are judged in ascending order. A step that is not the next one waits for
// the missing ones until `reorder_steps` of them wait; then the gap is given up and judging goes on
// at the lowest waiting step. A step of a given-up gap that still arrives is late: it is judged for
// what needs no history (nonfinite) and counted. A step judged before is a duplicate: ignored and
// counted. So the same steps give the same findings in any order that is off by less than
// `reorder_steps`. A generation begins at the first of its steps that arrives; steps of older
// generations are ignored.
//
// A new generation empties all windows: nothing but nonfinite values and logits is found until they
// have warmed up. Skipped steps and values that are not finite never enter a window.
//
// A value; copy it to fork a simulation. Not thread-safe.
#pragma once

#include <muster/detect/detector.h>
#include <muster/detect/max_logit_detector.h>
#include <muster/detect/nonfinite_detector.h>
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
  MaxLogitOptions max_logit;
  std::size_t reorder_steps{16};
};

class JobDetector {
 public:
  explicit JobDetector(JobDetectorOptions options);

  // What this observation, and those that waited for it, give; ascending by step.
  [[nodiscard]] std::vector<Finding> observe(const StepObservation& observation);

  // Judges whatever still waits, gaps or not: at the end of a run or generation.
  [[nodiscard]] std::vector<Finding> flush();

  [[nodiscard]] std::uint64_t late_count() const { return late_count_; }

  [[nodiscard]] std::uint64_t duplicate_count() const { return duplicate_count_; }

 private:
  void begin_generation(std::int64_t generation);
  void judge_waiting(std::vector<Finding>& findings);
  void judge_lowest(std::vector<Finding>& findings);
  void judge(const StepObservation& observation, std::vector<Finding>& findings);
  void observe_past(const StepObservation& observation, std::vector<Finding>& findings);
  void give_up(std::int64_t step_begin, std::int64_t step_end);

  JobDetectorOptions options_;
  NonfiniteDetector nonfinite_;
  SpikeDetector loss_;
  SpikeDetector gradient_norm_;
  MaxLogitDetector max_logit_;
  std::optional<std::int64_t> generation_;
  std::optional<std::int64_t> next_step_;            // Nothing: no step of the generation yet.
  std::map<std::int64_t, StepObservation> waiting_;  // At most reorder_steps.
  std::map<std::int64_t, std::int64_t> given_up_;    // Gaps [begin, end), the newest 64.
  std::uint64_t late_count_{0};
  std::uint64_t duplicate_count_{0};
};

}  // namespace muster::detect
