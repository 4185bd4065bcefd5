#include "kernels/cpu/blas.h"

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
// happened we say what the processor can do and let OpenBLAS choose again.
void choose_core_again() {
  constexpr std::string_view kOldCores[] = {
      "Prescott", "Core2", "Penryn", "Nehalem", "Sandybridge", "Barcelona"};
  const std::string_view core = openblas_get_corename();
  bool old = false;
  for (const std::string_view name : kOldCores) {
    old = old || core == name;
  }
  const bool has_avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  const bool replaceable = gotoblas_dynamic_init != nullptr && gotoblas_dynamic_quit != nullptr;
  if (!old || !has_avx2 || !replaceable || is_set("OPENBLAS_CORETYPE")) {
    return;
  }
  const bool has_avx512 =
      __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
  // NOLINTBEGIN(concurrency-mt-unsafe): before main, see prepare()
  setenv("OPENBLAS_CORETYPE", has_avx512 ? "SkylakeX" : "Haswell", 0);
  gotoblas_dynamic_quit();
  gotoblas_dynamic_init();
  unsetenv("OPENBLAS_CORETYPE");
  // NOLINTEND(concurrency-mt-unsafe)
}
#else
void choose_core_again() {}
#endif

// Before main, while there is one thread and nobody is inside BLAS.
[[gnu::constructor]] void prepare() {
  choose_core_again();
  // A rank is a process and owns its share of the cores: one BLAS thread. Whoever wants another
  // number says so with the variables that OpenBLAS itself reads.
  if (!is_set("OPENBLAS_NUM_THREADS") && !is_set("OMP_NUM_THREADS")) {
    openblas_set_num_threads(1);
  }
}

CBLAS_TRANSPOSE to_blas(bool transpose) {
  return transpose ? CblasTrans : CblasNoTrans;
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
