// SPDX-License-Identifier: Apache-2.0
// The side of the NCCL seam for builds without the library.
#include <muster/comm/backends.h>

namespace muster::comm {

bool nccl_is_available() {
  return false;
}

}  // namespace muster::comm
