#include "src/judge.h"

#include <utility>

namespace muster::collector {

struct Judge::State {
  const Policy& policy;
  PolicyState policy_state;
  std::int64_t generation{-1};
  std::int64_t step{-1};
};

Judge::Judge(const Policy& policy) : state_(std::make_unique<State>(State{policy, {}, -1, -1})) {}

Judge::~Judge() = default;
Judge::Judge(Judge&& other) noexcept = default;
Judge& Judge::operator=(Judge&& other) noexcept = default;

std::vector<detect::Finding> Judge::observe(const detect::StepObservation& observation) {
  const bool older = observation.generation < state_->generation;
  const bool repeated =
      observation.generation == state_->generation && observation.step <= state_->step;
  if (older || repeated) {
    return {};
  }
  state_->generation = observation.generation;
  state_->step = observation.step;
  return {};
}

Judgement Judge::decide(const detect::Finding& finding, std::int64_t wall_unix_ns) {
  Judgement judgement;
  judgement.finding = to_event(finding, wall_unix_ns);
  for (const PlannedAction& planned :
       collector::decide(state_->policy, finding, state_->policy_state)) {
    judgement.actions.push_back(to_event(planned, finding, wall_unix_ns));
    if (std::optional<Command> command = to_command(planned)) {
      judgement.commands.push_back(*std::move(command));
    }
  }
  return judgement;
}

void Judge::replay(const Event& action) {
  collector::replay(action, state_->policy_state);
}

}  // namespace muster::collector
