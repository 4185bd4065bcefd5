// SPDX-License-Identifier: Apache-2.0
// Backends of this build. The CPU backend is always available and is the reference.
#pragma once

#include <string>

namespace muster::kernels {

// True if CUDA kernels are built in and a device responds. Never fails; false without a driver.
[[nodiscard]] bool cuda_is_available();

// Why not, for people; empty when available.
[[nodiscard]] std::string cuda_unavailable_reason();

// The instruction set that the CPU kernels use: "baseline", "avx2" or "avx512".
[[nodiscard]] const char* instruction_set();

// Description of the CPU backend for people and logs: "avx512 kernels, SkylakeX BLAS".
[[nodiscard]] std::string cpu_description();

}  // namespace muster::kernels
