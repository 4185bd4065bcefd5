// SPDX-License-Identifier: Apache-2.0
#include "trainer/moe_lm/src/options.h"

#include "trainer/moe_lm/src/needle.h"

#include <muster/comm/symmetric_heap.h>
#include <muster/common/text.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <fstream>
#include <iterator>
#include <utility>

namespace muster::moe_lm {
namespace {

Status validate_positive(const TrainOptions& options) {
  const ModelShape& model = options.model;
  const std::array<std::pair<const char*, std::int64_t>, 10> sizes{
      {{"--layers", model.layers},
       {"--d-model", model.d_model},
       {"--heads", model.heads},
       {"--experts", model.experts},
       {"--top-k", model.top_k},
       {"--ffn", model.ffn},
       {"--seq", model.sequence},
       {"--steps", options.steps},
       {"--batch", options.batch},
       {"--micro-batches", options.micro_batches}}};
  for (const auto& [flag, value] : sizes) {
    MUSTER_RETURN_IF_ERROR(require(value >= 1, concat(flag, " must be at least 1, got ", value)));
  }
  return {};
}

std::string divides(const char* flag, std::int64_t value, const char* what, std::int64_t by) {
  return std::string{flag} + " " + std::to_string(value) + " cannot be divided by " + what + " " +
         std::to_string(by);
}

Status validate_world(const TrainOptions& options, int world_size) {
  const std::int64_t batch = options.batch;
  MUSTER_RETURN_IF_ERROR(require(
      batch % world_size == 0,
      divides("--batch", batch, "the world size", world_size),
      "; every rank takes an equal part"));
  const std::int64_t local = batch / world_size;
  MUSTER_RETURN_IF_ERROR(require(
      local % options.micro_batches == 0,
      "the ",
      local,
      " sequences of a rank cannot be divided by --micro-batches ",
      options.micro_batches));
  MUSTER_RETURN_IF_ERROR(require(
      options.ep_size >= 1 && world_size % options.ep_size == 0,
      "world size ",
      world_size,
      " does not fit the model: it cannot be divided by ",
      "--ep-size ",
      options.ep_size));
  return require(
      options.model.experts % options.ep_size == 0,
      divides("--experts", options.model.experts, "--ep-size", options.ep_size),
      "; every rank of an expert group holds an equal part");
}

Status validate_fault(const char* flag, const std::optional<FaultPoint>& fault, int world_size) {
  return require(
      !fault || fault->rank < world_size,
      std::string{flag},
      " names rank ",
      fault ? fault->rank : 0,
      ", but the world has ",
      world_size,
      " ranks, counted from 0");
}

Status validate_attention(const TrainOptions& options) {
  const ModelShape& model = options.model;
  MUSTER_RETURN_IF_ERROR(options.attention.validate(model.layers).context("--attention"));
  for (const agent::AttentionRule& rule : options.attention.rules) {
    MUSTER_RETURN_IF_ERROR(require(
        !rule.moba || (model.head_dim() >= 8 && model.head_dim() <= 256),
        "--attention with moba needs heads of 8 to 256 elements; --d-model / --heads is ",
        model.head_dim()));
  }
  return {};
}

// Checks the limits of the expert exchange: docs/concepts/experts.md.
Status validate_exchange(const TrainOptions& options) {
  const ModelShape& model = options.model;
  if (options.experts.exchange != ExpertExchange::kMuster) {
    return {};
  }
  MUSTER_RETURN_IF_ERROR(require(
      options.update.parameter_type != DType::kFloat16,
      "--ep muster moves fp32 or bf16 rows; use --param-dtype bf16 or fp32, or --ep alltoall"));
  const std::int64_t bytes = size_bytes(
      options.update.parameter_type, model.experts / options.ep_size * model.d_model * model.ffn);
  return require(
      bytes % static_cast<std::int64_t>(comm::kSymmetricGranularity) == 0,
      "--ep muster needs the experts of a rank to fill whole pages: experts / ep-size * d-model * "
      "ffn * bytes = ",
      bytes,
      " is not a multiple of ",
      comm::kSymmetricGranularity,
      "; change --d-model or --ffn");
}

Status validate_task(const TrainOptions& options, int world_size) {
  if (options.needle_pairs != 0) {
    MUSTER_RETURN_IF_ERROR(validate_needle(options.needle_pairs, options.model.sequence));
    MUSTER_RETURN_IF_ERROR(require(
        options.loss_every == 1,
        "--loss-every applies to text only; --needle has loss on its answers"));
  }
  MUSTER_RETURN_IF_ERROR(
      require(options.eval_every >= 0, "--eval-every must be 0 (never) or more"));
  return require(
      options.eval_every == 0 ||
          (options.eval_sequences >= 1 && options.eval_sequences % world_size == 0),
      "--eval-sequences ",
      options.eval_sequences,
      " must be 1 or more for every rank of the world size ",
      world_size);
}

}  // namespace

std::int64_t tokens_with_loss(const TrainOptions& options) {
  return options.needle_pairs > 0 ? kQuestionsPerNeedle * options.needle_pairs
                                  : options.model.sequence / options.loss_every;
}

void choose_ep_size(TrainOptions& options, int world_size) {
  if (options.ep_size == 0) {
    const bool two_fit = world_size % 2 == 0 && options.model.experts % 2 == 0;
    options.ep_size = two_fit ? 2 : 1;
  }
}

Status validate(const TrainOptions& options, int world_size) {
  MUSTER_RETURN_IF_ERROR(validate_positive(options));
  const ModelShape& model = options.model;
  MUSTER_RETURN_IF_ERROR(require(
      model.d_model % model.heads == 0 && model.head_dim() % 2 == 0,
      divides("--d-model", model.d_model, "--heads", model.heads),
      " into heads of an even size, which rotary positions need"));
  MUSTER_RETURN_IF_ERROR(require(
      model.top_k <= model.experts,
      "--top-k ",
      model.top_k,
      " is more than --experts ",
      model.experts));
  MUSTER_RETURN_IF_ERROR(require(
      std::isfinite(options.learning_rate) && options.learning_rate > 0,
      "--lr must be a number above 0"));
  MUSTER_RETURN_IF_ERROR(require(
      std::isfinite(options.qk_clip_tau) && options.qk_clip_tau >= 0,
      "--qk-clip-tau must be 0 (off) or more"));
  MUSTER_RETURN_IF_ERROR(require(
      options.skips_max >= 0 && options.skips_max <= 200,
      "--max-skips must be between 0 and 200, got ",
      options.skips_max));
  MUSTER_RETURN_IF_ERROR(require(
      options.checkpoint_interval >= 0,
      "--checkpoint-interval must be 0 (only on command) or more"));
  MUSTER_RETURN_IF_ERROR(require(
      options.loss_every >= 1 && options.loss_every <= model.sequence,
      "--loss-every ",
      options.loss_every,
      " leaves no token with loss; use 1 (all tokens) to --seq ",
      model.sequence));
  MUSTER_RETURN_IF_ERROR(
      require(model.shared_experts >= 0, "--shared-experts must be 0 (none) or more"));
  MUSTER_RETURN_IF_ERROR(require(
      std::isfinite(options.bias_rate) && options.bias_rate >= 0,
      "--bias-rate must be 0 (off) or more"));
  MUSTER_RETURN_IF_ERROR(validate(options.experts, model.experts, model.top_k));
  MUSTER_RETURN_IF_ERROR(validate_exchange(options));
  MUSTER_RETURN_IF_ERROR(validate_attention(options));
  MUSTER_RETURN_IF_ERROR(validate_task(options, world_size));
  MUSTER_RETURN_IF_ERROR(validate(options.update));
  MUSTER_RETURN_IF_ERROR(validate_world(options, world_size));
  MUSTER_RETURN_IF_ERROR(validate_fault("--inject-nan", options.inject_nan, world_size));
  MUSTER_RETURN_IF_ERROR(
      validate_fault("--inject-nan-forward", options.inject_nan_forward, world_size));
  return validate_fault("--inject-kill", options.inject_kill, world_size);
}

Expected<agent::AttentionSchedule> load_attention(const std::string& argument) {
  if (argument == "full" || argument.starts_with("moba:")) {
    return agent::AttentionSchedule::parse(argument);
  }
  std::ifstream file{argument};
  const std::string text{std::istreambuf_iterator<char>{file}, std::istreambuf_iterator<char>{}};
  if (!file) {
    return io_error(
        "'" + argument + "' is neither full, nor moba:BLOCK,TOPK[,last_full=N], nor a file to read",
        errno);
  }
  auto schedule = agent::AttentionSchedule::parse(text);
  if (!schedule) {
    return schedule.status().context(argument);
  }
  return schedule;
}

std::optional<FaultPoint> parse_fault_point(const std::string& text) {
  FaultPoint fault;
  const char* end = text.data() + text.size();
  const auto rank = std::from_chars(text.data(), end, fault.rank);
  if (rank.ec != std::errc{} || rank.ptr == end || *rank.ptr != ':' || fault.rank < 0) {
    return std::nullopt;
  }
  const auto step = std::from_chars(rank.ptr + 1, end, fault.step);
  if (step.ec != std::errc{} || step.ptr != end || fault.step < 0) {
    return std::nullopt;
  }
  return fault;
}

}  // namespace muster::moe_lm
