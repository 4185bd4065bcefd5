// Values from outside the update: initial ones, and QK-clip's factors.
#include "optimizer/src/zero1/zero1.h"

#include <algorithm>
#include <cmath>

namespace muster::optimizer {

Status Zero1Optimizer::set_values(std::size_t index, std::span<const float> values) {
  if (index >= parameters_.size()) {
    return invalid_argument(
        "set_values: there are " + std::to_string(parameters_.size()) +
        " parameters, none has index " + std::to_string(index));
  }
  Parameter& parameter = parameters_[index];
  if (values.size() != parameter.gradient.size()) {
    return invalid_argument(
        "set_values: parameter '" + parameter.spec.name + "' has " +
        std::to_string(parameter.gradient.size()) + " elements, not " +
        std::to_string(values.size()));
  }
  if (parameter.value16.empty()) {
    std::copy(values.begin(), values.end(), parameter.value.begin());
    return {};
  }
  kernels::narrow(parameter.spec.dtype, values, parameter.value16);
  if (Shard* shard = shard_of_[index]; shard != nullptr) {
    const std::span<const float> own =
        values.subspan(shard->piece.parameter_begin, shard->piece.size);
    std::copy(own.begin(), own.end(), shard->master.begin());
  }
  return {};
}

Expected<std::size_t> Zero1Optimizer::checked_rows(const HeadScale& scale) const {
  const auto at = index_of_.find(scale.parameter);
  if (at == index_of_.end()) {
    return not_found("QK-clip: there is no parameter '" + scale.parameter + "'");
  }
  const ParameterSpec& spec = setup_.routing.parameters[at->second].spec;
  if (spec.shape.size() != 1 && spec.shape.size() != 2) {
    return invalid_argument(
        "QK-clip: parameter '" + spec.name +
        "' is neither a matrix [rows, cols] nor a bias [rows]");
  }
  if (scale.row_begin < 0 || scale.row_begin > scale.row_end || scale.row_end > spec.shape[0]) {
    return invalid_argument(
        "QK-clip: rows [" + std::to_string(scale.row_begin) + ", " + std::to_string(scale.row_end) +
        ") do not lie in parameter '" + spec.name + "' of " + std::to_string(spec.shape[0]) +
        " rows");
  }
  if (!std::isfinite(scale.factor) || scale.factor <= 0) {
    return invalid_argument(
        "QK-clip: factor " + std::to_string(scale.factor) + " for parameter '" + spec.name +
        "' is not a positive finite number");
  }
  return at->second;
}

Status Zero1Optimizer::scale_heads(std::span<const HeadScale> scales) {
  for (const HeadScale& scale : scales) {
    MUSTER_RETURN_IF_ERROR(checked_rows(scale).status());
  }
  for (const HeadScale& scale : scales) {
    const std::size_t index = index_of_.find(scale.parameter)->second;
    Shard* shard = shard_of_[index];
    if (shard == nullptr) {
      continue;
    }
    const RoutedParameter& parameter = setup_.routing.parameters[index];
    const std::size_t cols = parameter.size / static_cast<std::size_t>(parameter.spec.shape[0]);
    const Piece& piece = shard->piece;
    const std::size_t begin =
        std::max(static_cast<std::size_t>(scale.row_begin) * cols, piece.parameter_begin);
    const std::size_t end = std::min(
        static_cast<std::size_t>(scale.row_end) * cols, piece.parameter_begin + piece.size);
    if (begin >= end) {
      continue;
    }
    const std::size_t at = begin - piece.parameter_begin;
    kernels::scale_elements(
        shard->value.subspan(at, end - begin),
        shard->narrow_copy.empty() ? shard->narrow_copy
                                   : shard->narrow_copy.subspan(at, end - begin),
        shard->narrow_type,
        scale.factor);
  }
  return {};
}

}  // namespace muster::optimizer
