// SPDX-License-Identifier: Apache-2.0
// Memory shared by all ranks of a host: one chunk of equal size per rank, mapped back to back in
// every rank, so that
//   pointer(peer, offset) = base() + peer * stride() + offset
// holds on all of them. On a GPU the same formula is a VMM mapping or an NCCL window.
//
// Ranks may be threads (make_local_group), processes (connect_shm) or groups split off from them;
// kUnimplemented for other backends. The memory is a memfd, so nothing is left behind when ranks
// die, and it takes pages only when they are touched. Guard pages surround the chunks as a whole;
// they do not stop an overrun from one chunk into the next.
//
// Thread-safety: one thread at a time per rank. A heap has its own barriers, so another thread may
// use the communicator meanwhile. Only barrier() orders access to peers' memory: all writes of a
// rank before it are visible to every rank after it.
//
// Errors: a dead or late peer ends a wait with a Status that names the rank (its number in the
// world, as in all messages) and the phase that it did not reach. It poisons the communicator like
// any failed collective. Nothing throws.
//
// Destruction is local, in any order. It leaves the memory valid for the other ranks, which can no
// longer synchronise with this one. The memory is freed with the last rank's heap.
#pragma once

#include <muster/comm/communicator.h>
#include <muster/common/clock.h>
#include <muster/common/expected.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace muster::comm {

// Granularity of chunks and views, in bytes.
inline constexpr std::size_t kSymmetricGranularity = 4096;

class SymmetricHeap {
 public:
  // Collective. `bytes` per rank, equal on all (else kInvalidArgument with both numbers), rounded
  // up to the granularity. `ranks` must outlive the heap. Zeroed.
  [[nodiscard]] static Expected<std::unique_ptr<SymmetricHeap>> create(
      Communicator& ranks, std::size_t bytes, Deadline deadline);

  SymmetricHeap(const SymmetricHeap&) = delete;
  SymmetricHeap& operator=(const SymmetricHeap&) = delete;
  SymmetricHeap(SymmetricHeap&&) = delete;
  SymmetricHeap& operator=(SymmetricHeap&&) = delete;
  virtual ~SymmetricHeap() = default;

  // Rank and size of the group that the heap was created on. Plain reads, cheap in inner loops.
  [[nodiscard]] int rank() const { return region_.rank; }

  [[nodiscard]] int size() const { return region_.size; }

  [[nodiscard]] std::byte* base() const { return region_.base; }

  [[nodiscard]] std::size_t stride() const { return region_.stride; }

  [[nodiscard]] std::byte* pointer(int peer, std::size_t offset) const {
    return region_.base + static_cast<std::size_t>(peer) * region_.stride + offset;
  }

  template <typename T>
  [[nodiscard]] T* at(int peer, std::size_t offset) const {
    return reinterpret_cast<T*>(pointer(peer, offset));  // NOLINT
  }

  // Returns the offset of `memory` within this rank's chunk.
  [[nodiscard]] std::size_t offset_of(const void* memory) const {
    return static_cast<std::size_t>(static_cast<const std::byte*>(memory) - pointer(rank(), 0));
  }

  // Reserves `bytes` of the chunk and returns their offset, a multiple of `alignment` (a power of
  // two up to the granularity). Local, but all ranks must request the same sizes in the same order;
  // seal() compares them. kResourceExhausted with the bytes requested, left and in total, and
  // kInvalidArgument for a bad alignment; both change nothing. Never freed.
  [[nodiscard]] virtual Expected<std::size_t> allocate(
      std::size_t bytes, std::size_t alignment = 64) = 0;

  // Collective: kInvalidArgument naming the ranks whose allocations differ. May be called again
  // after further allocations.
  [[nodiscard]] virtual Status seal(Deadline deadline) = 0;

  // A piece of a view: [offset, offset + bytes) of a rank's chunk, multiples of the granularity.
  struct Piece {
    int peer{0};
    std::size_t offset{0};
    std::size_t bytes{0};
  };

  // Maps the same pages a second time, with the pieces back to back: a tensor in parts on several
  // ranks appears contiguous. Valid as long as the heap. Local. kInvalidArgument names a piece that
  // does not consist of whole pages of a chunk, kResourceExhausted if the process may not map more.
  [[nodiscard]] virtual Expected<std::span<std::byte>> map_view(std::span<const Piece> pieces) = 0;

  // Collective. `phase` names the place in messages ("dispatch of layer 3", of which they show the
  // first 112 bytes). It must outlive the call and be the same on all ranks, otherwise
  // kInvalidArgument with both names. Adds to `waited` ([size]; may be empty) the nanoseconds by
  // which each peer arrived after this rank, or zero: this rank's row of the wait matrix.
  [[nodiscard]] virtual Status barrier(
      std::string_view phase, Deadline deadline, std::span<std::int64_t> waited = {}) = 0;

 protected:
  struct Region {
    int rank{0};
    int size{0};
    std::byte* base{nullptr};
    std::size_t stride{0};
  };

  explicit SymmetricHeap(const Region& region) : region_(region) {}

 private:
  Region region_;
};

}  // namespace muster::comm
