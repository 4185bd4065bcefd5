// SPDX-License-Identifier: Apache-2.0
// Inputs that every rank can compute for every other, and straightforward results to compare with.
#pragma once

#include <muster/comm/communicator.h>
#include <muster/common/random.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <type_traits>
#include <vector>

namespace muster::comm {

// Returns the contribution of rank `rank`. Floating-point values have full mantissas and both
// signs, so that a sum in another order gives other bits.
template <typename T>
std::vector<T> sample(int rank, std::size_t count, std::uint64_t seed) {
  std::vector<T> values(count);
  std::uint64_t state = seed * 1000003 + static_cast<std::uint64_t>(rank) * 7919;
  for (T& value : values) {
    // The finisher of splitmix64: cheap, and every bit depends on the whole state.
    std::uint64_t bits = state += 0x9E3779B97F4A7C15;
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9;
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB;
    if constexpr (std::is_floating_point_v<T>) {
      value = static_cast<T>(static_cast<double>(static_cast<std::int64_t>(bits)) * 0x1p-63);
    } else {
      value = static_cast<T>(bits >> 54);
    }
  }
  return values;
}

// The reduction in rank order.
template <typename T>
std::vector<T> reduced(int size, std::size_t count, std::uint64_t seed, ReduceOp op) {
  std::vector<T> result = sample<T>(0, count, seed);
  for (int r = 1; r < size; ++r) {
    const std::vector<T> other = sample<T>(r, count, seed);
    for (std::size_t i = 0; i < count; ++i) {
      result[i] = op == ReduceOp::kSum ? static_cast<T>(result[i] + other[i])
                                       : std::max(result[i], other[i]);
    }
  }
  return result;
}

// "" when both are equal bit for bit.
template <typename T>
std::string difference(std::span<const T> got, std::span<const T> wanted, const std::string& what) {
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (std::memcmp(&got[i], &wanted[i], sizeof(T)) != 0) {
      return what + ": element " + std::to_string(i) + " is " + std::to_string(got[i]) +
             " instead of " + std::to_string(wanted[i]);
    }
  }
  return {};
}

// The memory in which a rank keeps the data of a call.
enum class Home { kPrivate, kHeap, kMixed };

// `values` in private memory or in memory of the communicator. Collective.
template <typename T>
class Buffer {
 public:
  Buffer(Communicator& communicator, const std::vector<T>& values, Home home, Deadline deadline)
      : private_(values), data_(private_) {
    const bool in_heap =
        home == Home::kHeap || (home == Home::kMixed && communicator.rank() % 2 == 0);
    if (home == Home::kPrivate) {
      return;
    }
    auto memory = communicator.allocate<T>(in_heap ? values.size() : 1, deadline);
    if (!memory) {
      error_ = memory.status().to_string();
    } else if (in_heap) {
      data_ = *memory;
      std::copy(values.begin(), values.end(), data_.begin());
    }
  }

  [[nodiscard]] std::span<T> data() const { return data_; }

  [[nodiscard]] const std::string& error() const { return error_; }

 private:
  std::vector<T> private_;
  std::span<T> data_;
  std::string error_;
};

// Uneven: rank r gets base + 3 r elements, and every fourth part is empty.
inline std::vector<std::size_t> uneven_counts(int size, std::size_t base) {
  std::vector<std::size_t> counts;
  for (int r = 0; r < size; ++r) {
    counts.push_back(r % 4 == 1 ? 0 : base + 3 * static_cast<std::size_t>(r));
  }
  return counts;
}

inline std::size_t sum_of(std::span<const std::size_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

}  // namespace muster::comm
