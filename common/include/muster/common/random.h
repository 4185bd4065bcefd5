// SPDX-License-Identifier: Apache-2.0
// Counter-based random numbers: the same (seed, stream, counter) gives the same value on every
// machine, rank and thread, so that data order and initial weights survive restart and resharding.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace muster {

// Philox-4x32-10 (Salmon et al., SC 2011). A value; copy it to fork a stream.
class Random {
 public:
  explicit Random(std::uint64_t seed, std::uint64_t stream = 0) : seed_(seed), stream_(stream) {}

  [[nodiscard]] std::uint64_t next_u64();

  // Uniform in [0, 1).
  [[nodiscard]] double uniform();

  // Uniform in [0, bound); `bound` > 0.
  [[nodiscard]] std::uint64_t below(std::uint64_t bound);

  // Standard normal (Box-Muller, one value per call).
  [[nodiscard]] double normal();

  // Position in the stream; restoring it continues the sequence exactly.
  [[nodiscard]] std::uint64_t counter() const { return counter_; }

  void seek(std::uint64_t counter) { counter_ = counter; }

 private:
  std::uint64_t seed_;
  std::uint64_t stream_;
  std::uint64_t counter_{0};
};

// The Philox block for (seed, stream, counter), without state.
[[nodiscard]] std::array<std::uint32_t, 4> philox(
    std::uint64_t seed, std::uint64_t stream, std::uint64_t counter);

// 16 random bytes of the operating system as 32 hex digits: incarnations, tokens.
[[nodiscard]] std::string random_hex_id();

}  // namespace muster
