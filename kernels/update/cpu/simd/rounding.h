// SPDX-License-Identifier: Apache-2.0
// Counter-based random bits for stochastic rounding.
#pragma once

#include "kernels/cpu/simd/bits.h"

#include <muster/kernels/low_precision.h>

namespace muster::kernels::MUSTER_SIMD_ISA {

// A bijection of 64 bits without visible structure (splitmix64's finaliser, Stafford's mix 13).
MUSTER_INLINE std::uint64_t mix_bits(std::uint64_t x) {
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31U);
}

// The random bits of 2^32 consecutive elements: a 32-bit hash of the lower half of the index,
// between and before whose multiplications the two halves of a 64-bit key come in. The key hashes
// seed, step, tensor and the upper half of the index.
struct RoundingWords {
  std::uint32_t before{0};
  std::uint32_t between{0};
};

MUSTER_INLINE RoundingWords rounding_words(std::uint64_t stream, std::uint64_t upper_index) {
  const std::uint64_t key = mix_bits(stream + upper_index * 0x9E3779B97F4A7C15U);
  return {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32U)};
}

MUSTER_INLINE std::uint64_t rounding_stream(const RoundingKey& key) {
  constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15U;
  std::uint64_t state = mix_bits(key.seed + kGolden);
  state = mix_bits(state ^ (static_cast<std::uint64_t>(key.step) + kGolden));
  return mix_bits(state ^ (key.tensor + kGolden));
}

// The upper 16 bits are the random ones. (Multipliers and shifts: Wellons' search for 32-bit
// mixers of low bias.)
template <typename W>
MUSTER_INLINE W hash_index(W index, W before, W between) {
  W x = index + before;
  x = (x ^ (x >> 16U)) * 0x7FEB352DU;
  x = x + between;
  x = (x ^ (x >> 15U)) * 0x846CA68BU;
  return x ^ (x >> 16U);
}

// Bits of a bf16: x plus 16 random bits below the cut, cut. NaN becomes quiet, infinity stays.
template <typename V>
MUSTER_INLINE Words<V> to_bf16_stochastic(V x, Words<V> random) {
  const auto bits = Words<V>(x);
  const auto magnitude = bits & ~kSignBit;
  const auto moved = (bits + (random >> 16U)) >> 16U;
  const auto quiet = (bits >> 16U) | 0x40U;
  const auto special = magnitude > kInfinityBits ? quiet : (bits >> 16U);
  return magnitude >= kInfinityBits ? special : moved;
}

// Rounds packs of one tensor whose elements come in any order.
class StochasticRounder {
 public:
  explicit StochasticRounder(const RoundingKey& key) : stream_(rounding_stream(key)) {
    set_upper(0);
  }

  // `index` of the first lane in the global tensor.
  MUSTER_INLINE void store(std::uint16_t* p, Pack<float> a, std::uint64_t index) {
    if (const std::uint64_t upper = index >> 32U; upper != upper_) [[unlikely]] {
      set_upper(upper);
    }
    const auto lower = static_cast<std::uint32_t>(index);
    store_as(p, a, [this, lower](int first, auto x) MUSTER_INLINE_LAMBDA {
      using V = decltype(x);
      const auto lanes = lane_numbers<V>() + (lower + static_cast<std::uint32_t>(first));
      auto before = Words<V>{} + here_.before;
      auto between = Words<V>{} + here_.between;
      if (lower > 0xFFFFFFFFU - kLanes<float>) [[unlikely]] {
        before = lanes < lower ? Words<V>{} + next_.before : before;
        between = lanes < lower ? Words<V>{} + next_.between : between;
      }
      return to_bf16_stochastic(x, hash_index(lanes, before, between));
    });
  }

 private:
  void set_upper(std::uint64_t upper) {
    upper_ = upper;
    here_ = rounding_words(stream_, upper);
    next_ = rounding_words(stream_, upper + 1);
  }

  std::uint64_t stream_;
  std::uint64_t upper_{0};
  RoundingWords here_;
  RoundingWords next_;
};

// Random bits of the elements of one 8-bit block, 16 of each: a function of the stream, the block's
// index and the place in the block, as blocks are cut alike in every layout. A xorshift generator
// per lane starts from the hash of the block; a word serves two packs. (A hash per element takes as
// long as all else that is done to it.)
class BlockRandom {
 public:
  // `index` of the block's element 0 in the global tensor.
  MUSTER_INLINE BlockRandom(std::uint64_t stream, std::uint64_t index) {
    const RoundingWords words = rounding_words(stream, index);
    std::uint32_t lanes[kLanes<float>];
    for (std::uint32_t i = 0; i < kLanes<float>; ++i) {
      lanes[i] = i;
    }
    words_ = map(
        [&words](auto lane) MUSTER_INLINE_LAMBDA {
          using W = Words<decltype(lane)>;
          return decltype(lane)(hash_index(W(lane), W{} + words.before, W{} + words.between));
        },
        load<Pack<float>>(lanes));
  }

  // Words of the next pack with an even number, in the lanes of floats.
  MUSTER_INLINE Pack<float> next() {
    words_ = map(
        [](auto lanes) MUSTER_INLINE_LAMBDA {
          auto x = Words<decltype(lanes)>(lanes);
          x = x ^ (x << 13U);
          x = x ^ (x >> 17U);
          return decltype(lanes)(x ^ (x << 5U));
        },
        words_);
    return words_;
  }

 private:
  Pack<float> words_{};
};

}  // namespace muster::kernels::MUSTER_SIMD_ISA
