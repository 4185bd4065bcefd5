// SPDX-License-Identifier: Apache-2.0
#include "cli/plan/model.h"

namespace muster::cli {

Expected<Preset> find_preset(const std::string& name) {
  std::string known;
  for (const Preset& preset : presets()) {
    if (preset.name == name) {
      return preset;
    }
    known += (known.empty() ? "" : ", ") + std::string{preset.name};
  }
  return invalid_argument("there is no preset '" + name + "'; there are " + known);
}

Expected<std::vector<optimizer::ParameterSpec>> local_specs(
    const PlannedModel& model, int ranks, int expert_ranks) {
  std::vector<optimizer::ParameterSpec> specs = model.specs;
  if (ranks < 1 || expert_ranks < 1 || ranks % expert_ranks != 0) {
    return specs;  // The plan refuses these with all there is to say.
  }
  const std::int64_t groups = ranks / expert_ranks;
  for (optimizer::ParameterSpec& spec : specs) {
    if (spec.placement != optimizer::Placement::kExpert || spec.shape.empty()) {
      continue;
    }
    const std::int64_t experts = spec.shape.front();
    if (experts % groups != 0) {
      return invalid_argument(
          "the ",
          experts,
          " experts of parameter '",
          spec.name,
          "' do not divide over ",
          groups,
          " expert-parallel ranks (",
          ranks,
          " ranks, ",
          expert_ranks,
          " of which share each expert); choose --ranks and --expert-ranks so that ranks / "
          "expert-ranks divides ",
          experts);
    }
    spec.shape.front() = experts / groups;
  }
  return specs;
}

}  // namespace muster::cli
