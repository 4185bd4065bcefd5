// The coefficient tables behind NewtonSchulzSet.
#pragma once

#include <muster/optimizer/options.h>

#include <array>
#include <vector>

namespace muster::optimizer {

// {a, b, c} for each of `steps` iterations, `steps` >= 1. Keller and the classic cubic repeat one
// triple, You cycles through its five, Polar Express goes on with its limit (1.875, -1.25, 0.375).
// Polar Express carries a safety factor of 1.01 on all but that limit: its raw table leaves
// no room for a norm that was rounded down.
[[nodiscard]] std::vector<std::array<double, 3>> newton_schulz_coefficients(
    NewtonSchulzSet set, int steps);

[[nodiscard]] const char* to_string(NewtonSchulzSet set);

}  // namespace muster::optimizer
