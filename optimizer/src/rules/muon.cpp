// SPDX-License-Identifier: Apache-2.0
#include "optimizer/src/rules/checks.h"

#include <muster/optimizer/newton_schulz_sets.h>
#include <muster/optimizer/rules/muon.h>

#include <algorithm>
#include <cmath>

namespace muster::optimizer {
namespace {

constexpr int kStepsMax = 100;

Status validate_custom_coefficients(const MuonOptions& options) {
  const auto given = static_cast<std::int64_t>(options.custom_coefficients.size());
  if (options.newton_schulz_set != NewtonSchulzSet::kCustom) {
    return require(
        given == 0,
        "muon.custom_coefficients are given, but muon.newton_schulz_set is ",
        to_string(options.newton_schulz_set),
        ": set it to custom or leave them out");
  }
  MUSTER_RETURN_IF_ERROR(require(
      given == options.newton_schulz_steps,
      "muon.custom_coefficients holds ",
      given,
      " triples for ",
      options.newton_schulz_steps,
      " Newton-Schulz steps: give one {a, b, c} per step"));
  for (const kernels::NewtonSchulzStep& step : options.custom_coefficients) {
    MUSTER_RETURN_IF_ERROR(require(
        std::all_of(step.begin(), step.end(), [](double value) { return std::isfinite(value); }),
        "muon.custom_coefficients must be finite"));
  }
  return {};
}

}  // namespace

const char* to_string(MomentumForm form) {
  switch (form) {
    case MomentumForm::kHeavyBall:
      return "heavy_ball";
    case MomentumForm::kEma:
      return "ema";
  }
  return "unknown";
}

const char* to_string(MuonScale scale) {
  switch (scale) {
    case MuonScale::kRmsMatch:
      return "rms_match";
    case MuonScale::kKeller:
      return "keller";
    case MuonScale::kMuP:
      return "mup";
  }
  return "unknown";
}

Expected<MomentumForm> parse_momentum_form(const std::string& name) {
  for (const MomentumForm form : {MomentumForm::kHeavyBall, MomentumForm::kEma}) {
    if (name == to_string(form)) {
      return form;
    }
  }
  return invalid_argument("unknown momentum form '" + name + "'; use heavy_ball or ema");
}

Expected<MuonScale> parse_muon_scale(const std::string& name) {
  for (const MuonScale scale : {MuonScale::kRmsMatch, MuonScale::kKeller, MuonScale::kMuP}) {
    if (name == to_string(scale)) {
      return scale;
    }
  }
  return invalid_argument("unknown Muon scale '" + name + "'; use rms_match, keller or mup");
}

Status validate(const MuonOptions& options) {
  MUSTER_RETURN_IF_ERROR(require_fraction(options.momentum, "muon.momentum"));
  MUSTER_RETURN_IF_ERROR(require(
      options.newton_schulz_steps >= 1 && options.newton_schulz_steps <= kStepsMax,
      "muon.newton_schulz_steps must be in [1, ",
      kStepsMax,
      "]"));
  MUSTER_RETURN_IF_ERROR(require(
      options.scale != MuonScale::kRmsMatch ||
          (std::isfinite(options.rms_scale) && options.rms_scale > 0),
      "muon.rms_scale, the factor of the rms_match scale, must be above 0 (0.2 gives AdamW's "
      "typical update); choose another muon.scale if none is wanted"));
  MUSTER_RETURN_IF_ERROR(require(
      options.polar_express_safety >= 1 && options.polar_express_safety <= 2,
      "muon.polar_express_safety must be in [1, 2]"));
  MUSTER_RETURN_IF_ERROR(require(
      options.precision == DType::kFloat32 || options.precision == DType::kBFloat16,
      concat("muon.precision must be fp32 or bf16, got ", short_name(options.precision))));
  MUSTER_RETURN_IF_ERROR(validate_custom_coefficients(options));
  return check_coefficients(newton_schulz_coefficients(options))
      .context(
          std::string{"muon.newton_schulz_set "} + to_string(options.newton_schulz_set) + " with " +
          std::to_string(options.newton_schulz_steps) + " steps");
}

double muon_scale(const MuonOptions& options, std::int64_t rows, std::int64_t cols) {
  const auto out = static_cast<double>(rows);
  const auto in = static_cast<double>(cols);
  switch (options.scale) {
    case MuonScale::kRmsMatch:
      return options.rms_scale * std::sqrt(std::max(out, in));
    case MuonScale::kKeller:
      return std::sqrt(std::max(1.0, out / in));
    case MuonScale::kMuP:
      return std::sqrt(out / in);
  }
  return 1.0;
}

kernels::UpdateStatistics update_muon_momentum(
    const kernels::UpdateTensors& tensors,
    const kernels::UpdateStep& step,
    const MuonOptions& options,
    float* direction) {
  const kernels::MuonMomentumFactors factors{
      options.momentum, options.nesterov, options.momentum_form == MomentumForm::kEma};
  return kernels::muon_momentum_update(tensors, step, factors, direction);
}

kernels::UpdateStatistics apply_muon(
    const kernels::UpdateTensors& tensors,
    const kernels::UpdateStep& step,
    double scale,
    const float* orthogonal) {
  return kernels::muon_apply_update(tensors, step, scale, orthogonal);
}

}  // namespace muster::optimizer
