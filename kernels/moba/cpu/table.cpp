// Picks the loops of block attention for the instruction set that is in use.
#include "kernels/moba/cpu/simd/table.h"

#include "kernels/cpu/simd/table.h"

#include <string_view>

namespace muster::kernels {

namespace baseline {
extern const MobaTables kMobaTables;
}
#if defined(__x86_64__)
namespace avx2 {
extern const MobaTables kMobaTables;
}

namespace avx512 {
extern const MobaTables kMobaTables;
}
#endif

const MobaTables& moba_tables() {
#if defined(__x86_64__)
  static const std::string_view kName = instruction_set();
  if (kName == "avx512") {
    return avx512::kMobaTables;
  }
  if (kName == "avx2") {
    return avx2::kMobaTables;
  }
#endif
  return baseline::kMobaTables;
}

template <>
const MobaTable<float>& moba_table<float>() {
  return moba_tables().floats;
}

template <>
const MobaTable<double>& moba_table<double>() {
  return moba_tables().doubles;
}

}  // namespace muster::kernels
