// SPDX-License-Identifier: Apache-2.0
// Finds the socket of a connection that Gloo holds, so that an abort can shut it down. Gloo offers
// no way to end a blocked operation and publishes no file descriptors, but it does name the ends of
// a connection.
#pragma once

#include <muster/common/file.h>

#include <sys/socket.h>

namespace muster::comm {

// Duplicates this process's socket that is bound to `own` and connected to `peer`. Both ends
// together name one connection; a listening socket, which several connections may share, is never
// returned. Invalid when there is no such socket.
[[nodiscard]] FileDescriptor duplicate_connected_socket(
    const sockaddr_storage& own, const sockaddr_storage& peer);

}  // namespace muster::comm
