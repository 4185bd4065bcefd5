// Working memory of a thread: grows to the largest request, stays until the thread ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace muster::kernels {

// `count` elements, 64-byte aligned, uninitialised. The next call on the same thread with the same
// type takes the memory back.
template <typename T>
T* thread_scratch(std::int64_t count) {
  thread_local std::vector<std::byte> memory;
  constexpr std::size_t kAlignment = 64;
  const std::size_t size = static_cast<std::size_t>(count) * sizeof(T);
  if (memory.size() < size + kAlignment) {
    memory.resize(size + kAlignment);
  }
  void* start = memory.data();
  std::size_t space = memory.size();
  return static_cast<T*>(std::align(kAlignment, size, start, space));
}

}  // namespace muster::kernels
