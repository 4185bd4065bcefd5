#include "src/routing.h"

#include <muster/common/hash.h>

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <set>
#include <sstream>

namespace muster::optimizer {
namespace {

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

Status measure(RoutedParameter& parameter) {
  const ParameterSpec& spec = parameter.spec;
  parameter.size = 1;
  for (const std::int64_t extent : spec.shape) {
    if (extent < 1) {
      return invalid_argument(
          "parameter '" + spec.name + "' has shape " + shape_text(spec.shape) +
          "; every dimension must be at least 1");
    }
    parameter.size *= static_cast<std::size_t>(extent);
  }
  if (parameter.route.rule != Rule::kMuon) {
    return {};
  }
  const std::size_t rank = spec.shape.size();
  if (rank != 2 && rank != 3) {
    return invalid_argument(
        "parameter '" + spec.name + "' of shape " + shape_text(spec.shape) +
        " is routed to Muon, which moves matrices [rows, cols] and stacks [count, rows, cols] "
        "only; "
        "route it to AdamW");
  }
  parameter.rows = spec.shape[rank - 2];
  parameter.cols = spec.shape[rank - 1];
  parameter.matrices = rank == 3 ? static_cast<std::size_t>(spec.shape[0]) : 1;
  return {};
}

void number_groups(Routing& routing, std::span<const RouteRule> rules) {
  for (const RouteRule& rule : rules) {
    const bool used = std::any_of(
        routing.parameters.begin(), routing.parameters.end(), [&](const RoutedParameter& p) {
          return p.route.group == rule.group;
        });
    const auto& names = routing.group_names;
    if (used && std::find(names.begin(), names.end(), rule.group) == names.end()) {
      routing.group_names.push_back(rule.group);
    }
  }
  for (RoutedParameter& parameter : routing.parameters) {
    const auto& names = routing.group_names;
    const auto at = std::find(names.begin(), names.end(), parameter.route.group);
    parameter.group_index = static_cast<int>(at - names.begin());
  }
}

Status require(bool holds, const std::string& sentence) {
  return holds ? Status{} : invalid_argument(sentence);
}

bool is_fraction(double value) {
  return value >= 0 && value < 1;
}

bool is_rate(double value) {
  return std::isfinite(value) && value >= 0;
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
  std::set<std::string> names;
  for (ParameterSpec& spec : specs) {
    if (spec.name.empty()) {
      return invalid_argument("a parameter has an empty name; checkpoints need one");
    }
    if (!names.insert(spec.name).second) {
      return invalid_argument("parameter name '" + spec.name + "' is used twice");
    }
    const auto rule = std::find_if(rules.begin(), rules.end(), [&](const RouteRule& candidate) {
      return matches(candidate.pattern, spec.name);
    });
    if (rule == rules.end()) {
      return invalid_argument(
          "parameter '" + spec.name +
          "' matches no route; add a rule that says AdamW or Muon for it");
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

Status validate(const OptimizerOptions& options) {
  const AdamWOptions& adamw = options.adamw;
  MUSTER_RETURN_IF_ERROR(require(is_fraction(adamw.beta1), "adamw.beta1 must be in [0, 1)"));
  MUSTER_RETURN_IF_ERROR(require(is_fraction(adamw.beta2), "adamw.beta2 must be in [0, 1)"));
  MUSTER_RETURN_IF_ERROR(require(is_rate(adamw.epsilon), "adamw.epsilon must be 0 or more"));
  const MuonOptions& muon = options.muon;
  MUSTER_RETURN_IF_ERROR(require(is_fraction(muon.momentum), "muon.momentum must be in [0, 1)"));
  MUSTER_RETURN_IF_ERROR(require(
      muon.newton_schulz_steps >= 1 && muon.newton_schulz_steps <= 100,
      "muon.newton_schulz_steps must be in [1, 100]"));
  MUSTER_RETURN_IF_ERROR(require(is_rate(muon.rms_scale), "muon.rms_scale must be 0 or more"));
  const ScheduleOptions& schedule = options.schedule;
  MUSTER_RETURN_IF_ERROR(
      require(is_rate(schedule.learning_rate), "schedule.learning_rate must be 0 or more"));
  MUSTER_RETURN_IF_ERROR(
      require(schedule.warmup_steps >= 0, "schedule.warmup_steps must be 0 or more"));
  MUSTER_RETURN_IF_ERROR(
      require(is_rate(schedule.final_ratio), "schedule.final_ratio must be 0 or more"));
  MUSTER_RETURN_IF_ERROR(require(is_rate(options.clip_norm), "clip_norm must be 0 (off) or more"));
  for (const RouteRule& rule : options.routes) {
    MUSTER_RETURN_IF_ERROR(require(
        is_rate(rule.weight_decay) && is_rate(rule.learning_rate_scale),
        "route '" + rule.pattern + "': weight_decay and learning_rate_scale must be 0 or more"));
  }
  return {};
}

std::uint64_t plan_hash(const Routing& routing, const OptimizerOptions& options) {
  std::ostringstream text;
  text << std::setprecision(17);
  for (const RoutedParameter& parameter : routing.parameters) {
    const RouteRule& rule = parameter.route;
    text << parameter.spec.name << shape_text(parameter.spec.shape)
         << static_cast<int>(parameter.spec.placement) << ' ' << static_cast<int>(rule.rule) << ' '
         << rule.group << ' ' << rule.weight_decay << ' ' << rule.learning_rate_scale << '\n';
  }
  const AdamWOptions& adamw = options.adamw;
  const MuonOptions& muon = options.muon;
  const ScheduleOptions& schedule = options.schedule;
  text << adamw.beta1 << ' ' << adamw.beta2 << ' ' << adamw.epsilon << ' ' << muon.momentum << ' '
       << muon.nesterov << ' ' << muon.newton_schulz_steps << ' '
       << static_cast<int>(muon.newton_schulz_set) << ' ' << muon.rms_scale << ' '
       << schedule.learning_rate << ' ' << schedule.warmup_steps << ' ' << schedule.total_steps
       << ' ' << schedule.final_ratio << ' ' << options.clip_norm;
  const std::string bytes = text.str();
  const std::uint64_t hash = hash64(std::as_bytes(std::span{bytes}));
  return hash == 0 ? 1 : hash;  // 0 is what a rank sends whose parameters were refused.
}

}  // namespace muster::optimizer
