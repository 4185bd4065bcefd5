// Picks the update loops of the instruction set that is in use.
#include "kernels/cpu/simd/table.h"

#include "kernels/update/cpu/simd/table.h"

#include <string_view>

namespace muster::kernels {

namespace baseline {
extern const UpdateTable kUpdateTable;
}
#if defined(__x86_64__)
namespace avx2 {
extern const UpdateTable kUpdateTable;
}

namespace avx512 {
extern const UpdateTable kUpdateTable;
}
#endif

const UpdateTable& update_table() {
#if defined(__x86_64__)
  static const std::string_view kName = instruction_set();
  if (kName == "avx512") {
    return avx512::kUpdateTable;
  }
  if (kName == "avx2") {
    return avx2::kUpdateTable;
  }
#endif
  return baseline::kUpdateTable;
}

}  // namespace muster::kernels
