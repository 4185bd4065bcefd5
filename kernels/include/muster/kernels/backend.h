// SPDX-License-Identifier: Apache-2.0
// Which backends this build has. The CPU backend is always there and is the reference.
#pragma once

#include <string>

namespace muster::kernels {

// Whether CUDA kernels are built in and a device answers. Never fails: no driver means false.
[[nodiscard]] bool cuda_is_available();

// Why not, for people; empty when available.
[[nodiscard]] std::string cuda_unavailable_reason();

// The instruction set that the CPU kernels use: "baseline", "avx2" or "avx512".
[[nodiscard]] const char* instruction_set();

// What the CPU backend runs on, for people and logs: "avx512 kernels, SkylakeX BLAS".
[[nodiscard]] std::string cpu_description();

}  // namespace muster::kernels
