// SPDX-License-Identifier: Apache-2.0
// Rendezvous of the ranks of one host: rank 0 creates the shared memory and sends it to the others
// over an abstract unix socket, which leaves no name in any file system.
#pragma once

#include <muster/comm/backends.h>
#include <muster/common/file.h>

#include <cstdint>

namespace muster::comm {

// Called by rank 0. Creates a zeroed memory file that no rank can shrink while a peer uses it;
// symmetric heaps extend it.
[[nodiscard]] Expected<FileDescriptor> create_shared_memory(std::uint64_t bytes);

// Rank 0: waits until every other rank has fetched `memory` of `bytes`.
//
// kInvalidArgument when a rank comes with another world or memory size or for the second time,
// kAlreadyExists when another process serves this session, kDeadlineExceeded naming the ranks that
// did not come.
[[nodiscard]] Status hand_out_memory(
    const ConnectOptions& options,
    const FileDescriptor& memory,
    std::uint64_t bytes,
    Deadline deadline);

// Other ranks: the memory of rank 0. Errors as above, kDeadlineExceeded when rank 0 is not there.
[[nodiscard]] Expected<FileDescriptor> fetch_shared_memory(
    const ConnectOptions& options, std::uint64_t bytes, Deadline deadline);

}  // namespace muster::comm
