// SPDX-License-Identifier: Apache-2.0
// Peak rate of multiply-adds in the widest registers, the upper bound of a kernel on this machine.
// Hosts are shared, so single threads are measured by their CPU time.
#pragma once

#include "benchmarks/harness.h"

#include <muster/kernels/attention.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace muster::bench {

inline double cpu_seconds() {
  return Machine::system().thread_seconds();
}

#if defined(__x86_64__)
#define BENCH_VECTOR "v"
#else
#define BENCH_VECTOR "w"
#endif

// Independent multiply-adds on as many registers as hide their latency. Returns flops.
template <typename V, std::size_t kSums>
__attribute__((always_inline)) inline double multiply_add(std::int64_t steps) {
  V sums[kSums];  // all different, or one would do for all
  for (std::size_t i = 0; i < kSums; ++i) {
    sums[i] = V{} + static_cast<float>(i);
  }
  V x = V{} + 0.999F;
  V y = V{} + 0.5F;
  for (std::int64_t step = 0; step < steps; ++step) {
    asm volatile("" : "+" BENCH_VECTOR(x), "+" BENCH_VECTOR(y));  // the compiler must not know
#pragma GCC unroll 24
    for (std::size_t i = 0; i < kSums; ++i) {
      sums[i] = sums[i] * x + y;
    }
  }
  volatile float sink = 0;
  for (const V& sum : sums) {
    sink = sink + sum[0];
  }
  constexpr auto kLanes = static_cast<double>(sizeof(V) / sizeof(float));
  return 2.0 * kLanes * static_cast<double>(kSums) * static_cast<double>(steps);
}

typedef float Floats16 __attribute__((vector_size(64)));  // NOLINT(modernize-use-using)
typedef float Floats8 __attribute__((vector_size(32)));   // NOLINT(modernize-use-using)
typedef float Floats4 __attribute__((vector_size(16)));   // NOLINT(modernize-use-using)

#if defined(__x86_64__)
__attribute__((target("avx512f"))) inline double avx512_loop(std::int64_t steps) {
  return multiply_add<Floats16, 24>(steps);
}

__attribute__((target("avx2,fma"))) inline double avx2_loop(std::int64_t steps) {
  return multiply_add<Floats8, 12>(steps);
}
#endif

inline double baseline_loop(std::int64_t steps) {
  return multiply_add<Floats4, 12>(steps);
}

// Runs multiply-adds of the instruction set that fp32 kernels use here, for some 20 ms. Returns
// their flops, the same in each call.
inline double run_fma_loop() {
  constexpr std::int64_t kSteps = 3'000'000;
  const std::string_view path = kernels::attention_path(DType::kFloat32);
#if defined(__x86_64__)
  if (path == "avx512") {
    return avx512_loop(kSteps);
  }
  if (path == "avx2") {
    return avx2_loop(kSteps);
  }
#endif
  return baseline_loop(kSteps);
}

// Returns the peak of that instruction set.
inline double peak_flops_per_second() {
  const double begin = cpu_seconds();
  const double flops = run_fma_loop();
  return flops / (cpu_seconds() - begin);
}

#undef BENCH_VECTOR

}  // namespace muster::bench
