// SPDX-License-Identifier: Apache-2.0
#include "trainer/moe_lm/src/update_options.h"

#include <array>
#include <cmath>
#include <utility>

namespace muster::moe_lm {
namespace {

using optimizer::StateType;

template <typename T, std::size_t N>
Expected<T> parse(
    const std::string& name,
    const std::array<std::pair<const char*, T>, N>& known,
    const std::string& choice) {
  for (const auto& [text, value] : known) {
    if (name == text) {
      return value;
    }
  }
  return invalid_argument("'", name, "' is not one of ", choice);
}

}  // namespace

Status validate(const UpdateOptions& options) {
  if (options.per_head_muon && options.rule != optimizer::Rule::kMuon) {
    return invalid_argument(
        "--per-head-muon has no effect with --optimizer ",
        optimizer::to_string(options.rule),
        "; leave it out or use --optimizer muon");
  }
  if (!std::isfinite(options.agc) || options.agc < 0) {
    return invalid_argument("--agc must be 0 (off) or more");
  }
  if (!std::isfinite(options.weight_decay) || options.weight_decay < 0) {
    return invalid_argument("--weight-decay must be 0 or more");
  }
  if (options.cooldown < 0) {
    return invalid_argument("--cooldown must be 0 (a fifth of the steps) or more");
  }
  return {};
}

Expected<DType> parse_parameter_type(const std::string& name) {
  static constexpr std::array<std::pair<const char*, DType>, 3> kKnown{
      {{"fp32", DType::kFloat32}, {"bf16", DType::kBFloat16}, {"fp16", DType::kFloat16}}};
  return parse(name, kKnown, "fp32, bf16, fp16");
}

Expected<StateType> parse_state_type(const std::string& name) {
  static constexpr std::array<std::pair<const char*, StateType>, 3> kKnown{
      {{"fp32", StateType::kFloat32},
       {"bf16", StateType::kBFloat16},
       {"int8", StateType::kInt8Block}}};
  return parse(name, kKnown, "fp32, bf16, int8");
}

Expected<DType> parse_matrix_precision(const std::string& name) {
  static constexpr std::array<std::pair<const char*, DType>, 2> kKnown{
      {{"fp32", DType::kFloat32}, {"bf16", DType::kBFloat16}}};
  return parse(name, kKnown, "fp32, bf16");
}

}  // namespace muster::moe_lm
