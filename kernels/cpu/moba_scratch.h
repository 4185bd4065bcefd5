// Working memory of a thread for block attention, on large pages: rows are gathered from all over
// it, and with small ones every row would cost a walk through the page tables.
#pragma once

#include "cpu/aligned_buffer.h"

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

}  // namespace muster::kernels
