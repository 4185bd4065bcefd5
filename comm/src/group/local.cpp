// SPDX-License-Identifier: Apache-2.0
#include "comm/src/group/communicator.h"

#include <muster/comm/backends.h>

#include <sys/mman.h>

#include <new>
#include <numeric>

namespace muster::comm {

namespace {

// Zeroed pages, taken only when touched: most of the block's groups never are.
std::shared_ptr<void> map_block() {
  void* memory = ::mmap(
      nullptr,
      sizeof(SessionBlock),
      PROT_READ | PROT_WRITE,
      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
      -1,
      0);
  if (memory == MAP_FAILED) {
    throw std::bad_alloc{};
  }
  return {memory, [](void* block) { ::munmap(block, sizeof(SessionBlock)); }};
}

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_local_group(int size) {
  MUSTER_CHECK(size >= 1 && size <= kRankMax, concat("local group of ", size, " ranks"));
  const std::shared_ptr<void> memory = map_block();
  auto* block = static_cast<SessionBlock*>(memory.get());
  block->group_members[0].store(static_cast<std::uint32_t>(size));
  std::vector<int> members(static_cast<std::size_t>(size));
  std::iota(members.begin(), members.end(), 0);
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (const int rank : members) {
    Session::Parts parts;
    parts.block = block;
    parts.memory = memory;
    parts.heap = std::make_unique<ThreadHeap>();
    parts.backend = "local";
    parts.rank = rank;
    parts.size = size;
    ranks.push_back(std::make_unique<GroupCommunicator>(
        std::make_shared<Session>(std::move(parts)), std::size_t{0}, rank, members));
  }
  return ranks;
}

}  // namespace muster::comm
