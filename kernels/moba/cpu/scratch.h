// SPDX-License-Identifier: Apache-2.0
// Working memory of a thread for block attention, on large pages: rows are gathered from all over
// it, and with small ones every row would cost a walk through the page tables.
#pragma once

#include <muster/common/aligned_buffer.h>
#include <muster/common/check.h>

#include <cstdint>

namespace muster::kernels {

// `count` elements, 64-byte aligned, uninitialised. The next call on the same thread takes the
// memory back; it stays until the thread ends.
template <typename T>
T* moba_scratch(std::int64_t count) {
  thread_local AlignedBuffer memory;
  constexpr auto kFloats = static_cast<std::int64_t>(sizeof(T) / sizeof(float));
  return static_cast<T*>(static_cast<void*>(memory.reserve(count * kFloats)));
}

// 64-byte aligned pieces of one piece of memory of `size` elements.
template <typename T>
class MobaArena {
 public:
  MobaArena(T* memory, std::int64_t size) : next_(memory), left_(size) {}

  T* take(std::int64_t count) {
    T* result = next_;
    next_ += rounded(count);
    left_ -= rounded(count);
    MUSTER_CHECK(left_ >= 0, "working memory of block attention is too small");
    return result;
  }

  static constexpr std::int64_t rounded(std::int64_t count) {
    constexpr std::int64_t kLine = 64 / static_cast<std::int64_t>(sizeof(T));
    return (count + kLine - 1) / kLine * kLine;
  }

 private:
  T* next_;
  std::int64_t left_;
};

}  // namespace muster::kernels
