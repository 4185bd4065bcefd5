// The parameters of a model as muster sees them: names, shapes, where their values and gradients
// lie, and which update rule moves them.
#pragma once

#include <muster/common/expected.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace muster::optimizer {

enum class Rule : std::uint8_t { kAdamW, kMuon };

// kReplicated: every rank holds the same values; gradients are reduced over all ranks.
// kExpert: the values belong to one expert-parallel rank; gradients are reduced only over the ranks
// that hold the same experts.
enum class Placement : std::uint8_t { kReplicated, kExpert };

// One tensor, fp32, row-major. A stack of matrices is [count, rows, cols]; Muon treats each matrix
// of a stack on its own.
struct ParameterSpec {
  std::string name;                 // Unique, e.g. "layers.3.attention.wq".
  std::vector<std::int64_t> shape;  // Local shape on this rank.
  Placement placement{Placement::kReplicated};
};

// First rule whose `pattern` matches the name wins; '*' matches any run of characters.
struct RouteRule {
  std::string pattern;
  Rule rule{Rule::kAdamW};
  std::string group;  // Name of the norm/statistics group, e.g. "attention".
  double weight_decay{0.0};
  double learning_rate_scale{1.0};
};

// A parameter after layout. `value` and `gradient` stay valid for the optimizer's life.
struct Parameter {
  ParameterSpec spec;
  RouteRule route;
  int group_index{0};         // Into Optimizer::group_names().
  std::span<float> value;     // [prod(shape)]; identical on all ranks that hold it.
  std::span<float> gradient;  // [prod(shape)]; backward accumulates SUMS over tokens into it.
};

}  // namespace muster::optimizer
