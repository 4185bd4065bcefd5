// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/blas.h"

#include "kernels/cpu/isa.h"

#include <cblas.h>

#include <cstdlib>
#include <string_view>

#if defined(__x86_64__)
// Parts of OpenBLAS that its header leaves out; absent from builds for a single processor.
extern "C" {
[[gnu::weak]] void gotoblas_dynamic_init();
[[gnu::weak]] void gotoblas_dynamic_quit();
}
#endif

namespace muster::kernels {

namespace {

bool is_set(const char* variable) {
  return std::getenv(variable) != nullptr;  // NOLINT(concurrency-mt-unsafe): before main
}

#if defined(__x86_64__)
// OpenBLAS knows processors by model number and takes one it does not know for the oldest it has:
// 0.3.21 runs SSE3 code on a Xeon of 2023, seven times slower than that processor can. Where that
// happened, name the core type and let OpenBLAS choose again.
void choose_core_again() {
  constexpr std::string_view kOldCores[] = {
      "Prescott", "Core2", "Penryn", "Nehalem", "Sandybridge", "Barcelona"};
  const std::string_view core = openblas_get_corename();
  bool old = false;
  for (const std::string_view name : kOldCores) {
    old = old || core == name;
  }
  const bool replaceable = gotoblas_dynamic_init != nullptr && gotoblas_dynamic_quit != nullptr;
  if (!old || machine_isa() < Isa::kAvx2 || !replaceable || is_set("OPENBLAS_CORETYPE")) {
    return;
  }
  // NOLINTBEGIN(concurrency-mt-unsafe): before main, see prepare()
  setenv("OPENBLAS_CORETYPE", machine_isa() >= Isa::kAvx512 ? "SkylakeX" : "Haswell", 0);
  gotoblas_dynamic_quit();
  gotoblas_dynamic_init();
  unsetenv("OPENBLAS_CORETYPE");
  // NOLINTEND(concurrency-mt-unsafe)
}
#else
void choose_core_again() {}
#endif

// Runs before main, while there is one thread and no call of BLAS.
[[gnu::constructor]] void prepare() {
  choose_core_again();
  // A rank is a process and owns its share of the cores: one BLAS thread, unless the variables that
  // OpenBLAS itself reads ask for another number.
  if (!is_set("OPENBLAS_NUM_THREADS") && !is_set("OMP_NUM_THREADS")) {
    openblas_set_num_threads(1);
  }
}

CBLAS_TRANSPOSE to_blas(Transpose transpose) {
  return transpose == Transpose::kYes ? CblasTrans : CblasNoTrans;
}

blasint to_blas(std::int64_t size) {
  return static_cast<blasint>(size);
}

}  // namespace

void blas_gemm(const GemmCall<float>& call) {
  cblas_sgemm(
      CblasRowMajor,
      to_blas(call.transpose_a),
      to_blas(call.transpose_b),
      to_blas(call.m),
      to_blas(call.n),
      to_blas(call.k),
      call.alpha,
      call.a,
      to_blas(call.lda),
      call.b,
      to_blas(call.ldb),
      call.beta,
      call.c,
      to_blas(call.ldc));
}

void blas_gemm(const GemmCall<double>& call) {
  cblas_dgemm(
      CblasRowMajor,
      to_blas(call.transpose_a),
      to_blas(call.transpose_b),
      to_blas(call.m),
      to_blas(call.n),
      to_blas(call.k),
      call.alpha,
      call.a,
      to_blas(call.lda),
      call.b,
      to_blas(call.ldb),
      call.beta,
      call.c,
      to_blas(call.ldc));
}

const char* blas_core_name() {
  return openblas_get_corename();
}

}  // namespace muster::kernels
