// SPDX-License-Identifier: Apache-2.0
// The dynamic 8-bit maps as arithmetic: what quantise, dequantise and quant_map() compute from.
//
// The map is piecewise linear: piece 0 is the value 0, pieces 1 to 7 are the decades
// [10^(i-7), 10^(i-6)] cut into n equal bins whose middles are the values (n = 1, 2, .. 64 in the
// signed map, 2, 4, .. 128 in the unsigned one), piece 8 is the value 1. Because n doubles, the
// piece of a code is the exponent of the code written as a float; the piece of a value is found
// from its own exponent and one comparison. So both directions take a handful of vector
// instructions and tables of 16 entries, which fit into a register.
//
// Every value of the map is (a + b) * c in floats: without a fused multiply-add in it, it has the
// same bits on every instruction set. An update reads a state as f * (c s) + (b c s) with the scale
// s of its block, within a few units in the last place of that.
#pragma once

#include <bit>
#include <cstdint>

namespace muster::kernels {

inline constexpr int kQuantPieces = 9;

// Added to every |x| before it is looked up, so that the lookup by its exponent is defined for 0
// too. The tables allow for it.
inline constexpr float kQuantFloor = 0x1p-30F;

struct QuantTables {
  // Of the argument f = code + 1 (unsigned) or |code - 127| + 1/2 (signed): value = (f + shift) *
  // step, looked up by the low four bits of the exponent field of f.
  float step[16]{};
  float shift[16]{};
  float start[16]{};  // shift * step, for value = f * step + start
  // Looked up by bits 24 to 27 of |x|, that is by ranges of a factor of four from 2^-31 on: the
  // only border between pieces inside the range, whose last four bits are the piece below it.
  float border[16]{};
  // By piece: code (signed: its distance from 127) = min(x * scale + offset, last), cut off.
  float scale[16]{};
  float offset[16]{};
  float last[16]{};
};

// Position of a value x in the map, minus 1: the code (signed: its distance from 127) where x is a
// value of the map, linear between neighbours. Inside a piece the line of the bins is the lower
// one, towards the next piece, whose bins are wider, the line of the gap. The last gap, to the
// value 1, is steeper, so piece 8 begins at the last value of piece 7.
struct PositionTables {
  float border[16]{};  // as in QuantTables, but at the first value of a piece
  // By piece.
  float scale[16]{};
  float offset[16]{};
  float gap_scale[16]{};
  float gap_offset[16]{};
};

namespace detail {

inline constexpr double kDecade[] = {1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1};

// Bins of piece 1..7.
constexpr double quant_bins(bool is_signed, int piece) {
  return static_cast<double>(1 << (is_signed ? piece - 1 : piece));
}

constexpr double quant_bin_width(bool is_signed, int piece) {
  return 0.9 * kDecade[piece] / quant_bins(is_signed, piece);
}

// Border between `piece` and the next: half-way between the last value of one and the first of the
// other.
constexpr double quant_border(bool is_signed, int piece) {
  const double below = piece == 0 ? 0 : kDecade[piece] - quant_bin_width(is_signed, piece) / 2;
  const double above = piece == 7 ? 1 : kDecade[piece] + quant_bin_width(is_signed, piece + 1) / 2;
  return (below + above) / 2 + double{kQuantFloor};
}

constexpr double power_of_two(int exponent) {
  double result = 1;
  for (; exponent < 0; ++exponent) {
    result /= 2;
  }
  for (; exponent > 0; --exponent) {
    result *= 2;
  }
  return result;
}

constexpr void fill_values(bool is_signed, QuantTables& t) {
  // The exponent of f is `piece` in the unsigned map and piece - 1 in the signed one.
  const int first_field = is_signed ? 126 : 127;
  for (int piece = 1; piece < kQuantPieces; ++piece) {
    const int slot = (first_field + piece) % 16;
    const double bins = piece == 8 ? 0 : quant_bins(is_signed, piece);
    if (piece == 8) {  // f = 128.5 or 256
      t.step[slot] = static_cast<float>(is_signed ? 1.0 / 128 : 1.0 / 256);
      t.shift[slot] = is_signed ? -0.5F : 0.0F;
    } else {
      t.step[slot] = static_cast<float>(quant_bin_width(is_signed, piece));
      t.shift[slot] = static_cast<float>(bins / 9 - bins + (is_signed ? 0 : 0.5));
    }
    t.start[slot] = static_cast<float>(double{t.shift[slot]} * double{t.step[slot]});
  }
}

constexpr void fill_pieces(bool is_signed, QuantTables& t) {
  for (int piece = 1; piece < 8; ++piece) {
    const double width = quant_bin_width(is_signed, piece);
    const double bins = quant_bins(is_signed, piece);
    const double base = is_signed ? bins : bins - 1;
    t.scale[piece] = static_cast<float>(1 / width);
    t.offset[piece] = static_cast<float>(base - (kDecade[piece - 1] + double{kQuantFloor}) / width);
    t.last[piece] = static_cast<float>(base + bins - 1);
  }
  t.offset[8] = 1024;
  t.last[8] = is_signed ? 128 : 255;
  if (!is_signed) {  // what is above 0 never becomes code 0
    t.offset[0] = 1;
    t.last[0] = 1;
  }
}

// Fills the table of borders; `border_of(piece)` is the one above a piece.
template <typename F>
constexpr void fill_borders(float (&borders)[16], F border_of) {
  for (int slot = 0; slot < 16; ++slot) {
    const double low = power_of_two(2 * slot - 31);
    float border = 4;  // unused: x is at most 1
    std::uint32_t below = 0;
    for (int piece = 0; piece < 8; ++piece) {
      const double next = border_of(piece);
      if (next <= low) {
        below = static_cast<std::uint32_t>(piece) + 1;
      } else if (next < 4 * low) {
        border = static_cast<float>(next);
      }
    }
    const std::uint32_t bits = (std::bit_cast<std::uint32_t>(border) & ~15U) | below;
    borders[slot] = std::bit_cast<float>(bits);
  }
}

constexpr QuantTables make_quant_tables(bool is_signed) {
  QuantTables t;
  fill_values(is_signed, t);
  fill_pieces(is_signed, t);
  fill_borders(t.border, [is_signed](int piece) { return quant_border(is_signed, piece); });
  return t;
}

// The line through (x, position) with 1 / rise, as a factor and an addend of x + kQuantFloor.
constexpr void fill_line(float& scale, float& offset, double x, double position, double rise) {
  scale = static_cast<float>(1 / rise);
  offset = static_cast<float>(position - 1 - (x + double{kQuantFloor}) / rise);
}

constexpr PositionTables make_position_tables(bool is_signed) {
  const auto first = [is_signed](int piece) {
    return kDecade[piece - 1] + quant_bin_width(is_signed, piece) / 2;
  };
  const auto last = [is_signed](int piece) {
    return kDecade[piece] - quant_bin_width(is_signed, piece) / 2;
  };
  PositionTables t;
  for (float& offset : t.gap_offset) {
    offset = 1024;  // above all positions: without a gap
  }
  fill_line(t.scale[0], t.offset[0], 0, 0, first(1));
  for (int piece = 1; piece < 8; ++piece) {
    const double bins = quant_bins(is_signed, piece);
    const double begin = is_signed ? bins : bins - 1;
    fill_line(
        t.scale[piece], t.offset[piece], first(piece), begin, quant_bin_width(is_signed, piece));
    if (piece < 7) {
      fill_line(
          t.gap_scale[piece],
          t.gap_offset[piece],
          last(piece),
          begin + bins - 1,
          first(piece + 1) - last(piece));
    }
  }
  fill_line(t.scale[8], t.offset[8], 1, is_signed ? 128 : 255, 1 - last(7));
  fill_borders(t.border, [first, last](int piece) {
    return (piece < 7 ? first(piece + 1) : last(7)) + double{kQuantFloor};
  });
  return t;
}

}  // namespace detail

// The largest negative value of the signed map.
inline constexpr float kQuantLowest = static_cast<float>(1 - 0.45 / 64);

template <bool kSigned>
inline constexpr QuantTables kQuantTables = detail::make_quant_tables(kSigned);

template <bool kSigned>
inline constexpr PositionTables kPositionTables = detail::make_position_tables(kSigned);

}  // namespace muster::kernels
