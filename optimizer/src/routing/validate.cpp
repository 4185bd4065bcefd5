// SPDX-License-Identifier: Apache-2.0
// Hyperparameters that can never work, each named with its remedy.
#include "optimizer/src/routing/routing.h"

#include <muster/kernels/low_precision.h>

#include <cmath>

namespace muster::optimizer {
namespace {

bool is_rate(double value) {
  return std::isfinite(value) && value >= 0;
}

Status validate_route(const RouteRule& rule) {
  const std::string where = "route '" + rule.pattern + "': ";
  MUSTER_RETURN_IF_ERROR(require(
      !rule.pattern.empty(),
      "a route has an empty pattern, which matches no parameter; '*' matches all"));
  MUSTER_RETURN_IF_ERROR(require(
      is_rate(rule.weight_decay) && is_rate(rule.learning_rate_scale),
      where,
      "weight_decay and learning_rate_scale must be finite and 0 or more"));
  return require(
      std::string{to_string(rule.rule)} != "unknown", where, "its update rule is not known");
}

Status validate_cuts(const OptimizerOptions& options) {
  MUSTER_RETURN_IF_ERROR(require(
      options.cut_granularity >= 1,
      "cut_granularity is ",
      options.cut_granularity,
      "; shards are cut at multiples of at least 1 element"));
  for (const RouteRule& rule : options.routes) {
    MUSTER_RETURN_IF_ERROR(require(
        rule.state_type != StateType::kInt8Block ||
            options.cut_granularity % kernels::kQuantBlock == 0,
        "route '",
        rule.pattern,
        "' keeps 8-bit states, whose blocks of ",
        kernels::kQuantBlock,
        " elements must not be cut, but ",
        "cut_granularity is ",
        options.cut_granularity,
        "; make it a multiple of ",
        kernels::kQuantBlock));
  }
  return {};
}

std::vector<std::string> group_names_of(std::span<const RouteRule> rules) {
  std::vector<std::string> names;
  for (const RouteRule& rule : rules) {
    names.push_back(rule.group);
  }
  return names;
}

}  // namespace

Status validate(const OptimizerOptions& options) {
  MUSTER_RETURN_IF_ERROR(validate(options.adamw));
  MUSTER_RETURN_IF_ERROR(validate(options.adam));
  MUSTER_RETURN_IF_ERROR(validate(options.momentum));
  MUSTER_RETURN_IF_ERROR(validate(options.rmsprop));
  MUSTER_RETURN_IF_ERROR(validate(options.muon));
  MUSTER_RETURN_IF_ERROR(validate(options.schedule));
  MUSTER_RETURN_IF_ERROR(
      require(is_rate(options.clip_norm), "clip_norm must be finite, 0 (off) or more"));
  for (const RouteRule& rule : options.routes) {
    MUSTER_RETURN_IF_ERROR(validate_route(rule));
  }
  MUSTER_RETURN_IF_ERROR(validate(options.clipping, group_names_of(options.routes)));
  MUSTER_RETURN_IF_ERROR(validate(options.loss_scale));
  MUSTER_RETURN_IF_ERROR(require(
      std::string{to_string(options.layout)} != "unknown", "the ZeRO-1 layout is not known"));
  MUSTER_RETURN_IF_ERROR(require(
      options.exchange_bytes > 0,
      "exchange_bytes is 0; a layout that moves matrices needs room for at least one (256 MiB by "
      "default)"));
  return validate_cuts(options);
}

}  // namespace muster::optimizer
