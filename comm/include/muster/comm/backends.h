// SPDX-License-Identifier: Apache-2.0
// Functions that connect ranks: threads, processes of one host, or hosts of a network.
#pragma once

#include <muster/comm/communicator.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace muster::comm {

// `size` ranks as threads of this process, element r for rank r. For tests.
[[nodiscard]] std::vector<std::unique_ptr<Communicator>> make_local_group(int size);

struct ConnectOptions {
  int rank{0};
  int size{1};
  // Unique per (run, generation): ranks of two generations can never meet.
  std::string session;
  // shm: address space reserved per rank for allocate(); pages are taken only when touched.
  std::size_t heap_bytes_per_rank{std::size_t{4} << 30};
  // gloo: folder on a file system all hosts share, and the local interface or address to bind.
  std::string gloo_store_path;
  std::string gloo_interface{"lo"};
};

// Connects processes of one host and one user over shared memory, at most 128 ranks. The memory is
// a memfd, so nothing is left behind when ranks die. All ranks give the same size and
// heap_bytes_per_rank.
[[nodiscard]] Expected<std::unique_ptr<Communicator>> connect_shm(
    const ConnectOptions& options, Deadline deadline);

// Connects hosts of a network over Gloo's TCP transport, at most 128 ranks. kUnimplemented where
// the build has no Gloo. Ignores SIGPIPE unless the program handles it: a dead peer must be an
// error, not a signal.
[[nodiscard]] Expected<std::unique_ptr<Communicator>> connect_gloo(
    const ConnectOptions& options, Deadline deadline);

// True if this build has the Gloo or NCCL backend.
[[nodiscard]] bool gloo_is_available();
[[nodiscard]] bool nccl_is_available();

// Reads RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_PORT, MUSTER_RUN_ID, MUSTER_GENERATION and
// MUSTER_COMM (shm | gloo; default shm when LOCAL_WORLD_SIZE = WORLD_SIZE, else gloo); gloo also
// reads MUSTER_GLOO_STORE (the shared folder) and MUSTER_GLOO_INTERFACE (default lo). Without RANK
// it is a world of one. A missing or unusable variable is kInvalidArgument and named.
[[nodiscard]] Expected<std::unique_ptr<Communicator>> connect_from_environment(Deadline deadline);

}  // namespace muster::comm
