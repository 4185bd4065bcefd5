// SPDX-License-Identifier: Apache-2.0
#include "tests/support/allocation_count.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

thread_local long own = 0;
std::atomic<long> all{0};

void* counted(std::size_t size) noexcept {
  ++own;
  all.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(size == 0 ? 1 : size);
}

void* counted_or_throw(std::size_t size) {
  if (void* const memory = counted(size)) {
    return memory;
  }
  throw std::bad_alloc{};
}

}  // namespace

void* operator new(std::size_t size) {
  return counted_or_throw(size);
}

void* operator new[](std::size_t size) {
  return counted_or_throw(size);
}

void* operator new(std::size_t size, const std::nothrow_t& /*tag*/) noexcept {
  return counted(size);
}

void* operator new[](std::size_t size, const std::nothrow_t& /*tag*/) noexcept {
  return counted(size);
}

void operator delete(void* memory) noexcept {
  std::free(memory);
}

void operator delete[](void* memory) noexcept {
  std::free(memory);
}

void operator delete(void* memory, std::size_t /*size*/) noexcept {
  std::free(memory);
}

void operator delete[](void* memory, std::size_t /*size*/) noexcept {
  std::free(memory);
}

namespace muster::test {

long allocations_of_this_thread() {
  return own;
}

long allocations_of_all_threads() {
  return all.load(std::memory_order_relaxed);
}

}  // namespace muster::test
