// SPDX-License-Identifier: Apache-2.0
#include "trainer/moe_lm/src/update_flags.h"

#include "trainer/moe_lm/src/named_flag.h"

namespace muster::moe_lm {
namespace {

void add_rule_flags(CLI::App& app, UpdateOptions& options) {
  add_named(
      app,
      "--optimizer",
      options.rule,
      &optimizer::parse_rule,
      "rule of hidden and expert matrices: muon, adamw, adam, sgd, momentum, rmsprop; the rest "
      "follows it, or stays with adamw under muon",
      "muon");
  app.add_option(
      "--momentum",
      options.momentum,
      "momentum of muon (default 0.95) and of the momentum rule (0.9)");
  app.add_option("--adam-beta2", options.adam_beta2, "beta2 of adamw and adam")
      ->capture_default_str();
  app.add_option(
         "--weight-decay",
         options.weight_decay,
         "weight decay of hidden and expert matrices and the head")
      ->capture_default_str();
  add_named(
      app,
      "--schedule",
      options.schedule,
      &optimizer::parse_schedule,
      "learning rate after warmup: cosine, constant, linear, wsd, inverse_sqrt",
      "cosine");
  app.add_option(
         "--cooldown",
         options.cooldown,
         "steps of the cooldown of wsd; 0 selects a fifth of --steps")
      ->capture_default_str();
  app.add_flag("--zclip", options.zclip, "clip spikes of the gradient norm by its z-score");
  app.add_option(
         "--agc",
         options.agc,
         "clip each row to this times the norm of its weights, for example 0.01; 0 disables it")
      ->capture_default_str();
}

void add_muon_flags(CLI::App& app, UpdateOptions& options) {
  add_named(
      app,
      "--muon-scale",
      options.muon.scale,
      &optimizer::parse_muon_scale,
      "factor of the orthogonal update: rms_match, keller, mup",
      to_string(options.muon.scale));
  add_named(
      app,
      "--momentum-form",
      options.muon.momentum_form,
      &optimizer::parse_momentum_form,
      "momentum of muon: heavy_ball or ema",
      to_string(options.muon.momentum_form));
  add_named(
      app,
      "--ns-set",
      options.muon.newton_schulz_set,
      &optimizer::parse_newton_schulz_set,
      "Newton-Schulz coefficients: keller, you, polar_express, classic_cubic, deepseek_v4",
      to_string(options.muon.newton_schulz_set));
  app.add_option("--ns-steps", options.muon.newton_schulz_steps, "Newton-Schulz iterations")
      ->capture_default_str();
  add_named(
      app,
      "--ns-precision",
      options.muon.precision,
      &parse_matrix_precision,
      "storage of the Newton-Schulz products: fp32, bf16 (sums in fp32)",
      "fp32");
  app.add_flag("--per-head-muon", options.per_head_muon, "orthogonalise q, k and v head by head");
}

void add_storage_flags(CLI::App& app, UpdateOptions& options) {
  add_named(
      app,
      "--layout",
      options.layout,
      &optimizer::parse_layout,
      "ZeRO-1 layout: whole, flat_redundant, flat_owner, row_shards, replicated",
      to_string(options.layout));
  add_named(
      app,
      "--state-type",
      options.state_type,
      &parse_state_type,
      "storage of optimizer states: fp32, bf16, int8",
      "fp32");
  add_named(
      app,
      "--param-dtype",
      options.parameter_type,
      &parse_parameter_type,
      "storage of parameters: fp32, bf16, fp16 (the last two with fp32 masters)",
      "fp32");
  app.add_flag("--overlap", options.overlap, "move gradients and parameters while the model runs");
  app.add_option(
         "--bucket-bytes", options.bucket_bytes, "bytes to communicate at a time; 0 selects all")
      ->capture_default_str();
}

}  // namespace

void add_update_flags(CLI::App& app, UpdateOptions& options) {
  add_rule_flags(app, options);
  add_muon_flags(app, options);
  add_storage_flags(app, options);
}

}  // namespace muster::moe_lm
