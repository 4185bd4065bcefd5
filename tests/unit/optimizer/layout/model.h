// SPDX-License-Identifier: Apache-2.0
// Models for the tests of layouts, and the invariants of src/layout.h as one check.
#pragma once

#include "optimizer/src/layout/layout.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace muster::optimizer {

using Shape = std::vector<std::int64_t>;

inline constexpr BufferKey kMatrices{Placement::kReplicated, true, DType::kFloat32};
inline constexpr BufferKey kElementwise{Placement::kReplicated, false, DType::kFloat32};

inline constexpr Layout kAllLayouts[] = {
    Layout::kWholeMatrices,
    Layout::kFlatRedundant,
    Layout::kFlatOwner,
    Layout::kRowShards,
    Layout::kReplicated};

// Parameters "p0", "p1", ... all moved by `rule`.
inline Routing routed(
    const std::vector<Shape>& shapes, Rule rule, StateType state = StateType::kFloat32) {
  std::vector<ParameterSpec> specs;
  for (const Shape& shape : shapes) {
    ParameterSpec spec;
    spec.name = "p" + std::to_string(specs.size());
    spec.shape = shape;
    specs.push_back(std::move(spec));
  }
  RouteRule rule_for_all;
  rule_for_all.pattern = "*";
  rule_for_all.rule = rule;
  rule_for_all.group = "all";
  rule_for_all.state_type = state;
  return route(std::move(specs), std::vector{rule_for_all}).value();
}

// Fails the test where a plan breaks an invariant; `granularity` as in the options it was made
// with.
void expect_sound(const Routing& routing, const BufferPlan& plan, std::int64_t granularity);

// Elements of a task that its computing ranks lack.
[[nodiscard]] std::size_t missing_elements(const MatrixTask& task);

}  // namespace muster::optimizer
