// SPDX-License-Identifier: Apache-2.0
// The twin of a build without CUDA kernels.
#include <muster/kernels/backend.h>

namespace muster::kernels {

bool cuda_is_available() {
  return false;
}

std::string cuda_unavailable_reason() {
  return "this build has no CUDA kernels; the CPU backend is in use";
}

}  // namespace muster::kernels
