// Finding the sockets that Gloo holds, so that an abort can shut them down. Gloo offers no way to
// end a blocked operation and does not publish its file descriptors.
#pragma once

#include <muster/common/file.h>

#include <vector>

namespace muster::comm {

// A duplicate of this process's TCP socket that is bound to `own` or connected to `peer`, or an
// invalid descriptor when there is none. Both are addresses as Gloo serialises them: where this
// side and the peer listen for each other, so they belong to this one connection.
[[nodiscard]] FileDescriptor duplicate_gloo_socket(
    const std::vector<char>& own, const std::vector<char>& peer);

}  // namespace muster::comm
