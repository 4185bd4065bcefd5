// SPDX-License-Identifier: Apache-2.0
// muster plan: what a ZeRO-1 layout costs, before anything runs; expert parallelism in plan_ep.cpp.
#include "cli/commands/plan_ep.h"
#include "cli/commands/subcommands.h"
#include "cli/plan/comparison.h"
#include "cli/plan/model.h"
#include "cli/plan/plan_json.h"

#include <muster/common/text.h>
#include <muster/optimizer/plan.h>

#include <CLI/CLI.hpp>

#include <array>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>

namespace muster::cli {

namespace {

using optimizer::Layout;
using optimizer::PlanReport;
using optimizer::StateType;

constexpr std::array kLayouts{
    Layout::kWholeMatrices,
    Layout::kFlatOwner,
    Layout::kFlatRedundant,
    Layout::kRowShards,
    Layout::kReplicated};

constexpr int kPlannedRanksMax = 1 << 20;  // some 100 bytes each

struct PlanFlags {
  std::string file;
  std::string preset;
  std::string layout;        // empty: the file's
  std::string state_type;    // empty: the routes'
  std::optional<int> ranks;  // without: the file's
  std::optional<int> expert_ranks;
  bool json{false};
  bool print_model{false};
};

Expected<PlannedModel> load(const PlanFlags& flags) {
  if (flags.file.empty() == flags.preset.empty()) {
    return invalid_argument(
        "give a model file or --preset NAME, one of the two; 'muster plan optimizer --help' shows "
        "how");
  }
  if (flags.preset.empty()) {
    return read_model(flags.file);
  }
  MUSTER_ASSIGN_OR_RETURN(const Preset preset, find_preset(flags.preset));
  return parse_model(std::string{preset.text}, std::string{preset.name});
}

Status set_state_type(PlannedModel& model, const std::string& name) {
  if (name.empty()) {
    return {};
  }
  StateType type = StateType::kFloat32;
  if (name == "bf16") {
    type = StateType::kBFloat16;
  } else if (name == "int8") {
    type = StateType::kInt8Block;
  } else if (name != "fp32") {
    return invalid_argument("--state-type '" + name + "' is none of fp32, bf16 and int8");
  }
  for (optimizer::RouteRule& route : model.options.routes) {
    route.state_type = type;
  }
  return {};
}

Expected<std::vector<Layout>> layouts_of(const PlanFlags& flags, const PlannedModel& model) {
  if (flags.layout == "all") {
    return std::vector<Layout>{kLayouts.begin(), kLayouts.end()};
  }
  if (flags.layout.empty()) {
    return std::vector{model.options.layout};
  }
  const auto layout = optimizer::parse_layout(flags.layout);
  if (!layout) {
    return invalid_argument("--layout: " + layout.status().message() + ", or all");
  }
  return std::vector{*layout};
}

// "7.24e9", or all digits of a small one.
std::string count_text(double count) {
  if (count < 1e6) {
    return std::to_string(static_cast<std::int64_t>(count));
  }
  const int exponent = static_cast<int>(std::floor(std::log10(count)));
  return concat(fixed(count / std::pow(10.0, exponent), 2), 'e', exponent);
}

std::string headline(const PlannedModel& model, int ranks, int expert_ranks) {
  double elements = 0;
  for (const optimizer::ParameterSpec& spec : model.specs) {
    double size = 1;
    for (const std::int64_t extent : spec.shape) {
      size *= static_cast<double>(extent);
    }
    elements += size;
  }
  std::string text = concat(
      model.name,
      ": ",
      count_text(elements),
      " parameters in ",
      model.specs.size(),
      model.specs.size() == 1 ? " tensor" : " tensors",
      ", ",
      ranks,
      ranks == 1 ? " rank" : " ranks");
  if (expert_ranks != ranks) {
    text += concat(
        ", experts in ",
        ranks / expert_ranks,
        " parts on ",
        expert_ranks,
        expert_ranks == 1 ? " rank each" : " ranks each");
  }
  return text + "\n\n";
}

Status print_plan(const PlanFlags& flags) {
  MUSTER_ASSIGN_OR_RETURN(PlannedModel model, load(flags));
  MUSTER_RETURN_IF_ERROR(set_state_type(model, flags.state_type));
  MUSTER_ASSIGN_OR_RETURN(const std::vector<Layout> layouts, layouts_of(flags, model));
  const int ranks = flags.ranks.value_or(model.ranks);
  const int expert_ranks =
      flags.expert_ranks.value_or(model.expert_ranks != 0 ? model.expert_ranks : ranks);
  if (ranks > kPlannedRanksMax) {
    return invalid_argument("--ranks ", ranks, " is more than a plan takes, ", kPlannedRanksMax);
  }
  std::vector<PlanReport> reports;
  for (const Layout layout : layouts) {
    model.options.layout = layout;
    MUSTER_ASSIGN_OR_RETURN(auto specs, local_specs(model, ranks, expert_ranks));
    MUSTER_ASSIGN_OR_RETURN(
        PlanReport report,
        optimizer::report_plan(std::move(specs), model.options, ranks, expert_ranks));
    reports.push_back(std::move(report));
  }
  if (flags.json) {
    std::fputs(plan_json(model, ranks, expert_ranks, reports).c_str(), stdout);
    return {};
  }
  const std::string body = reports.size() > 1 ? compare(reports) : to_text(reports.front());
  std::fputs((headline(model, ranks, expert_ranks) + body).c_str(), stdout);
  return {};
}

Status print_model(const PlanFlags& flags) {
  if (flags.preset.empty()) {
    return invalid_argument("--print-model needs --preset NAME");
  }
  MUSTER_ASSIGN_OR_RETURN(const Preset preset, find_preset(flags.preset));
  std::fwrite(preset.text.data(), 1, preset.text.size(), stdout);
  return {};
}

std::string plan_footer() {
  std::string text =
      "Prints memory, Newton-Schulz work and traffic of every rank for a model and a ZeRO-1 "
      "layout,\n"
      "from shapes alone: nothing is allocated and nothing runs.\n\n"
      "Layouts: whole (default), flat_owner, flat_redundant, row_shards, replicated; all compares\n"
      "them in one table. docs/concepts/zero1_layouts.md explains layouts, figures and the model "
      "file.\n\n"
      "Presets:\n";
  for (const Preset& preset : presets()) {
    std::string name{preset.name};
    name.resize(10, ' ');
    text += "  " + name + std::string{preset.summary} + "\n";
  }
  return text +
         "\nExamples:\n"
         "  muster plan optimizer --preset dense_7b --ranks 64\n"
         "  muster plan optimizer --preset moe --layout all\n"
         "  muster plan optimizer --preset dense_7b --print-model > model.yaml\n"
         "  muster plan optimizer model.yaml --ranks 256 --state-type int8 --json";
}

}  // namespace

Action declare_plan(CLI::App& command, const Tail& /*tail*/) {
  const auto flags = std::make_shared<PlanFlags>();
  command.require_subcommand(1);
  command.footer(
      "Examples:\n"
      "  muster plan optimizer --preset dense_7b --layout all\n"
      "  muster plan ep --preset moe_384 --gemm-flops 700T --link 450G");
  const Action run_ep = declare_plan_ep(command);
  CLI::App* plan = command.add_subcommand(
      "optimizer", "Memory, work and traffic of a ZeRO-1 layout before any run");
  plan->footer(plan_footer());
  plan->add_option("MODEL", flags->file, "Model file, YAML or JSON")->type_name("FILE");
  plan->add_option("--preset", flags->preset, "A built-in model instead of a file")
      ->type_name("NAME");
  plan->add_option("--ranks", flags->ranks, "Ranks of the run (default: the model's)")
      ->type_name("N");
  plan->add_option(
          "--expert-ranks",
          flags->expert_ranks,
          "Ranks that hold the same experts: ranks / expert-parallel size")
      ->type_name("N");
  plan->add_option("--layout", flags->layout, "One layout, or all (default: the model's)")
      ->type_name("NAME");
  plan->add_option("--state-type", flags->state_type, "fp32, bf16 or int8 states for every route")
      ->type_name("TYPE");
  plan->add_flag("--json", flags->json, "For programs");
  plan->add_flag("--print-model", flags->print_model, "Print the preset as a model file");
  return [flags, plan, run_ep]() -> int {
    if (!plan->parsed()) {
      return run_ep();
    }
    const Status status = flags->print_model ? print_model(*flags) : print_plan(*flags);
    return status.ok() ? 0 : fail("plan optimizer", status);
  };
}

}  // namespace muster::cli
