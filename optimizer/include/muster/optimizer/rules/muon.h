// SPDX-License-Identifier: Apache-2.0
// Muon (Jordan 2024; decay and scale of Moonlight, arXiv 2502.16982): momentum, orthogonalisation
// by Newton-Schulz, decoupled decay before the step, W <- W - lr s(rows, cols) O. State: momentum.
#pragma once

#include <muster/common/expected.h>
#include <muster/kernels/newton_schulz.h>
#include <muster/optimizer/rules/step.h>

#include <cstdint>
#include <string>
#include <vector>

namespace muster::optimizer {

// kHeavyBall: M <- mu M + g. kEma: M <- mu M + (1 - mu) g. Both give the same direction up to a
// factor, so the same update; the states differ by 1 / (1 - mu). A checkpoint records its form and
// is converted on load.
enum class MomentumForm : std::uint8_t { kHeavyBall, kEma };

// The factor s of a block [rows = out, cols = in]:
// kKeller sqrt(max(1, rows / cols)), kRmsMatch rms_scale * sqrt(max(rows, cols)), so that the
// update has about the RMS rms_scale whatever the shape, kMuP sqrt(rows / cols).
enum class MuonScale : std::uint8_t { kRmsMatch, kKeller, kMuP };

// Newton-Schulz coefficient sets (newton_schulz_sets.h). kCustom: `custom_coefficients`.
enum class NewtonSchulzSet : std::uint8_t {
  kKeller,
  kYou,
  kPolarExpress,
  kClassicCubic,
  kDeepSeekV4,
  kCustom,
};

struct MuonOptions {
  double momentum{0.95};
  bool nesterov{true};
  int newton_schulz_steps{5};
  NewtonSchulzSet newton_schulz_set{NewtonSchulzSet::kKeller};
  double rms_scale{0.2};  // kRmsMatch only: 0.2 matches AdamW's typical update
  MuonScale scale{MuonScale::kRmsMatch};
  MomentumForm momentum_form{MomentumForm::kHeavyBall};
  double polar_express_safety{1.01};
  std::vector<kernels::NewtonSchulzStep> custom_coefficients;  // one per step
  kernels::NewtonSchulzForm form{kernels::NewtonSchulzForm::kAuto};
  DType precision{DType::kFloat32};
};

[[nodiscard]] const char* to_string(MomentumForm form);
[[nodiscard]] const char* to_string(MuonScale scale);
[[nodiscard]] const char* to_string(NewtonSchulzSet set);
[[nodiscard]] Expected<MomentumForm> parse_momentum_form(const std::string& name);
[[nodiscard]] Expected<MuonScale> parse_muon_scale(const std::string& name);
// Sets that are tuned for another normalisation than Frobenius (aol, cans, cubic5) are refused by
// name, with what they would do.
[[nodiscard]] Expected<NewtonSchulzSet> parse_newton_schulz_set(const std::string& name);

// Rejects values that can never work, a scale without its factor, and coefficient schedules that
// negate or blow up singular values the normalisation can produce (newton_schulz_sets.h).
[[nodiscard]] Status validate(const MuonOptions& options);

// s of the block that was orthogonalised.
[[nodiscard]] double muon_scale(const MuonOptions& options, std::int64_t rows, std::int64_t cols);

// First half, elementwise: the momentum of a shard, and the direction[count] to orthogonalise.
[[nodiscard]] kernels::UpdateStatistics update_muon_momentum(
    const kernels::UpdateTensors& tensors,
    const kernels::UpdateStep& step,
    const MuonOptions& options,
    float* direction);

// Second half, elementwise: decay and step along orthogonal[count]. `scale` is muon_scale of the
// block.
[[nodiscard]] kernels::UpdateStatistics apply_muon(
    const kernels::UpdateTensors& tensors,
    const kernels::UpdateStep& step,
    double scale,
    const float* orthogonal);

}  // namespace muster::optimizer
