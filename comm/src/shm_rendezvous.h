// How the ranks of one host find each other: rank 0 creates the shared memory and hands it out over
// an abstract unix socket, which leaves no name in any file system.
#pragma once

#include <muster/comm/backends.h>
#include <muster/common/file.h>

#include <cstdint>

namespace muster::comm {

// Rank 0: a sealed memory file of `bytes`, after every other rank has fetched it. Other ranks: that
// file. Waits for the others at most until `deadline`.
//
// kInvalidArgument when ranks disagree about size or memory, kAlreadyExists when another process
// serves this session, kDeadlineExceeded naming the ranks that did not come.
[[nodiscard]] Expected<FileDescriptor> meet_over_memory(
    const ConnectOptions& options, std::uint64_t bytes, Deadline deadline);

}  // namespace muster::comm
