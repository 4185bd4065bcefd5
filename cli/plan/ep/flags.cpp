// SPDX-License-Identifier: Apache-2.0
#include "cli/plan/ep/flags.h"

#include "cli/plan/ep/numbers.h"

namespace muster::cli {

namespace {

using parallel::EpBalanceMode;
using parallel::EpLayerShape;

template <typename T>
void set(const std::optional<T>& flag, T& value) {
  if (flag) {
    value = *flag;
  }
}

Status check_complete(const EpFlags& flags) {
  std::string missing;
  const auto need = [&](bool given, const char* name) {
    missing += given ? "" : (missing.empty() ? "" : ", ") + std::string{name};
  };
  need(flags.experts.has_value(), "--experts");
  need(flags.ranks.has_value(), "--ranks");
  need(flags.top_k.has_value(), "--top-k");
  need(flags.tokens.has_value(), "--tokens");
  need(flags.hidden.has_value(), "--hidden");
  need(flags.ffn.has_value(), "--ffn");
  return missing.empty() ? Status{}
                         : invalid_argument(
                               "give ",
                               missing,
                               ", or a layer to start from with --preset NAME; 'muster plan ep "
                               "--help' shows how");
}

Status set_type(const std::string& name, DType& type) {
  if (name == "fp32") {
    type = DType::kFloat32;
  } else if (name == "bf16") {
    type = DType::kBFloat16;
  } else if (!name.empty()) {
    return invalid_argument("--type must be fp32 or bf16, got '", name, "'");
  }
  return {};
}

Expected<std::optional<EpBalanceMode>> mode_of(const EpFlags& flags) {
  if (flags.mode.empty()) {
    return flags.tolerance ? std::optional{EpBalanceMode::kTolerant} : std::nullopt;
  }
  MUSTER_ASSIGN_OR_RETURN(const EpBalanceMode mode, parse_balance_mode(flags.mode));
  if (mode != EpBalanceMode::kTolerant && flags.tolerance) {
    return invalid_argument("--tolerance goes with --mode tolerant, not with ", flags.mode);
  }
  return std::optional{mode};
}

Expected<std::optional<parallel::EpRates>> rates_of(const EpFlags& flags) {
  if (flags.gemm_flops.empty() != flags.link.empty()) {
    return invalid_argument("--gemm-flops and --link are given together, such as 700T and 450G");
  }
  if (flags.gemm_flops.empty()) {
    if (flags.imbalance || flags.plan_us || flags.overlap_us || flags.copies_out) {
      return invalid_argument(
          "--imbalance, --plan-us, --overlap-us and --copies-out need --gemm-flops and --link");
    }
    return std::optional<parallel::EpRates>{};
  }
  parallel::EpRates rates;
  MUSTER_ASSIGN_OR_RETURN(rates.gemm_flops, parse_rate(flags.gemm_flops, "--gemm-flops"));
  MUSTER_ASSIGN_OR_RETURN(rates.link_bytes, parse_rate(flags.link, "--link"));
  rates.plan_seconds = flags.plan_us.value_or(10) * 1e-6;
  rates.overlap_seconds = flags.overlap_us.value_or(0) * 1e-6;
  set(flags.copies_out, rates.copies_out);
  if (!(rates.plan_seconds >= 0 && rates.overlap_seconds >= 0 && rates.copies_out >= 0)) {
    return invalid_argument("--plan-us, --overlap-us and --copies-out must not be negative");
  }
  if (flags.imbalance && !(*flags.imbalance >= 1)) {
    return invalid_argument(
        "--imbalance ",
        decimal(*flags.imbalance, 2),
        ": the fullest rank over the mean is at least 1");
  }
  return std::optional{rates};
}

}  // namespace

Expected<EpQuestion> question_of(const EpFlags& flags) {
  EpQuestion question;
  EpLayerShape& layer = question.layer;
  if (flags.preset.empty()) {
    MUSTER_RETURN_IF_ERROR(check_complete(flags));
    question.name = "layer";
  } else {
    MUSTER_ASSIGN_OR_RETURN(const EpPreset preset, find_ep_preset(flags.preset));
    question.name = std::string{preset.name};
    layer = preset.layer;
  }
  set(flags.experts, layer.shape.experts);
  set(flags.ranks, layer.shape.ranks);
  set(flags.top_k, layer.shape.top_k);
  set(flags.tokens, layer.shape.tokens_max);
  set(flags.slots, layer.shape.slots);
  set(flags.padding, layer.shape.padding);
  layer.shape.compact = layer.shape.compact || flags.compact;
  layer.inference = layer.inference || flags.inference;
  set(flags.hidden, layer.hidden);
  set(flags.ffn, layer.ffn);
  set(flags.projections, layer.projections);
  MUSTER_RETURN_IF_ERROR(set_type(flags.type, layer.type));
  MUSTER_ASSIGN_OR_RETURN(const auto mode, mode_of(flags));
  set(mode, layer.balance.mode);
  set(flags.tolerance, layer.balance.tolerance);
  set(flags.speeds, layer.balance.speeds);
  set(flags.capacity_max, layer.balance.capacity_max);
  set(flags.homes_max, layer.balance.homes_max);
  if (flags.mode == "tolerant" && !flags.tolerance) {
    return invalid_argument("--mode tolerant needs --tolerance, such as 0.05");
  }
  MUSTER_ASSIGN_OR_RETURN(question.rates, rates_of(flags));
  question.imbalance = flags.imbalance.value_or(0);
  return question;
}

Expected<EpReplayOptions> replay_options_of(const EpFlags& flags) {
  EpReplayOptions options;
  options.slots = flags.slots;
  options.padding = flags.padding;
  MUSTER_ASSIGN_OR_RETURN(options.mode, mode_of(flags));
  options.tolerance = flags.tolerance;
  options.speeds = flags.speeds;
  options.capacity_max = flags.capacity_max;
  options.homes_max = flags.homes_max;
  DType type = DType::kBFloat16;
  MUSTER_RETURN_IF_ERROR(set_type(flags.type, type));
  if (flags.hidden) {
    if (*flags.hidden < 1) {
      return invalid_argument("--hidden must be at least 1, got ", *flags.hidden);
    }
    options.row_bytes = size_bytes(type, *flags.hidden);
  }
  return options;
}

}  // namespace muster::cli
