// SPDX-License-Identifier: Apache-2.0
#include "trainer/moe_lm/src/command_line.h"

#include "trainer/moe_lm/src/expert_flags.h"
#include "trainer/moe_lm/src/update_flags.h"

#include <muster/agent/agent.h>

#include <CLI/CLI.hpp>

#include <string>
#include <utility>

namespace muster::moe_lm {
namespace {

void add_model_flags(CLI::App& app, ModelShape& model) {
  app.add_option("--layers", model.layers, "transformer blocks")->capture_default_str();
  app.add_option("--d-model", model.d_model, "width of the residual stream")->capture_default_str();
  app.add_option("--heads", model.heads, "attention heads per block")->capture_default_str();
  app.add_option("--experts", model.experts, "experts per block")->capture_default_str();
  app.add_option("--top-k", model.top_k, "experts each token visits")->capture_default_str();
  app.add_option("--ffn", model.ffn, "hidden width of an expert")->capture_default_str();
  app.add_option(
         "--shared-experts",
         model.shared_experts,
         "width of an expert that all tokens visit, in widths of an expert; 0 disables it")
      ->capture_default_str();
  app.add_option("--seq", model.sequence, "bytes per sequence")->capture_default_str();
}

void add_attention_flags(CLI::App& app, TrainOptions& options) {
  app.add_option_function<std::string>(
         "--attention",
         [&options](const std::string& argument) {
           auto schedule = load_attention(argument);
           if (!schedule) {
             throw CLI::ValidationError{"--attention", schedule.status().message()};
           }
           options.attention = std::move(*schedule);
         },
         "full; block attention in all layers as moba:BLOCK,TOPK or moba:BLOCK,TOPK,last_full=N; "
         "or "
         "a FILE of rules by step and layer, such as: steps 0:900 layers 0-2 moba 512 3")
      ->default_str("full");
  app.add_flag(
      "--allow-attention-change",
      options.allow_attention_change,
      "resume from a checkpoint that was saved with another --attention");
}

void add_training_flags(CLI::App& app, TrainOptions& options) {
  CLI::Option* data = app.add_option(
      "--data", options.data, "text to train on: any file, or a folder of *.txt files");
  CLI::Option* needle = app.add_option(
      "--needle",
      options.needle_pairs,
      "train on recalling the values of this many keys hidden in filler, instead of text");
  needle->check(CLI::PositiveNumber)->excludes(data);
  app.callback([=] {
    if (data->count() + needle->count() == 0) {
      throw CLI::RequiredError{"--data or --needle"};
    }
  });
  app.add_option("--steps", options.steps, "optimizer steps")->capture_default_str();
  app.add_option("--seed", options.seed, "seed of initial weights and data order")
      ->capture_default_str();
  app.add_option("--batch", options.batch, "sequences per step, over all ranks")
      ->capture_default_str();
  app.add_option("--micro-batches", options.micro_batches, "passes per step and rank")
      ->capture_default_str();
  app.add_option(
         "--ep-size",
         options.ep_size,
         "ranks that share one set of experts; 0 selects 2 if that fits, else 1")
      ->capture_default_str();
  app.add_option(
         "--loss-every",
         options.loss_every,
         "compute loss on every n-th byte of a sequence only; 1 uses all")
      ->capture_default_str();
  app.add_option("--lr", options.learning_rate, "peak learning rate")->capture_default_str();
  app.add_option("--warmup", options.warmup, "steps of linear warmup")->capture_default_str();
  app.add_option("--clip-norm", options.clip_norm, "global gradient norm limit; 0 disables it")
      ->capture_default_str();
  app.add_option("--qk-clip-tau", options.qk_clip_tau, "attention logit limit; 0 disables it")
      ->capture_default_str();
}

struct FaultTexts {
  std::string nan;
  std::string nan_forward;
  std::string kill;
};

const CLI::Validator kFaultFormat{
    [](std::string& text) {
      return parse_fault_point(text) ? std::string{}
                                     : "'" + text + "' is not RANK:STEP, for example 2:40";
    },
    "RANK:STEP"};

void add_run_flags(CLI::App& app, TrainOptions& options, FaultTexts& faults) {
  app.add_option(
         "--checkpoint-interval",
         options.checkpoint_interval,
         "steps between checkpoints; 0 saves on command only")
      ->capture_default_str();
  app.add_option(
         "--max-skips",
         options.skips_max,
         "end with exit code 93 once this many of the last 200 steps were skipped; 0 disables it")
      ->capture_default_str();
  app.add_option(
         "--print-every", options.print_every, "steps between progress lines; 0 disables them")
      ->capture_default_str();
  app.add_option(
         "--eval-every",
         options.eval_every,
         "steps between evaluations on held-out sequences, also at the end; 0 disables them")
      ->capture_default_str();
  app.add_option(
         "--eval-sequences", options.eval_sequences, "sequences per evaluation, over all ranks")
      ->capture_default_str();
  app.add_option("--log-loss", options.log_loss, "write step,loss lines to this file (rank 0)");
  app.add_option("--dump-params", options.dump_params, "write the final parameters to FILE.rank-R");
  app.add_option("--inject-nan", faults.nan, "make a gradient NaN there, in the first launch only")
      ->check(kFaultFormat);
  app.add_option(
         "--inject-nan-forward",
         faults.nan_forward,
         "the same with an activation of the first layer")
      ->check(kFaultFormat);
  app.add_option("--inject-kill", faults.kill, "kill -9 that rank there, in the first launch only")
      ->check(kFaultFormat);
  app.add_option(
      "--leave-out-batch",
      options.leave_out_batch,
      "train as if this batch did not exist: one step fewer, same schedule");
}

}  // namespace

CommandLine parse_command_line(int argc, const char* const* argv) {
  CommandLine line;
  FaultTexts faults;
  CLI::App app{
      "Trains a mixture-of-experts byte-level language model under muster. Start one process per "
      "rank with `muster run`; alone it is a world of one.",
      "moe_lm"};
  add_model_flags(app, line.options.model);
  add_training_flags(app, line.options);
  add_attention_flags(app, line.options);
  add_expert_flags(app, line.options.experts);
  app.add_option(
         "--bias-rate",
         line.options.bias_rate,
         "step size of the router bias that balances load; 0 disables it")
      ->capture_default_str();
  add_update_flags(app, line.options.update);
  add_run_flags(app, line.options, faults);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // A launcher must not retry a mistyped command.
    line.exit_code = app.exit(error) == 0 ? agent::kExitDone : agent::kExitNeverRestart;
    return line;
  }
  line.options.inject_nan = parse_fault_point(faults.nan);
  line.options.inject_nan_forward = parse_fault_point(faults.nan_forward);
  line.options.inject_kill = parse_fault_point(faults.kill);
  return line;
}

}  // namespace muster::moe_lm
