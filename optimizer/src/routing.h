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

// A spec with its rule. `size` is the element count; a Muon parameter is `matrices` x [rows, cols].
struct RoutedParameter {
  ParameterSpec spec;
  RouteRule route;
  int group_index{0};
  std::size_t size{0};
  std::size_t matrices{0};
  std::int64_t rows{0};
  std::int64_t cols{0};
};

struct Routing {
  std::vector<RoutedParameter> parameters;  // in the order of the specs
  std::vector<std::string> group_names;  // groups that have parameters, in the order of the rules
};

// '*' matches any run of characters, the empty one included; everything else itself.
[[nodiscard]] bool matches(std::string_view pattern, std::string_view name);

// Errors (kInvalidArgument, naming the parameter): no rule matches, Muon on what is not a matrix or
// a stack of matrices, a dimension below 1, a name used twice or empty.
[[nodiscard]] Expected<Routing> route(
    std::vector<ParameterSpec> specs, std::span<const RouteRule> rules);

// kInvalidArgument naming the hyperparameter that can never work.
[[nodiscard]] Status validate(const OptimizerOptions& options);

// Equal on two ranks only if names, shapes, routes and hyperparameters are. Never 0.
[[nodiscard]] std::uint64_t plan_hash(const Routing& routing, const OptimizerOptions& options);

}  // namespace muster::optimizer
