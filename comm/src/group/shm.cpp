// SPDX-License-Identifier: Apache-2.0
#include "comm/src/group/communicator.h"
#include "comm/src/group/mapping.h"
#include "comm/src/group/shm_rendezvous.h"

#include <muster/comm/backends.h>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <numeric>

namespace muster::comm {

namespace {

std::uint64_t whole_pages(std::uint64_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

// [SessionBlock][staging of every group and rank][heap of rank 0][heap of rank 1]...
struct Layout {
  std::uint64_t staging_begin;
  std::uint64_t heaps_begin;
  std::uint64_t heap_size;
  std::uint64_t bytes;
};

Layout layout_of(const ConnectOptions& options) {
  const auto size = static_cast<std::uint64_t>(options.size);
  Layout layout{};
  layout.staging_begin = whole_pages(sizeof(SessionBlock));
  layout.heaps_begin = layout.staging_begin + kGroupMax * size * kStagingBytes;
  layout.heap_size = whole_pages(std::max<std::uint64_t>(options.heap_bytes_per_rank, 1));
  layout.bytes = layout.heaps_begin + size * layout.heap_size;
  return layout;
}

Status check_shm(const ConnectOptions& options) {
  if (options.size < 1 || options.size > kRankMax) {
    return invalid_argument(
        "world size must be between 1 and ", kRankMax, " with shm, got ", options.size);
  }
  if (options.rank < 0 || options.rank >= options.size) {
    return invalid_argument(
        "rank must be between 0 and ", options.size - 1, ", got ", options.rank);
  }
  if (options.heap_bytes_per_rank > std::size_t{1} << 40) {
    return invalid_argument("heap_bytes_per_rank is over 1 TiB");
  }
  return {};
}

Expected<std::shared_ptr<void>> map(const FileDescriptor& memory, std::uint64_t bytes) {
  void* mapping =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, memory.get(), 0);
  if (mapping == MAP_FAILED) {
    return io_error(
        concat(
            "mapping ",
            bytes,
            " bytes of address space (lower heap_bytes_per_rank when it is limited)"),
        errno);
  }
  return std::shared_ptr<void>{mapping, [bytes](void* begin) { ::munmap(begin, bytes); }};
}

// From here on the other ranks notice by our process id when we die.
std::shared_ptr<Session> join(
    const ConnectOptions& options,
    const Layout& layout,
    std::shared_ptr<void> mapping,
    FileDescriptor file) {
  auto* begin = static_cast<std::byte*>(mapping.get());
  Session::Parts parts;
  parts.block = static_cast<SessionBlock*>(mapping.get());
  parts.memory = std::move(mapping);
  parts.staging = begin + layout.staging_begin;
  parts.heap = std::make_unique<MappedHeap>(
      begin,
      layout.heaps_begin + static_cast<std::uint64_t>(options.rank) * layout.heap_size,
      layout.heap_size);
  parts.file = std::make_shared<const FileDescriptor>(std::move(file));
  parts.file_bytes = layout.bytes;
  parts.backend = "shm";
  parts.rank = options.rank;
  parts.size = options.size;
  parts.pid = ::getpid();
  std::uint32_t unused = 0;  // The first rank to arrive counts all members of the world.
  parts.block->group_members[0].compare_exchange_strong(
      unused, static_cast<std::uint32_t>(options.size));
  return std::make_shared<Session>(std::move(parts));
}

}  // namespace

Expected<std::unique_ptr<Communicator>> connect_shm(
    const ConnectOptions& options, Deadline deadline) {
  MUSTER_RETURN_IF_ERROR(check_shm(options));
  const Layout layout = layout_of(options);
  MUSTER_ASSIGN_OR_RETURN(
      FileDescriptor memory,
      options.rank == 0 ? create_shared_memory(layout.bytes)
                        : fetch_shared_memory(options, layout.bytes, deadline));
  MUSTER_ASSIGN_OR_RETURN(std::shared_ptr<void> mapping, map(memory, layout.bytes));
  const std::shared_ptr<Session> session =
      join(options, layout, std::move(mapping), std::move(memory));
  std::vector<int> members(static_cast<std::size_t>(options.size));
  std::iota(members.begin(), members.end(), 0);
  auto world = std::make_unique<GroupCommunicator>(
      session, std::size_t{0}, options.rank, std::move(members));
  // Rank 0 has joined before it hands the memory out: a rank that gets it sees when rank 0 dies or
  // gives up.
  if (options.rank == 0) {
    if (const Status met = hand_out_memory(options, *session->file(), layout.bytes, deadline);
        !met.ok()) {
      return session->fail(met);
    }
  }
  MUSTER_RETURN_IF_ERROR(world->barrier(deadline));
  return std::unique_ptr<Communicator>{std::move(world)};
}

}  // namespace muster::comm
