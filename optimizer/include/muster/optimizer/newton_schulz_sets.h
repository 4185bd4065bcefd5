// SPDX-License-Identifier: Apache-2.0
// Coefficient tables behind NewtonSchulzSet, and the effect of a schedule on singular values.
#pragma once

#include <muster/common/expected.h>
#include <muster/optimizer/rules/muon.h>

#include <span>
#include <vector>

namespace muster::optimizer {

// {a, b, c} for each of options.newton_schulz_steps iterations. Keller and the classic cubic repeat
// one triple, You cycles through its five, Polar Express continues with its limit (1.875, -1.25,
// 0.375), DeepSeek-V4 is eight of Keller's and then (2, -1.5, 0.5) repeated. Polar Express divides
// by its safety factor on all but the limit: its raw table leaves no room for a norm that was
// rounded down. `options` has passed validate.
[[nodiscard]] std::vector<kernels::NewtonSchulzStep> newton_schulz_coefficients(
    const MuonOptions& options);

// Applies a whole schedule to one singular value in [0, 1].
[[nodiscard]] double map_singular_value(
    std::span<const kernels::NewtonSchulzStep> coefficients, double sigma);

// kInvalidArgument, naming the singular value and its image, when some sigma in (0, 1 + 2^-8] is
// mapped below 0 or above 1.5. A rank-1 direction has a singular value of exactly 1 after Frobenius
// normalisation, and a rounded norm can put it a bf16 ulp above.
[[nodiscard]] Status check_coefficients(std::span<const kernels::NewtonSchulzStep> coefficients);

}  // namespace muster::optimizer
