// SPDX-License-Identifier: Apache-2.0
// The side of the Gloo seam for builds without the library.
#include <muster/comm/backends.h>

namespace muster::comm {

bool gloo_is_available() {
  return false;
}

Expected<std::unique_ptr<Communicator>> connect_gloo(const ConnectOptions&, Deadline) {
  return unimplemented(
      "this build has no Gloo backend: install libgloo-dev and configure again, or keep all ranks "
      "on one host (MUSTER_COMM=shm)");
}

}  // namespace muster::comm
