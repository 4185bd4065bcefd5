// SPDX-License-Identifier: Apache-2.0
// A bounded queue between exactly one producer thread and one consumer thread.
//
// Wait-free on both sides, no system call, no allocation after construction. Slots are reused: the
// producer fills a slot in place, so values that own memory keep their capacity.
//
// Invariants: (1) 0 <= head - tail <= capacity. (2) Only the producer moves head, only the
// consumer moves tail.
#pragma once

#include <muster/common/check.h>

#include <atomic>
#include <cstddef>
#include <vector>

namespace muster {

template <typename T>  // NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): a line per index
class SpscRing {
 public:
  // `capacity` > 0 slots, each a copy of `prototype`.
  explicit SpscRing(std::size_t capacity, const T& prototype = T{}) : slots_(capacity, prototype) {
    MUSTER_CHECK(capacity > 0, "a ring needs at least one slot");
  }

  // Producer. The slot to fill, or nullptr when the ring is full. Publish it with `publish`.
  [[nodiscard]] T* try_claim() {
    const std::size_t head = head_.load(std::memory_order_relaxed);
    if (head - cached_tail_ == slots_.size()) {
      cached_tail_ = tail_.load(std::memory_order_acquire);
      if (head - cached_tail_ == slots_.size()) {
        return nullptr;
      }
    }
    return &slots_[head % slots_.size()];
  }

  // Producer. Makes the claimed slot visible to the consumer.
  void publish() {
    head_.store(head_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }

  // Consumer. The oldest element, or nullptr when empty. Valid until `pop`.
  [[nodiscard]] T* front() {
    const std::size_t tail = tail_.load(std::memory_order_relaxed);
    if (tail == cached_head_) {
      cached_head_ = head_.load(std::memory_order_acquire);
      if (tail == cached_head_) {
        return nullptr;
      }
    }
    return &slots_[tail % slots_.size()];
  }

  // Consumer. Gives the front slot back.
  void pop() { tail_.store(tail_.load(std::memory_order_relaxed) + 1, std::memory_order_release); }

  // Either side; a snapshot.
  [[nodiscard]] std::size_t size() const {
    const std::size_t tail = tail_.load(std::memory_order_acquire);
    return head_.load(std::memory_order_acquire) - tail;
  }

  [[nodiscard]] std::size_t capacity() const { return slots_.size(); }

 private:
  std::vector<T> slots_;
  alignas(64) std::atomic<std::size_t> head_{0};
  std::size_t cached_tail_{0};  // Producer's.
  alignas(64) std::atomic<std::size_t> tail_{0};
  std::size_t cached_head_{0};  // Consumer's.
};

}  // namespace muster
