// SPDX-License-Identifier: Apache-2.0
// Optimizer states as the update loops see them: fp32 packs, whatever they are stored as.
//
// A loop goes through a shard in blocks of kQuantBlock elements: begin(), then load(j) and
// store(j) for every pack of the block, then end().
#pragma once

#include "kernels/update/cpu/simd/rounding.h"

#include <muster/kernels/update_kernels.h>

namespace muster::kernels::MUSTER_SIMD_ISA {

using Floats = Pack<float>;
using Doubles = PackOf<double, 2 * kPackBytes>;

inline constexpr int kBlockSize = static_cast<int>(kQuantBlock);
inline constexpr int kBlockPacks = kBlockSize / kLanes<float>;

// The lower 16 bits of each lane in the place of the upper ones.
MUSTER_INLINE Floats lower_halves(Floats words) {
  return map(
      [](auto x) MUSTER_INLINE_LAMBDA { return decltype(x)(Words<decltype(x)>(x) << 16U); }, words);
}

// ---- one block of codes --------------------------------------------------------------------

// Where the largest value of a block is gathered: as integers, so that NaN, larger than infinity,
// is not lost. Of negative floats the unsigned integer is larger than of any positive one.
struct BlockRange {
  Floats highest{};
  Floats lowest{};

  template <bool kSigned>
  MUSTER_INLINE void add(Floats x) {
    highest = max_bits<std::int32_t>(highest, x);
    if constexpr (kSigned) {
      lowest = max_bits<std::uint32_t>(lowest, x);
    }
  }
};

template <typename T>
MUSTER_INLINE std::uint32_t max_lane_bits(Floats a) {
#if defined(__AVX512F__)
  typedef T Half __attribute__((vector_size(32)));     // NOLINT
  typedef T Quarter __attribute__((vector_size(16)));  // NOLINT
  const auto larger = [](auto x, auto y) MUSTER_INLINE_LAMBDA { return x < y ? y : x; };
  Half halves[2];
  __builtin_memcpy(halves, &a, sizeof(a));
  const Half half = larger(halves[0], halves[1]);
  Quarter quarters[2];
  __builtin_memcpy(quarters, &half, sizeof(half));
  Quarter x = larger(quarters[0], quarters[1]);
  x = larger(x, Quarter(_mm_shuffle_epi32(__m128i(x), 0x4E)));
  x = larger(x, Quarter(_mm_shuffle_epi32(__m128i(x), 0xB1)));
  return static_cast<std::uint32_t>(x[0]);
#else
  std::uint32_t lanes[kLanes<float>];
  __builtin_memcpy(lanes, &a, sizeof(a));
  std::uint32_t result = 0;
  for (const std::uint32_t lane : lanes) {
    result = static_cast<T>(lane) > static_cast<T>(result) ? lane : result;
  }
  return result;
#endif
}

MUSTER_INLINE float float_of_bits(std::uint32_t bits) {
  float result = 0;
  __builtin_memcpy(&result, &bits, sizeof(result));
  return result;
}

inline constexpr std::uint32_t kRoundUp = 0xF0U;

struct BlockScale {
  float scale{0};
  float inverse{0};
};

// The scale of a block. The signed map ends at 1 and -0.993: a block whose extreme value is
// negative is scaled so that this value is the -0.993. Rounded to 16 significant bits, which the
// division by 0.993 cannot move: quantising what was dequantised gives the same scale and codes.
// At least the smallest normal float, so that its inverse is finite; 0 means that all are 0.
// `rounded_by` is 0x80 for the nearest 16 bits, kRoundUp for those that no value exceeds by more
// than the division can move it.
template <bool kSigned>
MUSTER_INLINE BlockScale block_scale(const BlockRange& range, std::uint32_t rounded_by) {
  constexpr std::uint32_t kLargestScale = 0x7F7FFF00U;
  float largest = float_of_bits(max_lane_bits<std::int32_t>(range.highest));
  if constexpr (kSigned) {
    const std::uint32_t lowest = max_lane_bits<std::uint32_t>(range.lowest);
    if (lowest > kSignBit) {
      const float negative = float_of_bits(lowest & ~kSignBit);
      const float scaled = negative / kQuantLowest;
      if (scaled - scaled != 0 && negative - negative == 0) {
        // No float is that large. What the map cannot reach is cut off.
        const float scale = float_of_bits(kLargestScale);
        return {scale, kQuantLowest / scale};
      }
      largest = scaled > largest || scaled != scaled ? scaled : largest;
    }
  }
  if (largest - largest != 0 || largest == 0) {
    return {largest, 0};
  }
  std::uint32_t bits = 0;
  __builtin_memcpy(&bits, &largest, sizeof(bits));
  bits = (bits + rounded_by) & ~0xFFU;
  bits = bits < 0x00800000U ? 0x00800000U : bits;
  const float scale = float_of_bits(bits < kInfinityBits ? bits : kLargestScale);
  return {scale, 1 / scale};
}

// The nearest codes of `packs` packs of values, rounded up to a multiple of four; returns the
// block's scale.
template <bool kSigned>
MUSTER_INLINE float quantise_block(
    const float* values, std::uint8_t* codes, int packs, const BlockRange& range) {
  const BlockScale block = block_scale<kSigned>(range, 0x80U);
  for (int i = 0; i < packs * kLanes<float>; i += 4 * kLanes<float>) {
    Floats places[4];
    for (int j = 0; j < 4; ++j) {
      places[j] = map(
          [&block](auto x) MUSTER_INLINE_LAMBDA {
            using V = decltype(x);
            return V(nearest_place<kSigned>(x, V{} + block.inverse));
          },
          load<Floats>(values + i + j * kLanes<float>));
    }
    store_codes<kSigned>(codes + i, places);
  }
  return block.scale;
}

// The same with codes rounded stochastically.
template <bool kSigned>
MUSTER_INLINE float quantise_block(
    const float* values,
    std::uint8_t* codes,
    int packs,
    const BlockRange& range,
    BlockRandom random) {
  const BlockScale block = block_scale<kSigned>(range, kRoundUp);
  for (int i = 0; i < packs * kLanes<float>; i += 4 * kLanes<float>) {
    Floats places[4];
    Floats words{};
    for (int j = 0; j < 4; ++j) {
      words = j % 2 == 0 ? random.next() : lower_halves(words);
      places[j] = map(
          [&block](auto x, auto word) MUSTER_INLINE_LAMBDA {
            using V = decltype(x);
            return V(stochastic_place<kSigned>(x, V{} + block.inverse, Words<V>(word)));
          },
          load<Floats>(values + i + j * kLanes<float>),
          words);
    }
    store_codes<kSigned>(codes + i, places);
  }
  return block.scale;
}

template <bool kSigned>
MUSTER_INLINE Floats dequantise_pack(const std::uint8_t* codes, Floats scale) {
  return load_as<Floats>(
             codes,
             [](auto code) MUSTER_INLINE_LAMBDA {
               typedef float V __attribute__((vector_size(sizeof(code))));  // NOLINT
               return map_value<kSigned, V>(code);
             }) *
         scale;
}

// ---- states --------------------------------------------------------------------------------

struct NoState {
  using Storage = float;
  static constexpr Storage kZero = 0;

  NoState(const StateView& /*view*/, const UpdateStep& /*step*/, float* /*scratch*/) {}

  static constexpr Storage* data() { return nullptr; }

  MUSTER_INLINE void begin(Storage* /*at*/, std::int64_t /*block*/, std::int64_t /*index*/) {}

  MUSTER_INLINE void prefetch(int /*i*/) const {}

  MUSTER_INLINE Floats load(int /*j*/) { return Floats{}; }

  MUSTER_INLINE void store(int /*j*/, Floats /*value*/) {}

  MUSTER_INLINE void end(int /*packs*/) {}
};

class FloatState {
 public:
  using Storage = float;
  static constexpr Storage kZero = 0;

  MUSTER_INLINE FloatState(const StateView& view, const UpdateStep& /*step*/, float* /*scratch*/)
      : data_(static_cast<float*>(view.data)) {}

  [[nodiscard]] MUSTER_INLINE Storage* data() const { return data_; }

  MUSTER_INLINE void begin(Storage* at, std::int64_t /*block*/, std::int64_t /*index*/) {
    at_ = at;
  }

  MUSTER_INLINE void prefetch(int i) const { __builtin_prefetch(at_ + i, 1); }

  MUSTER_INLINE Floats load(int j) {
    return kernels::MUSTER_SIMD_ISA::load<Floats>(at_ + j * kLanes<float>);
  }

  MUSTER_INLINE void store(int j, Floats value) {
    kernels::MUSTER_SIMD_ISA::store(at_ + j * kLanes<float>, value);
  }

  MUSTER_INLINE void end(int /*packs*/) {}

 private:
  float* data_;
  float* at_{nullptr};
};

class BFloat16State {
 public:
  using Storage = std::uint16_t;
  static constexpr Storage kZero = 0;

  MUSTER_INLINE BFloat16State(const StateView& view, const UpdateStep& step, float* /*scratch*/)
      : data_(static_cast<std::uint16_t*>(view.data)),
        rounder_({step.seed, step.step, view.tensor}) {}

  [[nodiscard]] MUSTER_INLINE Storage* data() const { return data_; }

  MUSTER_INLINE void begin(Storage* at, std::int64_t /*block*/, std::int64_t index) {
    at_ = at;
    index_ = static_cast<std::uint64_t>(index);
  }

  MUSTER_INLINE void prefetch(int i) const { __builtin_prefetch(at_ + i, 1); }

  MUSTER_INLINE Floats load(int j) {
    return load_as<Floats>(at_ + j * kLanes<float>, [](auto bits) MUSTER_INLINE_LAMBDA {
      typedef float V __attribute__((vector_size(sizeof(bits))));  // NOLINT
      return from_bf16<V>(bits);
    });
  }

  MUSTER_INLINE void store(int j, Floats value) {
    const int first = j * kLanes<float>;
    rounder_.store(at_ + first, value, index_ + static_cast<std::uint64_t>(first));
  }

  MUSTER_INLINE void end(int /*packs*/) {}

 private:
  std::uint16_t* data_;
  std::uint16_t* at_{nullptr};
  std::uint64_t index_{0};
  StochasticRounder rounder_;
};

template <bool kSigned>
class Int8State {
 public:
  using Storage = std::uint8_t;
  static constexpr Storage kZero = kSigned ? 127 : 0;

  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-member-init): begin() of a block fills tables_
  MUSTER_INLINE Int8State(const StateView& view, const UpdateStep& step, float* scratch)
      : data_(static_cast<std::uint8_t*>(view.data)),
        absmax_(view.absmax),
        values_(scratch),
        nearest_(step.code_rounding == CodeRounding::kNearest),
        stream_(rounding_stream({step.seed, step.step, view.tensor})) {}

  [[nodiscard]] MUSTER_INLINE Storage* data() const { return data_; }

  MUSTER_INLINE void begin(Storage* at, std::int64_t block, std::int64_t index) {
    at_ = at;
    block_ = block;
    index_ = static_cast<std::uint64_t>(index);
    scale_tables<kSigned>(tables_, absmax_[block]);
    range_ = {};
  }

  MUSTER_INLINE void prefetch(int i) const { __builtin_prefetch(at_ + i, 1); }

  MUSTER_INLINE Floats load(int j) {
    return load_as<Floats>(at_ + j * kLanes<float>, [this](auto code) MUSTER_INLINE_LAMBDA {
      typedef float V __attribute__((vector_size(sizeof(code))));  // NOLINT
      return scaled_value<kSigned, V>(tables_, code);
    });
  }

  MUSTER_INLINE void store(int j, Floats value) {
    range_.add<kSigned>(value);
    kernels::MUSTER_SIMD_ISA::store(values_ + j * kLanes<float>, value);
  }

  MUSTER_INLINE void end(int packs) {
    absmax_[block_] = nearest_ ? quantise_block<kSigned>(values_, at_, packs, range_)
                               : quantise_block<kSigned>(
                                     values_, at_, packs, range_, BlockRandom(stream_, index_));
  }

 private:
  std::uint8_t* data_;
  float* absmax_;
  float* values_;  // updated, not yet quantised: kBlockSize floats of the caller
  std::uint8_t* at_{nullptr};
  std::int64_t block_{0};
  std::uint64_t index_{0};
  ScaledTables tables_;
  BlockRange range_;
  bool nearest_;
  std::uint64_t stream_;
};

}  // namespace muster::kernels::MUSTER_SIMD_ISA
