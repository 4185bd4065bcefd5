// SPDX-License-Identifier: Apache-2.0
#include "optimizer/src/routing/routing.h"

#include <algorithm>
#include <string_view>
#include <unordered_set>

namespace muster::optimizer {
namespace {

// Below this an 8-bit state saves nothing, and the tensor is of the sensitive kind (norms, biases).
constexpr std::size_t kMinQuantisedElements = 4096;
// Byte offsets of 8-byte elements must still fit into 63 bits.
constexpr std::size_t kMaxElements = std::size_t{1} << 60;

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

std::string named(const ParameterSpec& spec) {
  return "parameter '" + spec.name + "' of shape " + shape_text(spec.shape);
}

Status count_elements(RoutedParameter& parameter) {
  const ParameterSpec& spec = parameter.spec;
  parameter.size = 1;
  for (const std::int64_t extent : spec.shape) {
    if (extent < 1) {
      return invalid_argument(
          "parameter '" + spec.name + "' has shape " + shape_text(spec.shape) +
          "; every dimension must be at least 1");
    }
    if (parameter.size > kMaxElements / static_cast<std::size_t>(extent)) {
      return invalid_argument(
          named(spec) + " has more than 2^60 elements; split it into several parameters");
    }
    parameter.size *= static_cast<std::size_t>(extent);
  }
  if (spec.placement == Placement::kExpert && spec.shape.empty()) {
    return invalid_argument(
        "expert parameter '" + spec.name +
        "' is a scalar; dimension 0 of an expert parameter counts the local experts");
  }
  return {};
}

Status find_matrices(RoutedParameter& parameter) {
  const ParameterSpec& spec = parameter.spec;
  const std::size_t rank = spec.shape.size();
  if (rank != 2 && rank != 3) {
    return invalid_argument(
        named(spec) +
        " is routed to Muon, which moves matrices [rows, cols] and stacks [count, rows, cols] "
        "only; route it to AdamW" +
        (rank > 3 ? ", or merge its leading dimensions if each slice is a matrix" : ""));
  }
  if (rank == 2 && spec.placement == Placement::kExpert) {
    return invalid_argument(
        "expert " + named(spec) +
        " is routed to Muon, but dimension 0 of an expert parameter counts experts and is "
        "not a matrix dimension; give it as [experts, rows, cols], or route it to AdamW");
  }
  parameter.rows = spec.shape[rank - 2];
  parameter.cols = spec.shape[rank - 1];
  parameter.matrices = rank == 3 ? static_cast<std::size_t>(spec.shape[0]) : 1;
  return {};
}

Status check_blocks(const RoutedParameter& parameter) {
  const ParameterSpec& spec = parameter.spec;
  const MatrixBlocks& blocks = spec.blocks;
  const bool positive = blocks.repeats >= 1 &&
                        std::all_of(blocks.rows.begin(), blocks.rows.end(), [](std::int64_t rows) {
                          return rows >= 1;
                        });
  if (!positive) {
    return invalid_argument(
        named(spec),
        " has blocks of ",
        shape_text(blocks.rows),
        " rows, repeated ",
        blocks.repeats,
        " times; every block needs at least 1 row and 1 repeat");
  }
  std::int64_t left = parameter.rows;
  for (const std::int64_t rows : blocks.rows) {
    // Division instead of a product: what a user typed may be larger than 64 bits.
    left = rows > left / blocks.repeats ? -1 : left - rows * blocks.repeats;
    if (left < 0) {
      break;
    }
  }
  if (left != 0) {
    return invalid_argument(
        named(spec),
        " has blocks of ",
        shape_text(blocks.rows),
        " rows, repeated ",
        blocks.repeats,
        " times, which ",
        (left < 0 ? "need more rows than" : "leave " + std::to_string(left) + " of"),
        " the ",
        parameter.rows,
        " rows of the matrix",
        (left < 0 ? "" : " over"),
        "; sum(rows) * repeats must equal the rows");
  }
  return {};
}

std::vector<MatrixBlock> blocks_of(const RoutedParameter& parameter) {
  const MatrixBlocks& table = parameter.spec.blocks;
  if (table.rows.empty()) {
    return {MatrixBlock{parameter.rows, {{0, parameter.rows}}}};
  }
  std::vector<MatrixBlock> blocks(table.merge_repeats ? table.rows.size() : 0);
  std::int64_t at = 0;
  for (std::int64_t repeat = 0; repeat < table.repeats; ++repeat) {
    for (std::size_t i = 0; i < table.rows.size(); ++i) {
      if (!table.merge_repeats) {
        blocks.emplace_back();
      }
      MatrixBlock& block = table.merge_repeats ? blocks[i] : blocks.back();
      block.rows += table.rows[i];
      block.runs.push_back({at, table.rows[i]});
      at += table.rows[i];
    }
  }
  return blocks;
}

Status measure(RoutedParameter& parameter) {
  const ParameterSpec& spec = parameter.spec;
  MUSTER_RETURN_IF_ERROR(count_elements(parameter));
  const bool small = parameter.size < kMinQuantisedElements;
  parameter.state_type = small && parameter.route.state_type == StateType::kInt8Block
                             ? StateType::kFloat32
                             : parameter.route.state_type;
  parameter.unit = spec.placement == Placement::kExpert
                       ? parameter.size / static_cast<std::size_t>(spec.shape[0])
                       : parameter.size;
  if (parameter.route.rule != Rule::kMuon) {
    if (!spec.blocks.rows.empty()) {
      return invalid_argument(
          named(spec) + " has matrix blocks but is routed to " + to_string(parameter.route.rule) +
          ", which moves single elements; route it to Muon or leave its blocks out");
    }
    return {};
  }
  MUSTER_RETURN_IF_ERROR(find_matrices(parameter));
  parameter.unit = parameter.size / parameter.matrices;
  if (!spec.blocks.rows.empty()) {
    MUSTER_RETURN_IF_ERROR(check_blocks(parameter));
  }
  parameter.blocks = blocks_of(parameter);
  return {};
}

void number_groups(Routing& routing, std::span<const RouteRule> rules) {
  std::unordered_set<std::string_view> used;
  for (const RoutedParameter& parameter : routing.parameters) {
    used.insert(parameter.route.group);
  }
  auto& names = routing.group_names;
  for (const RouteRule& rule : rules) {
    if (used.contains(rule.group) &&
        std::find(names.begin(), names.end(), rule.group) == names.end()) {
      names.push_back(rule.group);
    }
  }
  for (RoutedParameter& parameter : routing.parameters) {
    const auto at = std::find(names.begin(), names.end(), parameter.route.group);
    parameter.group_index = static_cast<int>(at - names.begin());
  }
}

}  // namespace

bool matches(std::string_view pattern, std::string_view name) {
  std::size_t p = 0;
  std::size_t n = 0;
  std::size_t star = std::string_view::npos;
  std::size_t resume = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;  // The last '*' takes one character more.
      n = ++resume;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

Expected<Routing> route(std::vector<ParameterSpec> specs, std::span<const RouteRule> rules) {
  Routing routing;
  std::unordered_set<std::string> names;
  for (ParameterSpec& spec : specs) {
    if (spec.name.empty()) {
      return invalid_argument(
          "a parameter of shape " + shape_text(spec.shape) +
          " has an empty name; checkpoints need one");
    }
    if (spec.dtype != DType::kFloat32 && spec.dtype != DType::kBFloat16 &&
        spec.dtype != DType::kFloat16) {
      return invalid_argument(
          "dtype of parameter '",
          spec.name,
          "' must be fp32, bf16 or fp16, got ",
          short_name(spec.dtype));
    }
    if (!names.insert(spec.name).second) {
      return invalid_argument("parameter name '" + spec.name + "' is used twice");
    }
    const auto rule = std::find_if(rules.begin(), rules.end(), [&](const RouteRule& candidate) {
      return matches(candidate.pattern, spec.name);
    });
    if (rule == rules.end()) {
      return invalid_argument(
          named(spec) +
          " matches no route; the shape cannot distinguish an embedding from a hidden matrix, so "
          "add "
          "a route to AdamW or Muon");
    }
    RoutedParameter parameter;
    parameter.spec = std::move(spec);
    parameter.route = *rule;
    MUSTER_RETURN_IF_ERROR(measure(parameter));
    routing.parameters.push_back(std::move(parameter));
  }
  number_groups(routing, rules);
  return routing;
}

Status check_routes(const Routing& routing, std::span<const RouteRule> rules) {
  std::unordered_set<std::string_view> used;
  for (const RoutedParameter& parameter : routing.parameters) {
    used.insert(parameter.route.pattern);
  }
  for (const RouteRule& rule : rules) {
    const bool fallback = rule.pattern.find_first_not_of('*') == std::string::npos;
    if (fallback || rule.optional || routing.parameters.empty() || used.contains(rule.pattern)) {
      continue;
    }
    const auto taken = std::find_if(
        routing.parameters.begin(), routing.parameters.end(), [&](const RoutedParameter& p) {
          return matches(rule.pattern, p.spec.name);
        });
    const std::string remedy = "; correct it, or say that the route is optional";
    if (taken == routing.parameters.end()) {
      return invalid_argument(
          "the route '", rule.pattern, "' to ", rule.rule, " matches no parameter", remedy);
    }
    return invalid_argument(
        "the route '",
        rule.pattern,
        "' to ",
        rule.rule,
        " is never in force: '",
        taken->spec.name,
        "' is taken by the earlier route '",
        taken->route.pattern,
        "'; put it before that one",
        remedy.substr(remedy.find(','), std::string::npos));
  }
  return {};
}

}  // namespace muster::optimizer
