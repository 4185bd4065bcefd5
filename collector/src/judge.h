// Detection and policy of one run: observations go in in step order, what to record and to command
// comes out. Pure; owned by the writer. Windows start afresh with every generation.
#pragma once

#include <muster/collector/policy.h>
#include <muster/common/telemetry.h>
#include <muster/detect/detector.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace muster::collector {

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
  ~Judge();
  Judge(Judge&& other) noexcept;
  Judge& operator=(Judge&& other) noexcept;
  Judge(const Judge&) = delete;
  Judge& operator=(const Judge&) = delete;

  // Nothing for a step of an older generation or one that was observed already.
  [[nodiscard]] std::vector<detect::Finding> observe(const detect::StepObservation& observation);

  [[nodiscard]] Judgement decide(const detect::Finding& finding, std::int64_t wall_unix_ns);

  // From the store, after a restart of the collector: earlier actions, in order.
  void replay(const Event& action);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace muster::collector
