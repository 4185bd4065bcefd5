// SPDX-License-Identifier: Apache-2.0
// Instruction set of the hot loops, chosen once per process.
//
// A table of loops is compiled once per set, each copy in its own namespace. A topic declares its
// copies with MUSTER_DECLARE_PER_ISA and picks one with MUSTER_PICK_PER_ISA.
#pragma once

#include <cstdint>

namespace muster::kernels {

enum class Isa : std::uint8_t { kBaseline, kAvx2, kAvx512, kAvx512Bf16 };

// Best set that this machine has. Callable before main.
[[nodiscard]] Isa machine_isa();

// Set that the loops use: that of the machine. MUSTER_KERNELS_ISA=baseline|avx2|avx512 limits it
// (avx512: without AVX512_BF16); any other value has no effect. The environment is read on the
// first call only. A build with one copy (MUSTER_ONLY_ISA) always uses that. Thread-safe.
[[nodiscard]] Isa active_isa();

#if defined(MUSTER_ONLY_ISA)
// A build with one copy (sanitizers): that copy, whatever the machine has.
#define MUSTER_DECLARE_PER_ISA(Table, name) \
  namespace MUSTER_ONLY_ISA {               \
  extern const Table name;                  \
  }                                         \
  static_assert(true)
#define MUSTER_DECLARE_BF16_ISA(Table, name) static_assert(true)

#define MUSTER_PICK_PER_ISA(name) (MUSTER_ONLY_ISA::name)
#define MUSTER_PICK_PER_ISA_BF16(name, bf16_name) (MUSTER_ONLY_ISA::name)
#elif defined(__x86_64__)
#define MUSTER_DECLARE_PER_ISA(Table, name) \
  namespace baseline {                      \
  extern const Table name;                  \
  }                                         \
  namespace avx2 {                          \
  extern const Table name;                  \
  }                                         \
  namespace avx512 {                        \
  extern const Table name;                  \
  }                                         \
  static_assert(true)

// For tables that also have a copy for AVX512_BF16.
#define MUSTER_DECLARE_BF16_ISA(Table, name) \
  namespace avx512bf16 {                     \
  extern const Table name;                   \
  }                                          \
  static_assert(true)

#define MUSTER_PICK_PER_ISA(name) \
  ::muster::kernels::pick_per_isa(baseline::name, avx2::name, avx512::name, avx512::name)
#define MUSTER_PICK_PER_ISA_BF16(name, bf16_name) \
  ::muster::kernels::pick_per_isa(baseline::name, avx2::name, avx512::name, avx512bf16::bf16_name)
#else
#define MUSTER_DECLARE_PER_ISA(Table, name) \
  namespace baseline {                      \
  extern const Table name;                  \
  }                                         \
  static_assert(true)
#define MUSTER_DECLARE_BF16_ISA(Table, name) static_assert(true)

#define MUSTER_PICK_PER_ISA(name) (baseline::name)
#define MUSTER_PICK_PER_ISA_BF16(name, bf16_name) (baseline::name)
#endif

template <typename Table>
const Table& pick_per_isa(
    const Table& baseline, const Table& avx2, const Table& avx512, const Table& avx512_bf16) {
  switch (active_isa()) {
    case Isa::kAvx512Bf16:
      return avx512_bf16;
    case Isa::kAvx512:
      return avx512;
    case Isa::kAvx2:
      return avx2;
    case Isa::kBaseline:
      break;
  }
  return baseline;
}

}  // namespace muster::kernels
