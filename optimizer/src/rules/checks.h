// SPDX-License-Identifier: Apache-2.0
// Checks shared by the options of the rules.
#pragma once

#include <muster/common/expected.h>

#include <cmath>
#include <string>

namespace muster::optimizer {

inline Status require_fraction(double value, const std::string& name) {
  return require(value >= 0 && value < 1, name, " must be in [0, 1)");
}

inline Status require_not_negative(double value, const std::string& name) {
  return require(std::isfinite(value) && value >= 0, name, " must be 0 or more");
}

}  // namespace muster::optimizer
