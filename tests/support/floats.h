// SPDX-License-Identifier: Apache-2.0
// Values that are not finite, in both widths.
#pragma once

#include <limits>

namespace muster::test {

inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr float kNanF = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInfinityF = std::numeric_limits<float>::infinity();

}  // namespace muster::test
