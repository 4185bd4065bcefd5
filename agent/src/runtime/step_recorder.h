// SPDX-License-Identifier: Apache-2.0
// Measurements of the training loop within a step, folded into this rank's lanes.
//
// A record that does not fit the model becomes an error, which end_step returns. The training
// thread owns the recorder. No allocation after construction where a record fits.
#pragma once

#include "agent/src/metrics/step_facts.h"

#include <muster/agent/agent.h>

#include <cstdint>
#include <span>
#include <vector>

namespace muster::agent {

class StepRecorder {
 public:
  // `model` and `layout` must outlive the recorder.
  StepRecorder(const ModelInfo& model, const LaneLayout& layout);

  // Forgets the records of the last step; modes stay.
  void begin_step();

  // Records between the two are ignored. May nest.
  void pause() { ++evaluations_; }

  void resume() { --evaluations_; }

  // As declared in Agent.
  void record_max_logits(std::size_t layer_index, std::span<const float> max_logits);
  void record_expert_counts(std::size_t layer_index, std::span<const std::int64_t> counts);
  void set_attention_modes(std::span<const AttentionMode> modes);
  void record_moba(std::size_t layer_index, const MobaRecord& record);
  void record_reach(std::size_t layer_index, const kernels::GradientCoverage& coverage);
  void record_ep(std::size_t moe_layer_index, const parallel::EpEvent& event);

  // The lanes of this step; the caller fills in what was not recorded.
  [[nodiscard]] LocalLanes& lanes() { return lanes_; }

  [[nodiscard]] const EpTimes& ep_times() const { return ep_times_; }

  // [attention layers]; empty until set_attention_modes.
  [[nodiscard]] std::span<const AttentionMode> modes() const { return modes_; }

  // The last record that did not fit the model, or OK.
  [[nodiscard]] const Status& misuse() const { return misuse_; }

 private:
  [[nodiscard]] bool can_use_moba(std::size_t layer_index) const;

  const ModelInfo& model_;
  const LaneLayout& layout_;
  LocalLanes lanes_;
  EpTimes ep_times_;
  std::vector<AttentionMode> modes_;
  int evaluations_{0};
  Status misuse_;
};

}  // namespace muster::agent
