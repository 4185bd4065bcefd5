// SPDX-License-Identifier: Apache-2.0
// Detection and policy of one run: observations go in, what to record and to command comes out.
// Pure; owned by the writer. The detectors order steps and start afresh with every generation.
#pragma once

#include <muster/common/ids.h>
#include <muster/common/telemetry.h>
#include <muster/detect/detector.h>
#include <muster/detect/job_detector.h>
#include <muster/detect/wait_detector.h>
#include <muster/policy/policy.h>

#include <cstdint>
#include <vector>

namespace muster::collector {

using policy::Policy;

// The answer to one finding, in the order it is stored.
struct Judgement {
  Event finding;
  std::vector<Event> actions;
  std::vector<Command> commands;  // Without id and epoch.
};

class Judge {
 public:
  // `policy` must outlive the judge.
  explicit Judge(const Policy& policy);

  [[nodiscard]] std::vector<detect::Finding> observe(const detect::StepObservation& observation);

  [[nodiscard]] std::vector<detect::Finding> observe(const detect::WaitRow& row);

  // An event that rank 0 sent, once: a change of attention modes is worth knowing, others are not.
  void note(Generation generation, const Event& event);

  [[nodiscard]] Judgement decide(const detect::Finding& finding, std::int64_t wall_unix_ns);

  // After a restart of the collector: what was observed and done before it, each in order. Fills
  // windows, cooldowns and budgets; finds nothing, for that was recorded when it was new. The wait
  // matrix starts afresh: a straggler that is still one is found again.
  void replay(
      const std::vector<detect::StepObservation>& observations,
      Generation generation,
      const std::vector<Event>& events);

 private:
  const Policy* policy_;
  policy::PolicyState policy_state_;
  detect::JobDetector detector_;
  detect::WaitDetector waits_;
};

}  // namespace muster::collector
