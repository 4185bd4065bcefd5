// SPDX-License-Identifier: Apache-2.0
#include "agent/src/metrics/step_facts.h"

#include <algorithm>

namespace muster::agent {

void EpTimes::clear() {
  std::fill(waits.begin(), waits.end(), std::chrono::nanoseconds{0});
  plan = {};
  move = {};
  any = false;
}

void EpTimes::add(const parallel::EpEvent& event) {
  for (std::size_t peer = 0; peer < waits.size(); ++peer) {
    waits[peer] += std::chrono::nanoseconds{event.wait_ns[peer]};
  }
  plan += std::chrono::nanoseconds{event.plan_ns};
  move += std::chrono::nanoseconds{event.move_ns};
  any = true;
}

void StepFacts::copy_rank(const StepOutcome& outcome) {
  local_loss = outcome.local_loss;
  update_applied = outcome.update_applied;
  ep = outcome.ep;
}

void StepFacts::copy_job(const StepOutcome& outcome) {
  lanes = outcome.lanes;
  verdict = outcome.verdict;
  learning_rate = outcome.learning_rate;
  modes.assign(outcome.modes.begin(), outcome.modes.end());
}

StepSample shaped_sample(const LaneLayout& layout, const ModelInfo& model, bool job) {
  StepSample sample;
  sample.facts.ep.waits.resize(static_cast<std::size_t>(model.expert_ranks));
  if (!job) {
    return sample;
  }
  const std::vector<double> sum(layout.sum_size());
  const std::vector<double> max(layout.max_size());
  decode(layout, sum, max, sample.facts.lanes);
  sample.facts.verdict.group_clip_factors.resize(layout.groups);
  sample.facts.modes.resize(model.attention.size());
  return sample;
}

}  // namespace muster::agent
