// Picks the tiles of attention of this machine.
#include "kernels/cpu/simd/table.h"

#include "kernels/attention/cpu/simd/tiles.h"

#include <cstdlib>
#include <string_view>

namespace muster::kernels {

#define MUSTER_DECLARE_TABLES(isa)               \
  namespace isa {                                \
  extern const FlashTable<float> kFlashFloats;   \
  extern const FlashTable<double> kFlashDoubles; \
  }
MUSTER_DECLARE_TABLES(baseline)
#if defined(__x86_64__)
MUSTER_DECLARE_TABLES(avx2)
MUSTER_DECLARE_TABLES(avx512)

namespace avx512bf16 {
extern const FlashTable<float> kFlashPairs;
}  // namespace avx512bf16
#endif

namespace {

struct Tables {
  const FlashTable<float>& floats;
  const FlashTable<float>& halves;
  const FlashTable<double>& doubles;
};

Tables choose_tables() {
#if defined(__x86_64__)
  const std::string_view isa = instruction_set();
  if (isa == "avx512") {
    const char* variable = std::getenv("MUSTER_KERNELS_ISA");  // NOLINT(concurrency-mt-unsafe)
    const bool wanted = variable == nullptr || std::string_view(variable) != "avx512";
    const bool has_bf16 = __builtin_cpu_supports("avx512bf16") != 0;
    return {
        avx512::kFlashFloats,
        wanted && has_bf16 ? avx512bf16::kFlashPairs : avx512::kFlashFloats,
        avx512::kFlashDoubles};
  }
  if (isa == "avx2") {
    return {avx2::kFlashFloats, avx2::kFlashFloats, avx2::kFlashDoubles};
  }
#endif
  return {baseline::kFlashFloats, baseline::kFlashFloats, baseline::kFlashDoubles};
}

const Tables& tables() {
  static const Tables kChosen = choose_tables();
  return kChosen;
}

}  // namespace

template <>
const FlashTable<float>& flash_table(AttentionType type) {
  return type == AttentionType::kBFloat16 ? tables().halves : tables().floats;
}

template <>
const FlashTable<double>& flash_table(AttentionType /*type*/) {
  return tables().doubles;
}

}  // namespace muster::kernels
