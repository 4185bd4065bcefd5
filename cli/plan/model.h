// SPDX-License-Identifier: Apache-2.0
// Input of `muster plan optimizer`: a model's tensors and the optimizer's options, from a file or a
// preset.
#pragma once

#include <muster/common/expected.h>
#include <muster/optimizer/options.h>
#include <muster/optimizer/parameter.h>

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace muster::cli {

struct PlannedModel {
  std::string name;
  // Dimension 0 of an expert parameter counts all experts of the model; see local_specs.
  std::vector<optimizer::ParameterSpec> specs;
  optimizer::OptimizerOptions options;
  int ranks{8};
  int expert_ranks{0};  // 0 selects `ranks`
};

struct Preset {
  std::string_view name;
  std::string_view summary;
  std::string_view text;  // a model file
};

[[nodiscard]] std::span<const Preset> presets();
// kInvalidArgument for an unknown name; the message lists the presets.
[[nodiscard]] Expected<Preset> find_preset(const std::string& name);

// YAML or JSON; docs/concepts/zero1_layouts.md, "Plan", has the keys. kInvalidArgument with `name`,
// line, key and what would be right; kNotFound and others from the file itself.
[[nodiscard]] Expected<PlannedModel> parse_model(const std::string& text, const std::string& name);
[[nodiscard]] Expected<PlannedModel> read_model(const std::filesystem::path& path);

// The specs as one rank has them when `ranks / expert_ranks` expert-parallel ranks share the
// experts.
[[nodiscard]] Expected<std::vector<optimizer::ParameterSpec>> local_specs(
    const PlannedModel& model, int ranks, int expert_ranks);

}  // namespace muster::cli
