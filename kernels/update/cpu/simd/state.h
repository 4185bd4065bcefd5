// SPDX-License-Identifier: Apache-2.0
// Optimizer states as the update loops see them: fp32 packs, whatever they are stored as.
//
// A loop goes through a shard in blocks of kQuantBlock elements: begin(), then load(j) and
// store(j) for every pack of the block, then end(). Where one of two states is kept in blocks, the
// other one calls keep(j) before store(j), so that undo() can stand for end().
#pragma once

#include "kernels/cpu/simd/math.h"
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

// Code changes of a state, see UpdateStatistics.
struct CodeMotion {
  double change{0};
  double motion{0};
};

// Place of a code, below 0 for negative values.
template <bool kSigned, typename V>
MUSTER_INLINE V place_of(Words<V> code) {
  using Signed = typename BitsOf<V>::Signed;
  return __builtin_convertvector(Signed(code) - (kSigned ? 127 : 0), V);
}

template <bool kSigned>
MUSTER_INLINE Floats load_places(const std::uint8_t* codes) {
  return load_as<Floats>(codes, [](auto code) MUSTER_INLINE_LAMBDA {
    typedef float V __attribute__((vector_size(sizeof(code))));  // NOLINT
    return place_of<kSigned, V>(code);
  });
}

template <bool kSigned>
MUSTER_INLINE CodeMotion code_motion(
    const std::uint8_t* before,
    const std::uint8_t* after,
    const float* values,
    float inverse,
    int packs) {
  Floats change{};
  Floats motion{};
  for (int i = 0; i < packs * kLanes<float>; i += kLanes<float>) {
    const Floats aim = map(
        [inverse](auto x) MUSTER_INLINE_LAMBDA {
          using V = decltype(x);
          const V place = position_below<kSigned>(x, V{} + inverse) + 1.0F;
          return kSigned ? V(Words<V>(place) | (Words<V>(x) & kSignBit)) : place;
        },
        load<Floats>(values + i));
    const Floats old = load_places<kSigned>(before + i);
    const Floats wanted = aim - old;
    const Floats moved = load_places<kSigned>(after + i) - old;
    change = change + absolute(wanted);
    motion = motion + map(
                          [](auto x, auto towards) MUSTER_INLINE_LAMBDA {
                            using V = decltype(x);
                            return V(Words<V>(x) ^ (Words<V>(towards) & kSignBit));
                          },
                          moved,
                          wanted);
  }
  return {sum(widen(change)), sum(widen(motion))};
}

// ---- states --------------------------------------------------------------------------------

struct NoState {
  using Storage = float;
  static constexpr Storage kZero = 0;
  static constexpr bool kBlocks = false;
  static constexpr float kHeadroom = 0;  // nothing is stored

  NoState(const StateView& /*view*/, const UpdateStep& /*step*/, float* /*scratch*/) {}

  static constexpr Storage* data() { return nullptr; }

  MUSTER_INLINE void begin(Storage* /*at*/, std::int64_t /*block*/, std::int64_t /*index*/) {}

  MUSTER_INLINE void prefetch(int /*i*/) const {}

  MUSTER_INLINE Floats load(int /*j*/) { return Floats{}; }

  MUSTER_INLINE void store(int /*j*/, Floats /*value*/) {}

  MUSTER_INLINE void keep(int /*j*/) {}

  MUSTER_INLINE void undo(int /*packs*/) {}

  [[nodiscard]] MUSTER_INLINE bool was_lost(int /*packs*/) const { return false; }

  template <bool kStatistics>
  MUSTER_INLINE void end(int /*packs*/) {}

  [[nodiscard]] static constexpr CodeMotion motion() { return {}; }
};

class FloatState {
 public:
  using Storage = float;
  static constexpr Storage kZero = 0;
  static constexpr bool kBlocks = false;
  static constexpr float kHeadroom = 1;

  MUSTER_INLINE FloatState(const StateView& view, const UpdateStep& /*step*/, float* scratch)
      : data_(static_cast<float*>(view.data)), kept_(scratch) {}

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

  MUSTER_INLINE void keep(int j) {
    kernels::MUSTER_SIMD_ISA::store(kept_ + j * kLanes<float>, load(j));
  }

  void undo(int packs) {
    __builtin_memcpy(at_, kept_, static_cast<std::size_t>(packs) * sizeof(Floats));
  }

  [[nodiscard]] bool was_lost(int packs) const {
    bool lost = false;
    for (int i = 0; i < packs * kLanes<float>; ++i) {
      lost = lost || kept_[i] - kept_[i] != 0;
    }
    return lost;
  }

  template <bool kStatistics>
  MUSTER_INLINE void end(int /*packs*/) {}

  [[nodiscard]] static constexpr CodeMotion motion() { return {}; }

 private:
  float* data_;
  float* kept_;  // kBlockSize floats of the caller
  float* at_{nullptr};
};

class BFloat16State {
 public:
  using Storage = std::uint16_t;
  static constexpr Storage kZero = 0;
  static constexpr bool kBlocks = false;
  // The largest float times this overflows, and so does what rounding up could make infinite.
  static constexpr float kHeadroom = 1.004F;

  MUSTER_INLINE BFloat16State(const StateView& view, const UpdateStep& step, float* scratch)
      : data_(static_cast<std::uint16_t*>(view.data)),
        kept_(scratch),
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

  MUSTER_INLINE void keep(int j) {
    __builtin_memcpy(kept_ + j * kLanes<float> / 2, at_ + j * kLanes<float>, sizeof(Floats) / 2);
  }

  void undo(int packs) {
    __builtin_memcpy(at_, kept_, static_cast<std::size_t>(packs) * sizeof(Floats) / 2);
  }

  [[nodiscard]] bool was_lost(int packs) const {
    std::uint16_t kept[kBlockSize] = {};
    __builtin_memcpy(kept, kept_, static_cast<std::size_t>(packs) * sizeof(Floats) / 2);
    bool lost = false;
    for (const std::uint16_t bits : kept) {
      lost = lost || (bits & 0x7F80U) == 0x7F80U;
    }
    return lost;
  }

  template <bool kStatistics>
  MUSTER_INLINE void end(int /*packs*/) {}

  [[nodiscard]] static constexpr CodeMotion motion() { return {}; }

 private:
  std::uint16_t* data_;
  float* kept_;  // kBlockSize floats of the caller
  std::uint16_t* at_{nullptr};
  std::uint64_t index_{0};
  StochasticRounder rounder_;
};

// Every block is looked at once in so many steps for statistics of its codes.
inline constexpr std::uint64_t kCodeSampling = 8;

template <bool kSigned>
class Int8State {
 public:
  using Storage = std::uint8_t;
  static constexpr Storage kZero = kSigned ? 127 : 0;
  static constexpr bool kBlocks = true;
  static constexpr float kHeadroom = 1;

  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-member-init): begin() of a block fills tables_
  MUSTER_INLINE Int8State(const StateView& view, const UpdateStep& step, float* scratch)
      : data_(static_cast<std::uint8_t*>(view.data)),
        absmax_(view.absmax),
        values_(scratch),
        step_(static_cast<std::uint64_t>(step.step)),
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

  // The codes and their scale are written by end() only.
  MUSTER_INLINE void keep(int /*j*/) {}

  MUSTER_INLINE void undo(int /*packs*/) {}

  [[nodiscard]] MUSTER_INLINE bool was_lost(int /*packs*/) const {
    return absmax_[block_] - absmax_[block_] != 0;
  }

  template <bool kStatistics>
  MUSTER_INLINE void end(int packs) {
    if (kStatistics && (index_ / kBlockSize + step_) % kCodeSampling == 0) [[unlikely]] {
      end_sampled(packs);
    } else {
      quantise(packs);
    }
  }

  [[nodiscard]] CodeMotion motion() const { return motion_; }

 private:
  std::uint8_t* data_;
  float* absmax_;
  float* values_;  // updated, not yet quantised: kBlockSize floats of the caller
  std::uint8_t* at_{nullptr};

  MUSTER_INLINE void quantise(int packs) {
    absmax_[block_] = nearest_ ? quantise_block<kSigned>(values_, at_, packs, range_)
                               : quantise_block<kSigned>(
                                     values_, at_, packs, range_, BlockRandom(stream_, index_));
  }

  __attribute__((noinline)) void end_sampled(int packs) {
    std::uint8_t before[kBlockSize];
    const bool was_zero = absmax_[block_] == 0;  // whatever its codes are
    for (int i = 0; i < packs * kLanes<float>; ++i) {
      before[i] = was_zero ? kZero : at_[i];
    }
    quantise(packs);
    const float scale = absmax_[block_];
    const CodeMotion one =
        code_motion<kSigned>(before, at_, values_, scale == 0 ? 0 : 1 / scale, packs);
    motion_.change += one.change;
    motion_.motion += one.motion;
  }

  std::int64_t block_{0};
  std::uint64_t index_{0};
  ScaledTables tables_;
  BlockRange range_;
  std::uint64_t step_;
  bool nearest_;
  std::uint64_t stream_;
  CodeMotion motion_;
};

}  // namespace muster::kernels::MUSTER_SIMD_ISA
