// SPDX-License-Identifier: Apache-2.0
// Element types of attention.
#pragma once

#include <cstdint>

namespace muster::kernels {

// bf16 elements are carried as std::uint16_t; all sums run in fp32. kFloat64 is for gradient tests.
enum class AttentionType : std::uint8_t { kFloat32, kBFloat16, kFloat64 };

}  // namespace muster::kernels
