// Memory that every rank of a host can reach at the same place: chunks of equal size, one of each
// rank, mapped back to back in every rank, so that
//   pointer(peer, offset) = base() + peer * stride() + offset
// holds everywhere. On a GPU the same formula is a VMM mapping or an NCCL window.
//
// Ranks may be threads (make_local_group) or processes (connect_shm) and groups that were split
// off; other backends are refused with kUnimplemented. Backed by memfd: nothing is left behind when
// ranks die. A chunk takes pages only when they are touched. The pages before the first and behind
// the last chunk cannot be touched; from one chunk into the next nothing stops an overrun.
//
// Thread-safety: one thread at a time per rank; a heap has meeting places of its own, so another
// thread may use the communicator meanwhile. Access to peers' memory is ordered by barrier() only:
// what a rank wrote anywhere before it is visible to all after it.
//
// Errors: a peer that is dead or late ends a wait with a Status that names the rank (its number in
// the world, as in all messages) and the phase it did not reach, and poisons the communicator like
// any failed collective. Nothing throws.
//
// Destruction is local, in any order: a rank that is done takes nothing away from the others, which
// only can no longer wait for it. The memory goes back to the system with the last heap.
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

  // In the group that it was created on. Plain reads: good for inner loops.
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

  // Where `memory` of this rank's chunk lies in it.
  [[nodiscard]] std::size_t offset_of(const void* memory) const {
    return static_cast<std::size_t>(static_cast<const std::byte*>(memory) - pointer(rank(), 0));
  }

  // Offset of `bytes` of the chunk that nothing else uses, a multiple of `alignment` (a power of
  // two up to the granularity). Local, but all ranks must ask in the same order for the same sizes;
  // seal() compares. kResourceExhausted with what is wanted, left and the whole, kInvalidArgument
  // for an alignment; both change nothing. Never freed.
  [[nodiscard]] virtual Expected<std::size_t> allocate(
      std::size_t bytes, std::size_t alignment = 64) = 0;

  // Collective: kInvalidArgument naming the ranks whose allocations differ. May be called again
  // after further allocations.
  [[nodiscard]] virtual Status seal(Deadline deadline) = 0;

  // One piece of a view: [offset, offset + bytes) of a rank's chunk, multiples of the granularity.
  struct Piece {
    int peer{0};
    std::size_t offset{0};
    std::size_t bytes{0};
  };

  // The same pages once more, the pieces back to back: a tensor whose parts lie on several ranks as
  // one contiguous one. Lives as long as the heap. Local. kInvalidArgument naming the piece that is
  // not in whole pages of a chunk, kResourceExhausted where the process may not map more.
  [[nodiscard]] virtual Expected<std::span<std::byte>> map_view(std::span<const Piece> pieces) = 0;

  // Collective. `phase` names the place in messages ("dispatch of layer 3", of which they show the
  // first 112 bytes); a literal or memory that outlives the call, and the same on all ranks, else
  // kInvalidArgument with both names. `waited` [size] or empty: adds the nanoseconds by which each
  // peer came after this rank (0 for those that were here before): this rank's row of the wait
  // matrix.
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
