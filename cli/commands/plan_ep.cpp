// SPDX-License-Identifier: Apache-2.0
// muster plan ep: buffers and wires of expert parallelism, and traces replayed under another
// planner.
#include "cli/commands/plan_ep.h"

#include "cli/plan/ep/flags.h"

#include <CLI/CLI.hpp>

#include <cstdio>
#include <memory>

namespace muster::cli {

namespace {

Status print_sizes(const EpFlags& flags) {
  MUSTER_ASSIGN_OR_RETURN(const EpQuestion question, question_of(flags));
  MUSTER_ASSIGN_OR_RETURN(const EpAnswer answer, cli::answer(question));
  std::fputs((flags.json ? to_json(question, answer) : to_text(question, answer)).c_str(), stdout);
  return {};
}

Status print_replay(const EpFlags& flags) {
  MUSTER_ASSIGN_OR_RETURN(const EpReplayOptions options, replay_options_of(flags));
  MUSTER_ASSIGN_OR_RETURN(const EpReplayReport report, replay(flags.trace, options));
  std::fputs((flags.json ? to_json(report) : to_text(report)).c_str(), stdout);
  return {};
}

void add_planner(CLI::App& command, EpFlags& flags) {
  const auto group = "Planner";
  command
      .add_option(
          "--slots", flags.slots, "Slots for experts of other ranks (default: one per own expert)")
      ->type_name("B")
      ->group(group);
  command.add_option("--padding", flags.padding, "Rows of a group are a multiple of this")
      ->type_name("P")
      ->group(group);
  command.add_option("--mode", flags.mode, "none, exact or tolerant")
      ->type_name("MODE")
      ->group(group);
  command.add_option("--tolerance", flags.tolerance, "Above capacity, 0.05 for 5 %")
      ->type_name("X")
      ->group(group);
  command.add_option("--speeds", flags.speeds, "Relative speeds of all ranks, comma-separated")
      ->delimiter(',')
      ->type_name("S,S,...")
      ->group(group);
  command.add_option("--capacity-max", flags.capacity_max, "Room for a fast rank, over the mean")
      ->type_name("X")
      ->group(group);
  command.add_option("--homes-max", flags.homes_max, "Homes that one rank may receive from")
      ->type_name("N")
      ->group(group);
}

void add_layer(CLI::App& command, EpFlags& flags) {
  const auto group = "Layer";
  command.add_option("--preset", flags.preset, "Start from a built-in layer")
      ->type_name("NAME")
      ->group(group);
  command.add_option("--experts", flags.experts, "Experts of the layer")
      ->type_name("E")
      ->group(group);
  command.add_option("--ranks", flags.ranks, "Ranks that share them")->type_name("R")->group(group);
  command.add_option("--top-k", flags.top_k, "Experts per token")->type_name("K")->group(group);
  command.add_option("--tokens", flags.tokens, "Tokens of a rank")->type_name("S")->group(group);
  command.add_option("--hidden", flags.hidden, "Width of a row")->type_name("H")->group(group);
  command.add_option("--ffn", flags.ffn, "Inner width of one expert")->type_name("N")->group(group);
  command.add_option("--projections", flags.projections, "Matrices of an expert (default: 3)")
      ->type_name("N")
      ->group(group);
  command.add_option("--type", flags.type, "Rows and weights: bf16 (default) or fp32")
      ->type_name("TYPE")
      ->group(group);
  command
      .add_flag("--compact", flags.compact, "Own experts and slots only, no rows read from home")
      ->group(group);
  command
      .add_flag(
          "--inference",
          flags.inference,
          "Without gradients; also if there are fewer slots than own experts")
      ->group(group);
}

void add_machine(CLI::App& command, EpFlags& flags) {
  const auto group = "Machine";
  command
      .add_option("--gemm-flops", flags.gemm_flops, "Products per second of a rank, such as 700T")
      ->type_name("RATE")
      ->group(group);
  command.add_option("--link", flags.link, "Bytes per second of a rank, one way, such as 450G")
      ->type_name("RATE")
      ->group(group);
  command.add_option("--plan-us", flags.plan_us, "Time of a plan (default: 10)")
      ->type_name("US")
      ->group(group);
  command.add_option("--overlap-us", flags.overlap_us, "Of the copies, behind other work")
      ->type_name("US")
      ->group(group);
  command
      .add_option("--copies-out", flags.copies_out, "Copies out of the busiest home (default: 3)")
      ->type_name("N")
      ->group(group);
  command
      .add_option(
          "--imbalance", flags.imbalance, "Also the tokens from which balancing pays at this one")
      ->type_name("X")
      ->group(group);
}

std::string ep_footer() {
  std::string text =
      "Prints memory of a rank, bytes on its wires, and with --gemm-flops and --link when "
      "balancing\n"
      "pays, from sizes alone. Bytes are decimal. docs/concepts/experts.md has the formulas.\n\n"
      "Presets:\n";
  for (const EpPreset& preset : ep_presets()) {
    std::string name{preset.name};
    name.resize(14, ' ');
    text += "  " + name + std::string{preset.summary} + "\n";
  }
  return text +
         "\nExamples:\n"
         "  muster plan ep --experts 384 --ranks 8 --top-k 8 --tokens 8192 --hidden 7168 --ffn "
         "2048\n"
         "  muster plan ep --preset moe_384 --gemm-flops 700T --link 450G --imbalance 1.2\n"
         "  muster plan ep --preset moe_896 --slots 16 --padding 64 --json\n"
         "  muster plan ep replay rank0.ep --tolerance 0.05\n";
}

constexpr const char* kReplayFooter =
    "FILE is a trace that a run recorded (moe_lm --ep-trace FILE). Its plans are made again, as "
    "they\n"
    "were and with the options given here; what is not given stays as recorded. --hidden and "
    "--type\n"
    "turn rows on the wire into bytes.\n\n"
    "Examples:\n"
    "  muster plan ep replay rank0.ep --mode none\n"
    "  muster plan ep replay rank0.ep --tolerance 0.05 --hidden 7168\n"
    "  muster plan ep replay rank0.ep --slots 8 --padding 64 --json\n"
    "  muster plan ep replay rank0.ep --speeds 1,1,1,0.8 --homes-max 2";

}  // namespace

Action declare_plan_ep(CLI::App& plan) {
  const auto flags = std::make_shared<EpFlags>();
  CLI::App* ep =
      plan.add_subcommand("ep", "Buffers and wires of expert parallelism, before any run");
  ep->footer(ep_footer());
  add_layer(*ep, *flags);
  add_planner(*ep, *flags);
  add_machine(*ep, *flags);
  ep->add_flag("--json", flags->json, "For programs");
  ep->require_subcommand(0, 1);

  CLI::App* again = ep->add_subcommand("replay", "A recorded trace under another planner");
  again->footer(kReplayFooter);
  again->add_option("FILE", flags->trace, "The trace")->type_name("FILE")->required();
  add_planner(*again, *flags);
  again->add_option("--hidden", flags->hidden, "Width of a row")->type_name("H");
  again->add_option("--type", flags->type, "Of rows: bf16 (default) or fp32")->type_name("TYPE");
  again->add_flag("--json", flags->json, "For programs");
  return [flags, again]() -> int {
    if (again->parsed()) {
      const Status status = print_replay(*flags);
      return status.ok() ? 0 : fail("plan ep replay", status);
    }
    const Status status = print_sizes(*flags);
    return status.ok() ? 0 : fail("plan ep", status);
  };
}

}  // namespace muster::cli
