// SPDX-License-Identifier: Apache-2.0
// `muster plan ep`: memory and traffic of expert parallelism, before any run.
#pragma once

#include <muster/parallel/experts/sizes.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace muster::cli {

struct EpPreset {
  std::string_view name;
  std::string_view summary;
  parallel::EpLayerShape layer;
};

[[nodiscard]] std::span<const EpPreset> ep_presets();
// Returns kInvalidArgument with the valid names for an unknown one.
[[nodiscard]] Expected<EpPreset> find_ep_preset(const std::string& name);

struct EpQuestion {
  std::string name;
  parallel::EpLayerShape layer;
  std::optional<parallel::EpRates> rates;  // times are computed if present
  double imbalance{0};                     // a token count is computed unless it is zero
};

struct EpAnswer {
  parallel::EpSizes sizes;
  std::optional<parallel::EpBreakEven> forward;
  std::optional<parallel::EpBreakEven> with_backward;
};

[[nodiscard]] Expected<EpAnswer> answer(const EpQuestion& question);

[[nodiscard]] std::string to_text(const EpQuestion& question, const EpAnswer& answer);

// One object: the configuration, every field of EpSizes under its own name, and with rates
// "forward" and "with_backward". Bytes, rows and seconds are plain numbers.
[[nodiscard]] std::string to_json(const EpQuestion& question, const EpAnswer& answer);

}  // namespace muster::cli
