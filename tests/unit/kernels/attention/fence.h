// SPDX-License-Identifier: Apache-2.0
// Tensors of attention tests: elements of any type, in memory fenced by inaccessible pages.
#pragma once

#include "tests/unit/kernels/numbers.h"

#include <gtest/gtest.h>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

namespace muster::kernels::test {

// Under a sanitizer a suite shall not take minutes. What it looks for, memory and races, shows in a
// few cases of a kind as in many; the numbers of the others are for the release build to check.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

inline std::uint16_t bf16_of(double value) {
  const auto narrow = static_cast<float>(value);
  std::uint32_t bits = 0;
  std::memcpy(&bits, &narrow, sizeof(bits));
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) {
    return static_cast<std::uint16_t>((bits >> 16U) | 0x40U);
  }
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U);
}

inline double value_of(std::uint16_t bf16) {
  const std::uint32_t bits = static_cast<std::uint32_t>(bf16) << 16U;
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return static_cast<double>(value);
}

inline double value_of(float value) {
  return static_cast<double>(value);
}

inline double value_of(double value) {
  return value;
}

template <typename E>
E element_of(double value) {
  if constexpr (std::is_same_v<E, std::uint16_t>) {
    return bf16_of(value);
  } else {
    return static_cast<E>(value);
  }
}

// `count` elements that end where an unreadable page begins, or begin where one ends.
template <typename E>
class Fenced {
 public:
  Fenced(std::size_t count, E fill, bool at_end = true) : count_(count) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t bytes = (count * sizeof(E) + page - 1) / page * page;
    size_ = bytes + 2 * page;
    map_ = mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(map_, MAP_FAILED);
    char* usable = static_cast<char*>(map_) + page;
    EXPECT_TRUE(bytes == 0 || mprotect(usable, bytes, PROT_READ | PROT_WRITE) == 0);
    data_ =
        static_cast<E*>(static_cast<void*>(at_end ? usable + bytes - count * sizeof(E) : usable));
    std::fill_n(data_, count, fill);
  }

  ~Fenced() { munmap(map_, size_); }

  Fenced(const Fenced&) = delete;
  Fenced& operator=(const Fenced&) = delete;

  [[nodiscard]] E* data() { return data_; }

  [[nodiscard]] std::size_t size() const { return count_; }

  E& operator[](std::size_t i) { return data_[i]; }

  void set(const Values& values) {
    for (std::size_t i = 0; i < count_; ++i) {
      data_[i] = element_of<E>(values[i]);
    }
  }

  [[nodiscard]] Values values() const {
    Values result(count_);
    for (std::size_t i = 0; i < count_; ++i) {
      result[i] = value_of(data_[i]);
    }
    return result;
  }

  [[nodiscard]] std::vector<E> copy() const { return {data_, data_ + count_}; }

 private:
  std::size_t count_;
  std::size_t size_;
  void* map_;
  E* data_;
};

}  // namespace muster::kernels::test
