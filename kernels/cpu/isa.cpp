// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/isa.h"

#include <muster/kernels/backend.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace muster::kernels {

Isa machine_isa() {
#if defined(__x86_64__)
  const bool has_avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") != 0 &&
                          __builtin_cpu_supports("avx512bw") != 0 &&
                          __builtin_cpu_supports("avx512dq") != 0 &&
                          __builtin_cpu_supports("avx512vl") != 0;
  if (has_avx512) {
    return __builtin_cpu_supports("avx512bf16") != 0 ? Isa::kAvx512Bf16 : Isa::kAvx512;
  }
  if (has_avx2) {
    return Isa::kAvx2;
  }
#endif
  return Isa::kBaseline;
}

#if defined(MUSTER_ONLY_ISA)
namespace only_isa {

[[maybe_unused]] constexpr Isa baseline = Isa::kBaseline;  // NOLINT(readability-identifier-naming)
[[maybe_unused]] constexpr Isa avx2 = Isa::kAvx2;          // NOLINT(readability-identifier-naming)
[[maybe_unused]] constexpr Isa avx512 = Isa::kAvx512;      // NOLINT(readability-identifier-naming)

}  // namespace only_isa
#else
namespace {

Isa isa_limit() {
  const char* variable = std::getenv("MUSTER_KERNELS_ISA");  // NOLINT(concurrency-mt-unsafe)
  const std::string_view limit = variable == nullptr ? "" : variable;
  if (limit == "baseline") {
    return Isa::kBaseline;
  }
  if (limit == "avx2") {
    return Isa::kAvx2;
  }
  if (limit == "avx512") {
    return Isa::kAvx512;
  }
  return Isa::kAvx512Bf16;
}

}  // namespace
#endif

Isa active_isa() {
#if defined(MUSTER_ONLY_ISA)
  return only_isa::MUSTER_ONLY_ISA;
#else
  static const Isa kActive = std::min(machine_isa(), isa_limit());
  return kActive;
#endif
}

const char* instruction_set() {
  switch (active_isa()) {
    case Isa::kAvx512Bf16:
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kBaseline:
      break;
  }
  return "baseline";
}

}  // namespace muster::kernels
