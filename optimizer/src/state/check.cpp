// SPDX-License-Identifier: Apache-2.0
// Checks of a checkpoint before it may change anything.
#include "optimizer/src/state/load.h"

#include <algorithm>
#include <charconv>

namespace muster::optimizer {
namespace {

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    text += (axis == 0 ? "" : ", ") + std::to_string(shape[axis]);
  }
  return text + "]";
}

std::string describe(const RoutedParameter& parameter) {
  return "parameter '" + parameter.spec.name + "' of shape " + shape_text(parameter.spec.shape);
}

std::optional<StateType> parse_dtype(const std::string& name) {
  for (const StateType type : {StateType::kFloat32, StateType::kBFloat16, StateType::kInt8Block}) {
    if (name == safetensors_name(saved_dtype(type))) {
      return type;
    }
  }
  return std::nullopt;
}

template <typename Number>
std::optional<Number> parse_number(const std::string& text) {
  Number number{};
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, number);
  return error == std::errc{} && at == end ? std::optional{number} : std::nullopt;
}

Status check_shape(
    const std::string& name,
    const StateSource::Tensor& tensor,
    const std::vector<std::int64_t>& full,
    std::int64_t size,
    const RoutedParameter& parameter) {
  const std::vector<std::int64_t> flat{size};
  if (tensor.global_shape == flat || tensor.global_shape == full) {
    return {};
  }
  return invalid_argument(
      "checkpoint tensor '" + name + "' has shape " + shape_text(tensor.global_shape) + ", " +
      describe(parameter) + " needs " + shape_text(full) + " or " + shape_text(flat) +
      " over all ranks; load it into the model that saved it");
}

}  // namespace

StateLoader::StateLoader(StateSource& source, const OptimizerOptions& options)
    : source_(&source), options_(&options) {}

Status StateLoader::check_values() {
  if (const std::string* text = source_->value(kAppliedStepsKey); text != nullptr) {
    applied_steps_ = parse_number<std::int64_t>(*text);
    if (!applied_steps_.has_value() || *applied_steps_ < 0) {
      return data_loss(
          "checkpoint value " + std::string{kAppliedStepsKey} + " is '" + *text +
          "', not a count of steps");
    }
  }
  // Checkpoints without the key were written when there was only one form.
  MomentumForm form = MomentumForm::kHeavyBall;
  if (const std::string* text = source_->value(kMomentumFormKey); text != nullptr) {
    MUSTER_ASSIGN_OR_RETURN(form, parse_momentum_form(*text));
  }
  double mu = options_->muon.momentum;
  if (const std::string* text = source_->value(kMuonMomentumKey); text != nullptr) {
    // Until text stopped listening to locales, some have been written as "0,95".
    std::string point = *text;
    std::replace(point.begin(), point.end(), ',', '.');
    const auto parsed = parse_number<double>(point);
    if (!parsed.has_value() || !(*parsed >= 0 && *parsed < 1)) {
      return data_loss(
          "checkpoint value " + std::string{kMuonMomentumKey} + " is '" + *text +
          "', not a momentum in [0, 1)");
    }
    mu = *parsed;
  }
  momentum_factor_ = 1;
  if (form != options_->muon.momentum_form) {
    momentum_factor_ = form == MomentumForm::kHeavyBall ? 1 - mu : 1 / (1 - mu);
  }
  return {};
}

Expected<const StateSource::Tensor*> StateLoader::find(
    const std::string& name, const RoutedParameter& parameter) {
  const StateSource::Tensor* tensor = source_->find(name);
  if (tensor == nullptr) {
    return not_found(
        "the checkpoint has no tensor '" + name + "' for " + describe(parameter) + ", which " +
        to_string(parameter.route.rule) +
        " moves; load it into the model and the routes that saved it");
  }
  expected_.insert(name);
  return tensor;
}

Status StateLoader::check(const RoutedParameter& parameter, const GlobalTensor& global) {
  const std::string* rule = source_->value(kRuleKeyPrefix + parameter.spec.name);
  if (rule != nullptr && *rule != to_string(parameter.route.rule)) {
    return failed_precondition(
        describe(parameter) + " was saved under the rule " + *rule + " and is routed to " +
        to_string(parameter.route.rule) + " now; its states mean something else: keep the route");
  }
  const std::string name = state_name(kParameterKind, parameter.spec.name);
  MUSTER_ASSIGN_OR_RETURN(const StateSource::Tensor* values, find(name, parameter));
  if (values->dtype != "F32") {
    return invalid_argument(
        "checkpoint tensor '" + name + "' is " + values->dtype + "; values and masters of " +
        describe(parameter) + " are saved as F32");
  }
  MUSTER_RETURN_IF_ERROR(check_shape(name, *values, global.full_shape, global.size, parameter));
  for (const StateKind& kind : state_kinds(parameter.route.rule)) {
    MUSTER_RETURN_IF_ERROR(check_state(kind, parameter, global));
  }
  return {};
}

Status StateLoader::check_state(
    const StateKind& kind, const RoutedParameter& parameter, const GlobalTensor& global) {
  Saved saved;
  saved.name = state_name(kind.name, parameter.spec.name);
  saved.is_signed = kind.is_signed;
  MUSTER_ASSIGN_OR_RETURN(const StateSource::Tensor* tensor, find(saved.name, parameter));
  const auto type = parse_dtype(tensor->dtype);
  if (!type.has_value()) {
    return invalid_argument(
        "checkpoint tensor '" + saved.name + "' of " + describe(parameter) + " is " +
        tensor->dtype + "; states are F32, BF16 or U8");
  }
  saved.type = *type;
  MUSTER_RETURN_IF_ERROR(
      check_shape(saved.name, *tensor, global.full_shape, global.size, parameter));
  if (saved.type == StateType::kInt8Block) {
    const std::string* map = source_->value(kQuantMapKey);
    if (map == nullptr || *map != quant_map_text()) {
      return version_mismatch(
          "checkpoint tensor '" + saved.name + "' is coded by the 8-bit map " +
          (map == nullptr ? std::string{"(not named)"} : *map) + ", this build has " +
          quant_map_text() + "; load it with the version that saved it and save fp32 states");
    }
    saved.absmax_name = state_name(std::string{kind.name} + kAbsmaxSuffix, parameter.spec.name);
    MUSTER_ASSIGN_OR_RETURN(const StateSource::Tensor* absmax, find(saved.absmax_name, parameter));
    if (absmax->dtype != "F32") {
      return invalid_argument(
          "checkpoint tensor '" + saved.absmax_name + "' is " + absmax->dtype + ", not F32");
    }
    MUSTER_RETURN_IF_ERROR(
        check_shape(saved.absmax_name, *absmax, {global.blocks}, global.blocks, parameter));
  }
  saved_[saved.name] = saved;
  return {};
}

Status StateLoader::check_leftovers() {
  std::set<std::string> kinds{kParameterKind};
  for (const Rule rule :
       {Rule::kAdamW, Rule::kMuon, Rule::kSgd, Rule::kMomentum, Rule::kRmsProp, Rule::kAdam}) {
    for (const StateKind& kind : state_kinds(rule)) {
      kinds.insert(kind.name);
      kinds.insert(std::string{kind.name} + kAbsmaxSuffix);
    }
  }
  for (const std::string& name : source_->names()) {
    if (kinds.contains(name.substr(0, name.find('/'))) && !expected_.contains(name)) {
      return failed_precondition(
          "checkpoint tensor '" + name +
          "' has no place in this model and its routes; load it into those that saved it");
    }
  }
  return {};
}

}  // namespace muster::optimizer
