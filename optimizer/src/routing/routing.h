// SPDX-License-Identifier: Apache-2.0
// From specs and route rules to checked, grouped parameters.
#pragma once

#include <muster/common/expected.h>
#include <muster/optimizer/options.h>
#include <muster/optimizer/parameter.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace muster::optimizer {

// A run of rows of one matrix.
struct RowRun {
  std::int64_t begin{0};
  std::int64_t rows{0};
};

// Unit of Muon's orthogonalisation: the runs of a matrix, stacked in order.
struct MatrixBlock {
  std::int64_t rows{0};  // of all runs
  std::vector<RowRun> runs;
};

// A spec with its rule. `size` is the element count. A Muon parameter is `matrices` x [rows, cols],
// each of which falls into `blocks` (at least one). `state_type` is the route's, or fp32 where the
// parameter is too small for 8-bit states.
struct RoutedParameter {
  ParameterSpec spec;
  RouteRule route;
  int group_index{0};
  std::size_t size{0};
  std::size_t matrices{0};
  std::int64_t rows{0};
  std::int64_t cols{0};
  std::vector<MatrixBlock> blocks;
  StateType state_type{StateType::kFloat32};
  // Elements of a quantisation unit, a slice along dimension 0 of a stack or of an expert
  // parameter, else the whole parameter. Blocks of 8-bit states and cuts count from a unit's start.
  std::size_t unit{0};
};

struct Routing {
  std::vector<RoutedParameter> parameters;  // in the order of the specs
  std::vector<std::string> group_names;  // groups that have parameters, in the order of the rules
};

// '*' matches any run of characters, the empty one included; everything else itself.
[[nodiscard]] bool matches(std::string_view pattern, std::string_view name);

// Errors (kInvalidArgument, naming the parameter, its shape and the remedy): no rule matches, Muon
// on what is not a matrix or a stack of matrices, blocks that do not add up to the rows, blocks on
// what Muon does not move, a dimension below 1, a name used twice or empty.
[[nodiscard]] Expected<Routing> route(
    std::vector<ParameterSpec> specs, std::span<const RouteRule> rules);

// kInvalidArgument naming a rule that is in force for no parameter though it should be: one that is
// neither optional nor "*".
[[nodiscard]] Status check_routes(const Routing& routing, std::span<const RouteRule> rules);

// kInvalidArgument naming the hyperparameter that can never work.
[[nodiscard]] Status validate(const OptimizerOptions& options);

// Equal on two ranks only if names, shapes, routes and hyperparameters are. Never 0.
[[nodiscard]] std::uint64_t plan_hash(const Routing& routing, const OptimizerOptions& options);

}  // namespace muster::optimizer
