// SPDX-License-Identifier: Apache-2.0
#include "comm/src/group/arena.h"

#include "comm/src/group/mapping.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <iterator>
#include <new>
#include <string>

namespace muster::comm {

namespace {

constexpr std::align_val_t kAlignment{64};

}  // namespace

Expected<std::byte*> ThreadHeap::allocate(std::size_t size) {
  auto* memory = static_cast<std::byte*>(::operator new(size, kAlignment, std::nothrow));
  if (memory == nullptr) {
    return resource_exhausted("no memory for ", size, " bytes");
  }
  std::memset(memory, 0, size);
  return memory;
}

void ThreadHeap::free(std::byte* memory) {
  ::operator delete(memory, kAlignment);
}

std::optional<std::uint64_t> ThreadHeap::offset_of(
    const void* data, [[maybe_unused]] std::size_t size) const {
  return std::bit_cast<std::uint64_t>(data);
}

std::byte* ThreadHeap::resolve(std::uint64_t offset) const {
  return std::bit_cast<std::byte*>(offset);
}

MappedHeap::MappedHeap(std::byte* mapping, std::uint64_t begin, std::uint64_t size)
    : mapping_(mapping), begin_(begin), end_(begin + size) {
  free_[begin] = size;
}

Expected<std::byte*> MappedHeap::allocate(std::size_t size) {
  const std::uint64_t wanted = (size + kPageBytes - 1) / kPageBytes * kPageBytes;
  const auto fits = std::find_if(free_.begin(), free_.end(), [&](const auto& block) {
    return wanted >= size && block.second >= wanted;
  });
  if (fits == free_.end()) {
    std::uint64_t largest = 0;
    for (const auto& block : free_) {
      largest = std::max(largest, block.second);
    }
    return resource_exhausted(
        "no room for ",
        size,
        " bytes: the largest free block has ",
        largest,
        " of the ",
        end_ - begin_,
        " bytes of this rank; raise heap_bytes_per_rank");
  }
  const auto [offset, available] = *fits;
  free_.erase(fits);
  if (available > wanted) {
    free_[offset + wanted] = available - wanted;
  }
  used_[offset] = wanted;
  return mapping_ + offset;
}

void MappedHeap::free(std::byte* memory) {
  const auto used = used_.find(static_cast<std::uint64_t>(memory - mapping_));
  auto [offset, size] = *used;
  used_.erase(used);
  if (::madvise(memory, size, MADV_REMOVE) != 0) {
    std::memset(memory, 0, size);
  }
  const auto next = free_.find(offset + size);
  if (next != free_.end()) {
    size += next->second;
    free_.erase(next);
  }
  const auto after = free_.upper_bound(offset);
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == offset) {
      before->second += size;
      return;
    }
  }
  free_[offset] = size;
}

std::optional<std::uint64_t> MappedHeap::offset_of(const void* data, std::size_t size) const {
  const auto* begin = static_cast<const std::byte*>(data);
  // std::less orders pointers into different objects too.
  const std::less_equal<> not_after;
  if (!not_after(mapping_ + begin_, begin) || !not_after(begin, mapping_ + end_)) {
    return std::nullopt;
  }
  const auto offset = static_cast<std::uint64_t>(begin - mapping_);
  return size <= end_ - offset ? std::optional{offset} : std::nullopt;
}

std::byte* MappedHeap::resolve(std::uint64_t offset) const {
  return mapping_ + offset;
}

}  // namespace muster::comm
