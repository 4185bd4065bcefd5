// SPDX-License-Identifier: Apache-2.0
// Where allocate() takes memory from, and which memory peers can reach.
//
// Thread-safety: one thread at a time, like the communicator.
#pragma once

#include <muster/common/expected.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

namespace muster::comm {

class Heap {
 public:
  Heap() = default;
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;
  Heap(Heap&&) = delete;
  Heap& operator=(Heap&&) = delete;
  virtual ~Heap() = default;

  // Zeroed, 64-byte aligned; kResourceExhausted when it does not fit. `size` > 0.
  [[nodiscard]] virtual Expected<std::byte*> allocate(std::size_t size) = 0;
  virtual void free(std::byte* memory) = 0;

  // Returns the offset at which peers find [data, data + size), or nothing if they cannot reach it.
  [[nodiscard]] virtual std::optional<std::uint64_t> offset_of(
      const void* data, std::size_t size) const = 0;

  // The inverse, for an offset that a peer has published.
  [[nodiscard]] virtual std::byte* resolve(std::uint64_t offset) const = 0;
};

// Ranks are threads: all memory is reachable and an offset is an address.
class ThreadHeap final : public Heap {
 public:
  [[nodiscard]] Expected<std::byte*> allocate(std::size_t size) override;
  void free(std::byte* memory) override;
  [[nodiscard]] std::optional<std::uint64_t> offset_of(
      const void* data, std::size_t size) const override;
  [[nodiscard]] std::byte* resolve(std::uint64_t offset) const override;
};

// This rank's region of a mapping that all ranks share. First fit over whole pages; freed pages go
// back to the system, which also zeroes them for the next owner.
class MappedHeap final : public Heap {
 public:
  // The region is [mapping + begin, mapping + begin + size), both multiples of the page size.
  MappedHeap(std::byte* mapping, std::uint64_t begin, std::uint64_t size);

  [[nodiscard]] Expected<std::byte*> allocate(std::size_t size) override;
  void free(std::byte* memory) override;
  [[nodiscard]] std::optional<std::uint64_t> offset_of(
      const void* data, std::size_t size) const override;
  [[nodiscard]] std::byte* resolve(std::uint64_t offset) const override;

 private:
  std::byte* mapping_;
  std::uint64_t begin_;
  std::uint64_t end_;
  std::map<std::uint64_t, std::uint64_t> free_;  // offset -> size; neighbours are merged.
  std::map<std::uint64_t, std::uint64_t> used_;
};

}  // namespace muster::comm
