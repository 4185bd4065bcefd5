// SPDX-License-Identifier: Apache-2.0
// Floats that begin on a cache line, on large pages where they are many.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>

namespace muster {

// Grows to the largest request and keeps it; contents are lost when it grows. Not thread-safe.
class AlignedBuffer {
 public:
  // At least `count` floats, uninitialised, until the next call.
  float* reserve(std::int64_t count);

  [[nodiscard]] std::int64_t size() const { return size_; }

 private:
  struct Free {
    void operator()(float* memory) const { std::free(memory); }
  };

  std::unique_ptr<float, Free> memory_;
  std::int64_t size_{0};
};

}  // namespace muster
