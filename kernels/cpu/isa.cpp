// Picks the instruction set.
#include "kernels/cpu/simd/table.h"

#include <cstdlib>
#include <string_view>

namespace muster::kernels {

#define MUSTER_DECLARE_TABLES(isa)               \
  namespace isa {                                \
  extern const KernelTable<float> kFloatTable;   \
  extern const KernelTable<double> kDoubleTable; \
  extern const OptimizerTable kOptimizerTable;   \
  }
MUSTER_DECLARE_TABLES(baseline)
#if defined(__x86_64__)
MUSTER_DECLARE_TABLES(avx2)
MUSTER_DECLARE_TABLES(avx512)
#endif

namespace {

struct Tables {
  const char* name;
  const KernelTable<float>& floats;
  const KernelTable<double>& doubles;
  const OptimizerTable& optimizer;
};

Tables choose_tables() {
#if defined(__x86_64__)
  const char* variable = std::getenv("MUSTER_KERNELS_ISA");  // NOLINT(concurrency-mt-unsafe)
  const std::string_view wish = variable == nullptr ? "avx512" : variable;
  const bool has_avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") != 0 &&
                          __builtin_cpu_supports("avx512bw") != 0 &&
                          __builtin_cpu_supports("avx512dq") != 0 &&
                          __builtin_cpu_supports("avx512vl") != 0;
  if (has_avx512 && wish != "avx2" && wish != "baseline") {
    return {"avx512", avx512::kFloatTable, avx512::kDoubleTable, avx512::kOptimizerTable};
  }
  if (has_avx2 && wish != "baseline") {
    return {"avx2", avx2::kFloatTable, avx2::kDoubleTable, avx2::kOptimizerTable};
  }
#endif
  return {"baseline", baseline::kFloatTable, baseline::kDoubleTable, baseline::kOptimizerTable};
}

const Tables& tables() {
  static const Tables kChosen = choose_tables();
  return kChosen;
}

}  // namespace

template <>
const KernelTable<float>& kernel_table<float>() {
  return tables().floats;
}

template <>
const KernelTable<double>& kernel_table<double>() {
  return tables().doubles;
}

const char* instruction_set() {
  return tables().name;
}

const OptimizerTable& optimizer_table() {
  return tables().optimizer;
}

}  // namespace muster::kernels
