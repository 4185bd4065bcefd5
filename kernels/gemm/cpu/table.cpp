// Picks the packed products of this machine.
#include "kernels/gemm/cpu/simd/table.h"

#include "kernels/cpu/simd/table.h"

#include <cstdlib>
#include <string_view>

namespace muster::kernels {

namespace baseline {
extern const GemmTable kGemmTable;
}  // namespace baseline
#if defined(__x86_64__)
namespace avx2 {
extern const GemmTable kGemmTable;
}  // namespace avx2

namespace avx512 {
extern const GemmTable kGemmTable;
}  // namespace avx512

namespace avx512bf16 {
extern const GemmTable kGemmTable;
}  // namespace avx512bf16
#endif

namespace {

const GemmTable& choose_gemm_table() {
#if defined(__x86_64__)
  const std::string_view isa = instruction_set();
  if (isa == "avx512") {
    const char* variable = std::getenv("MUSTER_KERNELS_ISA");  // NOLINT(concurrency-mt-unsafe)
    const bool wanted = variable == nullptr || std::string_view(variable) != "avx512";
    const bool has_bf16 = __builtin_cpu_supports("avx512bf16") != 0;
    return wanted && has_bf16 ? avx512bf16::kGemmTable : avx512::kGemmTable;
  }
  if (isa == "avx2") {
    return avx2::kGemmTable;
  }
#endif
  return baseline::kGemmTable;
}

}  // namespace

const GemmTable& gemm_table() {
  static const GemmTable& chosen = choose_gemm_table();
  return chosen;
}

}  // namespace muster::kernels
