// SPDX-License-Identifier: Apache-2.0
// The model file. YAML is read by yaml-cpp, of which JSON is a part.
#include "cli/plan/model.h"

#include <muster/common/file.h>
#include <muster/common/text.h>

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <optional>
#include <set>
#include <type_traits>
#include <utility>
#include <vector>

namespace muster::cli {

namespace {

using optimizer::OptimizerOptions;
using optimizer::ParameterSpec;
using optimizer::Placement;
using optimizer::RouteRule;
using optimizer::StateType;

constexpr std::size_t kFileBytesMax = std::size_t{16} << 20;
constexpr std::int64_t kParametersMax = 1'000'000;

// A mistake in the file, thrown to parse_model.
struct Mistake {
  int line{0};  // from 1
  std::string what;
};

[[noreturn]] void refuse(const YAML::Node& node, const std::string& what) {
  throw Mistake{node.Mark().line + 1, what};
}

// YAML reads 010 as 8.
bool looks_octal(const YAML::Node& node) {
  const std::string text = node.IsScalar() ? node.Scalar() : "";
  return text.size() > 1 && text[0] == '0' && text[1] >= '0' && text[1] <= '9';
}

template <typename T>
T read(const YAML::Node& node, const std::string& key, const char* expected) {
  if (std::is_integral_v<T> && looks_octal(node)) {
    refuse(
        node,
        concat("'", key, "' must be ", expected, " without leading zeros, got ", node.Scalar()));
  }
  if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) {
    // YAML's own reading of numbers listens to the locale.
    if (const auto number = node.IsScalar() ? parse<T>(node.Scalar()) : std::nullopt) {
      return *number;
    }
  }
  try {
    return node.as<T>();
  } catch (const YAML::Exception&) {
    refuse(node, "'" + key + "' must be " + expected);
  }
}

void require_keys(
    const YAML::Node& map, const std::string& where, std::initializer_list<const char*> allowed) {
  if (!map.IsMap()) {
    refuse(map, where + " must be a map");
  }
  std::set<std::string> seen;
  for (const auto& entry : map) {
    const auto key = read<std::string>(entry.first, where, "a map with names as keys");
    if (!seen.insert(key).second) {
      refuse(entry.first, concat("'", key, "' is given twice"));
    }
    if (std::find(allowed.begin(), allowed.end(), key) == allowed.end()) {
      std::string known;
      for (const char* name : allowed) {
        known += (known.empty() ? "" : ", ") + std::string{name};
      }
      refuse(entry.first, concat("'", key, "' is not a key of ", where, "; known are ", known));
    }
  }
}

// Leaves `target` alone when the key is absent.
template <typename T>
void read_into(const YAML::Node& map, const char* key, const char* expected, T& target) {
  if (map[key]) {
    target = read<T>(map[key], key, expected);
  }
}

// Names that a parser of the optimizer knows; its sentence lists them.
template <typename T>
void read_name(
    const YAML::Node& map, const char* key, Expected<T> (*parse)(const std::string&), T& target) {
  if (!map[key]) {
    return;
  }
  auto value = parse(read<std::string>(map[key], key, "a name"));
  if (!value) {
    refuse(map[key], std::string{"'"} + key + "': " + value.status().message());
  }
  target = *value;
}

template <typename T>
using Names = std::initializer_list<std::pair<const char*, T>>;

template <typename T>
void read_choice(const YAML::Node& map, const char* key, Names<T> names, T& target) {
  if (!map[key]) {
    return;
  }
  const auto given = read<std::string>(map[key], key, "a name");
  std::string known;
  for (const auto& [name, value] : names) {
    if (given == name) {
      target = value;
      return;
    }
    known += (known.empty() ? "" : ", ") + std::string{name};
  }
  refuse(map[key], "'" + given + "' is not a " + key + "; known are " + known);
}

std::int64_t read_count(
    const YAML::Node& map, const char* key, std::int64_t otherwise, std::int64_t most) {
  std::int64_t count = otherwise;
  read_into(map, key, "a whole number", count);
  if (count < 1 || count > most) {
    refuse(map[key], std::string{"'"} + key + "' must be from 1 to " + std::to_string(most));
  }
  return count;
}

ParameterSpec read_parameter(const YAML::Node& node) {
  ParameterSpec spec;
  if (!node["name"] || !node["shape"]) {
    refuse(node, "a parameter needs a name and a shape");
  }
  spec.name = read<std::string>(node["name"], "name", "text");
  spec.shape = read<std::vector<std::int64_t>>(node["shape"], "shape", "a list of whole numbers");
  read_choice(
      node,
      "dtype",
      Names<DType>{
          {"fp32", DType::kFloat32}, {"bf16", DType::kBFloat16}, {"fp16", DType::kFloat16}},
      spec.dtype);
  read_choice(
      node,
      "placement",
      Names<Placement>{{"replicated", Placement::kReplicated}, {"expert", Placement::kExpert}},
      spec.placement);
  if (const YAML::Node blocks = node["blocks"]) {
    require_keys(blocks, "blocks", {"rows", "repeats", "merge_repeats"});
    read_into(blocks, "rows", "a list of whole numbers", spec.blocks.rows);
    read_into(blocks, "repeats", "a whole number", spec.blocks.repeats);
    read_into(blocks, "merge_repeats", "true or false", spec.blocks.merge_repeats);
  }
  return spec;
}

std::string numbered(std::string name, std::int64_t index) {
  const std::string number = std::to_string(index);
  for (std::size_t at = name.find("{i}"); at != std::string::npos; at = name.find("{i}", at)) {
    name.replace(at, 3, number);
  }
  return name;
}

// One parameter, or a group of them, `count` times over.
void read_entry(const YAML::Node& entry, std::vector<ParameterSpec>& specs) {
  const bool is_group = entry.IsMap() && entry["parameters"];
  if (is_group) {
    require_keys(entry, "a group of parameters", {"count", "parameters"});
  } else {
    require_keys(entry, "a parameter", {"name", "shape", "dtype", "placement", "blocks", "count"});
  }
  std::vector<ParameterSpec> pattern;
  if (!is_group) {
    pattern.push_back(read_parameter(entry));
  }
  for (const auto& member : is_group ? entry["parameters"] : YAML::Node{}) {
    require_keys(
        member, "a parameter of a group", {"name", "shape", "dtype", "placement", "blocks"});
    pattern.push_back(read_parameter(member));
  }
  const std::int64_t count = read_count(entry, "count", 1, kParametersMax);
  for (const ParameterSpec& spec : pattern) {
    if (count > 1 && spec.name.find("{i}") == std::string::npos) {
      refuse(entry, "'" + spec.name + "' is repeated, so its name needs an {i}");
    }
  }
  if (static_cast<std::int64_t>(specs.size() + pattern.size()) > kParametersMax / count) {
    refuse(entry, "the model has more than " + std::to_string(kParametersMax) + " parameters");
  }
  for (std::int64_t index = 0; index < count; ++index) {
    for (ParameterSpec spec : pattern) {
      spec.name = numbered(std::move(spec.name), index);
      specs.push_back(std::move(spec));
    }
  }
}

RouteRule read_route(const YAML::Node& node) {
  require_keys(
      node,
      "a route",
      {"pattern", "rule", "group", "weight_decay", "lr_scale", "state_type", "optional"});
  if (!node["pattern"] || !node["rule"]) {
    refuse(node, "a route needs a pattern and a rule");
  }
  RouteRule route;
  route.pattern = read<std::string>(node["pattern"], "pattern", "text");
  read_name(node, "rule", optimizer::parse_rule, route.rule);
  route.group = optimizer::to_string(route.rule);
  read_into(node, "group", "text", route.group);
  read_into(node, "weight_decay", "a number", route.weight_decay);
  read_into(node, "lr_scale", "a number", route.learning_rate_scale);
  read_choice(
      node,
      "state_type",
      Names<StateType>{
          {"fp32", StateType::kFloat32},
          {"bf16", StateType::kBFloat16},
          {"int8", StateType::kInt8Block}},
      route.state_type);
  read_into(node, "optional", "true or false", route.optional);
  return route;
}

void read_muon(const YAML::Node& node, optimizer::MuonOptions& muon) {
  using kernels::NewtonSchulzForm;
  require_keys(
      node,
      "muon",
      {"momentum",
       "nesterov",
       "steps",
       "set",
       "scale",
       "rms_scale",
       "momentum_form",
       "polar_express_safety",
       "form",
       "precision"});
  read_into(node, "momentum", "a number", muon.momentum);
  read_into(node, "nesterov", "true or false", muon.nesterov);
  read_into(node, "steps", "a whole number", muon.newton_schulz_steps);
  read_into(node, "rms_scale", "a number", muon.rms_scale);
  read_into(node, "polar_express_safety", "a number", muon.polar_express_safety);
  read_name(node, "set", optimizer::parse_newton_schulz_set, muon.newton_schulz_set);
  read_name(node, "scale", optimizer::parse_muon_scale, muon.scale);
  read_name(node, "momentum_form", optimizer::parse_momentum_form, muon.momentum_form);
  read_choice(
      node,
      "form",
      Names<NewtonSchulzForm>{
          {"auto", NewtonSchulzForm::kAuto},
          {"standard", NewtonSchulzForm::kStandard},
          {"symmetric", NewtonSchulzForm::kSymmetric},
          {"gram", NewtonSchulzForm::kGram}},
      muon.form);
  read_choice(
      node,
      "precision",
      Names<DType>{{"fp32", DType::kFloat32}, {"bf16", DType::kBFloat16}},
      muon.precision);
}

void read_mib(const YAML::Node& map, const char* key, std::size_t& bytes) {
  if (map[key]) {
    const auto mib = read<std::int64_t>(map[key], key, "a whole number of MiB");
    if (mib < 0 || mib > (std::int64_t{1} << 30)) {
      refuse(map[key], std::string{"'"} + key + "' must be from 0 to 2^30 MiB");
    }
    bytes = static_cast<std::size_t>(mib) << 20;
  }
}

PlannedModel read_document(const YAML::Node& document, const std::string& name) {
  require_keys(
      document,
      "the model file",
      {"model",
       "ranks",
       "expert_ranks",
       "layout",
       "bucket_mib",
       "exchange_mib",
       "cut_granularity",
       "parameters",
       "routes",
       "muon"});
  PlannedModel model;
  model.name = name;
  read_into(document, "model", "text", model.name);
  constexpr std::int64_t kRanksMax = std::numeric_limits<int>::max();
  model.ranks = static_cast<int>(read_count(document, "ranks", model.ranks, kRanksMax));
  if (document["expert_ranks"]) {
    model.expert_ranks = static_cast<int>(read_count(document, "expert_ranks", 1, kRanksMax));
  }
  OptimizerOptions& options = model.options;
  read_name(document, "layout", optimizer::parse_layout, options.layout);
  read_mib(document, "bucket_mib", options.bucket_bytes);
  read_mib(document, "exchange_mib", options.exchange_bytes);
  read_into(document, "cut_granularity", "a whole number", options.cut_granularity);
  for (const char* key : {"parameters", "routes"}) {
    if (!document[key] || !document[key].IsSequence()) {
      refuse(document, std::string{"the model file needs a list of "} + key);
    }
  }
  for (const auto& entry : document["parameters"]) {
    read_entry(entry, model.specs);
  }
  for (const auto& entry : document["routes"]) {
    options.routes.push_back(read_route(entry));
  }
  if (document["muon"]) {
    read_muon(document["muon"], options.muon);
  }
  return model;
}

}  // namespace

Expected<PlannedModel> parse_model(const std::string& text, const std::string& name) {
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(text);
    if (documents.size() > 1) {
      refuse(documents[1], "a second document would not be read; join them");
    }
    return read_document(documents.empty() ? YAML::Node{} : documents[0], name);
  } catch (const Mistake& mistake) {
    // YAML has no position for what is missing, such as the root of an empty file.
    return invalid_argument(name, ":", std::max(mistake.line, 1), ": ", mistake.what);
  } catch (const YAML::Exception& error) {
    return invalid_argument(name, ":", error.mark.line + 1, ": not YAML or JSON: ", error.msg);
  }
}

Expected<PlannedModel> read_model(const std::filesystem::path& path) {
  MUSTER_ASSIGN_OR_RETURN(const std::string text, read_file(path, kFileBytesMax));
  return parse_model(text, path.filename().string());
}

}  // namespace muster::cli
