// SPDX-License-Identifier: Apache-2.0
// The hash of a plan: everything that all ranks must agree on, as text that names each value.
#include "optimizer/src/routing/routing.h"

#include <muster/common/hash.h>
#include <muster/common/text.h>

#include <algorithm>

namespace muster::optimizer {
namespace {

// Strings carry their length, so that no two inputs spell the same text.
class HashText {
 public:
  HashText& operator<<(const std::string& value) {
    append_text(text_, value.size());
    text_ += ':' + value + ' ';
    return *this;
  }

  template <class T>

  requires std::is_arithmetic_v<T> HashText& operator<<(T value) {
    if constexpr (std::is_floating_point_v<T>) {
      text_ += general(static_cast<double>(value), 17);
    } else {
      append_text(text_, static_cast<std::int64_t>(value));
    }
    text_ += ' ';
    return *this;
  }

  template <class T>

  requires std::is_enum_v<T> HashText& operator<<(T value) {
    return *this << static_cast<int>(value);
  }

  template <class T>
  HashText& operator<<(const std::vector<T>& values) {
    *this << values.size();
    for (const T& value : values) {
      *this << value;
    }
    return *this;
  }

  [[nodiscard]] std::string text() const { return text_; }

 private:
  std::string text_;
};

// The numbers that hashes have used since before DType. Other types are refused earlier.
int float_code(DType dtype) {
  return dtype == DType::kBFloat16 ? 1 : dtype == DType::kFloat16 ? 2 : 0;
}

void add_parameter(HashText& text, const RoutedParameter& parameter) {
  const ParameterSpec& spec = parameter.spec;
  const RouteRule& rule = parameter.route;
  text << spec.name << spec.shape << spec.placement << float_code(spec.dtype);
  text << spec.blocks.rows << spec.blocks.repeats << spec.blocks.merge_repeats;
  text << rule.rule << rule.group << rule.weight_decay << rule.learning_rate_scale;
  text << rule.state_type << parameter.state_type;
}

void add_muon(HashText& text, const MuonOptions& muon) {
  text << muon.momentum << muon.nesterov << muon.newton_schulz_steps << muon.newton_schulz_set;
  text << muon.rms_scale << muon.scale << muon.momentum_form << muon.polar_express_safety;
  text << muon.custom_coefficients.size();
  for (const kernels::NewtonSchulzStep& step : muon.custom_coefficients) {
    text << step[0] << step[1] << step[2];
  }
  text << muon.form << float_code(muon.precision);
}

void add_rules(HashText& text, const OptimizerOptions& options) {
  text << options.adamw.beta1 << options.adamw.beta2 << options.adamw.epsilon;
  text << options.adam.beta1 << options.adam.beta2 << options.adam.epsilon;
  text << options.momentum.momentum << options.momentum.nesterov;
  text << options.rmsprop.alpha << options.rmsprop.epsilon;
  add_muon(text, options.muon);
}

void add_schedule(HashText& text, const ScheduleOptions& schedule) {
  text << schedule.learning_rate << schedule.warmup_steps << schedule.total_steps;
  text << schedule.final_ratio << schedule.kind << schedule.cooldown_steps << schedule.cooldown;
}

void add_guards(HashText& text, const OptimizerOptions& options) {
  const ClippingOptions& clipping = options.clipping;
  text << options.clip_norm << clipping.groups.size();
  for (const GroupClip& clip : clipping.groups) {
    text << clip.group << clip.clip_norm;
  }
  text << clipping.zclip.has_value() << clipping.agc.has_value();
  if (clipping.zclip) {
    text << clipping.zclip->alpha << clipping.zclip->threshold << clipping.zclip->warmup_steps;
  }
  if (clipping.agc) {
    text << clipping.agc->factor << clipping.agc->epsilon << clipping.agc->groups;
  }
  const LossScaleOptions& scale = options.loss_scale;
  text << scale.initial << scale.growth << scale.backoff << scale.growth_interval;
  text << scale.hysteresis << scale.minimum << scale.maximum;
}

bool has_codes(const RoutedParameter& parameter) {
  return parameter.state_type == StateType::kInt8Block;
}

}  // namespace

std::uint64_t plan_hash(const Routing& routing, const OptimizerOptions& options) {
  HashText text;
  text << routing.parameters.size();
  for (const RoutedParameter& parameter : routing.parameters) {
    add_parameter(text, parameter);
  }
  add_rules(text, options);
  add_schedule(text, options.schedule);
  add_guards(text, options);
  text << options.layout << options.bucket_bytes << options.overlap << options.exchange_bytes;
  text << options.cut_granularity << options.seed << options.statistics;
  // Builds from before stochastic codes agree on a plan without 8-bit states, and on no other.
  if (std::any_of(routing.parameters.begin(), routing.parameters.end(), has_codes)) {
    text << options.code_rounding;
  }
  const std::string bytes = text.text();
  const std::uint64_t hash = hash64(std::as_bytes(std::span{bytes}));
  return hash == 0 ? 1 : hash;  // 0 is what a rank sends whose parameters were refused.
}

}  // namespace muster::optimizer
