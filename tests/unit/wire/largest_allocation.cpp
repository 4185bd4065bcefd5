// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/wire/largest_allocation.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::size_t> largest_bytes{0};

}  // namespace

void* operator new(std::size_t size) {
  std::size_t seen = largest_bytes.load();
  while (seen < size && !largest_bytes.compare_exchange_weak(seen, size)) {
  }
  if (void* memory = std::malloc(size)) {
    return memory;
  }
  throw std::bad_alloc{};
}

void operator delete(void* memory) noexcept {
  std::free(memory);
}

void operator delete(void* memory, std::size_t /*size*/) noexcept {
  std::free(memory);
}

namespace muster::wire {

void reset_largest_allocation() {
  largest_bytes.store(0);
}

std::size_t largest_allocation_bytes() {
  return largest_bytes.load();
}

}  // namespace muster::wire
