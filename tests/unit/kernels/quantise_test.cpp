// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/kernels/numbers.h"

#include <muster/kernels/low_precision.h>

#include <limits>

namespace muster::kernels {
namespace {

using test::cast;
using test::normal_values;

struct Quantised {
  std::vector<std::uint8_t> codes;
  std::vector<float> absmax;

  friend bool operator==(const Quantised&, const Quantised&) = default;
};

Quantised encode(bool is_signed, const std::vector<float>& values) {
  Quantised result{
      std::vector<std::uint8_t>(values.size()), std::vector<float>((values.size() + 255) / 256)};
  quantise(is_signed, values, result.codes, result.absmax);
  return result;
}

std::vector<float> decode(bool is_signed, const Quantised& q) {
  std::vector<float> values(q.codes.size());
  dequantise(is_signed, q.codes, q.absmax, values);
  return values;
}

// Dettmers et al., the dynamic map with 7 exponent bits: middles of equal bins of decades.
std::vector<double> reference_map(bool is_signed) {
  std::vector<double> map{0, 1};
  for (int i = 0; i < 7; ++i) {
    const int bins = is_signed ? 1 << i : 2 << i;
    for (int k = 0; k < bins; ++k) {
      const double value = std::pow(10.0, i - 6) * (0.1 + 0.9 * (k + 0.5) / bins);
      map.push_back(value);
      if (is_signed) {
        map.push_back(-value);
      }
    }
  }
  std::sort(map.begin(), map.end());
  return map;
}

TEST(QuantMap, IsTheDynamicMap) {
  for (const bool is_signed : {true, false}) {
    const auto reference = reference_map(is_signed);
    ASSERT_EQ(reference.size(), 256U);
    for (std::size_t code = 0; code < 256; ++code) {
      // Three roundings of a float.
      EXPECT_NEAR(
          static_cast<double>(quant_map(is_signed)[code]),
          reference[code],
          2e-7 * std::abs(reference[code]));
    }
  }
}

TEST(QuantMap, GoldenValues) {
  const auto& map = quant_map(true);
  EXPECT_FLOAT_EQ(map[128], 5.5e-7F);
  EXPECT_FLOAT_EQ(map[126], -5.5e-7F);
  EXPECT_EQ(map[127], 0.0F);
  EXPECT_EQ(map[255], 1.0F);
  EXPECT_NEAR(static_cast<double>(map[0]), -0.99296875, 1e-7);
  EXPECT_FLOAT_EQ(quant_map(false)[1], 3.25e-7F);
  EXPECT_EQ(quant_map(false)[0], 0.0F);
  EXPECT_EQ(quant_map(false)[255], 1.0F);
  for (const bool is_signed : {true, false}) {
    EXPECT_TRUE(std::is_sorted(quant_map(is_signed).begin(), quant_map(is_signed).end()));
  }
}

TEST(QuantMap, HashIsFrozen) {
  // Checkpoints carry it: a wrong map once turned states into NaN.
  EXPECT_EQ(quant_map_hash(), 8899711498887568849U);
}

TEST(Quantise, FindsTheNearestCode) {
  Random random(21);
  for (const bool is_signed : {true, false}) {
    const auto& map = quant_map(is_signed);
    std::vector<float> values(256 * 200);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double sign = is_signed && random.below(2) == 0 ? -1 : 1;
      values[i] = static_cast<float>(sign * std::pow(10.0, -8 * random.uniform()));
      if (i % 256 == 0) {
        values[i] = 1;
      }
    }
    const Quantised q = encode(is_signed, values);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto scale = static_cast<double>(q.absmax[i / 256]);
      const double x = static_cast<double>(values[i]) / scale;
      double nearest = 2;
      for (const float entry : map) {
        nearest = std::min(nearest, std::abs(static_cast<double>(entry) - x));
      }
      const double error = std::abs(static_cast<double>(map[q.codes[i]]) - x);
      if (!is_signed && q.codes[i] == 1) {
        continue;  // not 0 although that would be nearer: tested below
      }
      // Ties are decided in floats.
      ASSERT_LE(error, nearest * (1 + 1e-5) + 1e-13) << "signed " << is_signed << " x " << x;
    }
  }
}

TEST(Quantise, DequantisesToTheMap) {
  for (const bool is_signed : {true, false}) {
    Quantised q{std::vector<std::uint8_t>(256), {3.0F}};
    for (std::size_t code = 0; code < 256; ++code) {
      q.codes[code] = static_cast<std::uint8_t>(code);
    }
    const auto values = decode(is_signed, q);
    for (std::size_t code = 0; code < 256; ++code) {
      EXPECT_EQ(values[code], quant_map(is_signed)[code] * 3.0F);
    }
  }
}

TEST(Quantise, AgainGivesTheSameCodesAndScale) {
  for (const bool is_signed : {true, false}) {
    for (const double size : {1e-42, 1e-38, 1e-30, 1e-6, 1.0, 1e30}) {
      for (std::uint64_t seed = 0; seed < 50; ++seed) {
        auto values = cast<float>(normal_values(seed, 300, size));
        if (!is_signed) {
          for (float& value : values) {
            value *= value / static_cast<float>(size);
          }
        }
        const Quantised once = encode(is_signed, values);
        ASSERT_EQ(encode(is_signed, decode(is_signed, once)), once)
            << "signed " << is_signed << " size " << size << " seed " << seed;
      }
    }
  }
}

TEST(Quantise, ANegativeExtremeIsNotCutShort) {
  // The map ends at -0.993: scaling by |-1| would lose 0.7 % of the extreme at every step.
  std::vector<float> values(256, 0.25F);
  values[3] = -1;
  const auto back = decode(true, encode(true, values));
  EXPECT_NEAR(static_cast<double>(back[3]), -1.0, 1e-5);
}

TEST(Quantise, AnAllZeroBlockStaysZero) {
  for (const bool is_signed : {true, false}) {
    std::vector<float> values(512, 0);
    values[256] = 1;
    const Quantised q = encode(is_signed, values);
    EXPECT_EQ(q.absmax, (std::vector<float>{0, 1}));
    const auto back = decode(is_signed, q);
    for (std::size_t i = 0; i < 256; ++i) {
      EXPECT_EQ(back[i], 0.0F);
    }
    // Fresh memory, all bytes 0, is a zero state as well.
    const auto fresh = decode(is_signed, {std::vector<std::uint8_t>(256, 0), {0.0F}});
    EXPECT_EQ(*std::max_element(fresh.begin(), fresh.end()), 0.0F);
  }
}

TEST(Quantise, AnOutlierStaysInItsBlock) {
  auto values = cast<float>(normal_values(22, 1024));
  const Quantised plain = encode(true, values);
  values[300] *= 1e6F;
  const Quantised spiked = encode(true, values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i / 256 != 1) {
      EXPECT_EQ(spiked.codes[i], plain.codes[i]);
    }
  }
  EXPECT_EQ(spiked.absmax[0], plain.absmax[0]);
  EXPECT_GT(spiked.absmax[1], 1e4F * plain.absmax[1]);
}

TEST(Quantise, BlocksBeginEvery256Elements) {
  std::vector<float> values(600, 1e-3F);
  values[255] = 5;
  values[256] = 7;
  values[599] = 9;
  EXPECT_EQ(encode(false, values).absmax, (std::vector<float>{5, 7, 9}));
}

TEST(Quantise, AShortLastBlockIsLikeAWholeOne) {
  for (const bool is_signed : {true, false}) {
    const auto values = [&] {
      auto v = cast<float>(normal_values(23, 256));
      for (float& x : v) {
        x = is_signed ? x : std::abs(x);
      }
      return v;
    }();
    for (const std::size_t count : {1U, 15U, 16U, 17U, 255U}) {
      std::vector<float> part(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(count));
      const Quantised q = encode(is_signed, part);
      part.resize(256, 0.0F);
      const Quantised padded = encode(is_signed, part);
      EXPECT_EQ(q.absmax, padded.absmax);
      EXPECT_TRUE(std::equal(q.codes.begin(), q.codes.end(), padded.codes.begin()));
    }
  }
}

TEST(Quantise, AVarianceAboveZeroNeverBecomesZero) {
  // v = 0 beside m != 0 would make the next step m / epsilon.
  std::vector<float> values(256, 0);
  values[0] = 1;
  values[1] = 1e-7F;
  values[2] = 1e-30F;
  values[3] = std::numeric_limits<float>::denorm_min();
  const Quantised q = encode(false, values);
  EXPECT_EQ(q.codes[1], 1);
  EXPECT_EQ(q.codes[2], 1);
  EXPECT_EQ(q.codes[3], 1);
  EXPECT_EQ(q.codes[4], 0);
}

TEST(Quantise, SignsAreKeptUnlessTheCodeIsZero) {
  const auto values = cast<float>(normal_values(24, 2560));
  const auto back = decode(true, encode(true, values));
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_GE(back[i] * values[i], 0.0F);
  }
}

TEST(Quantise, SubnormalBlocksKeepTheirSize) {
  for (const bool is_signed : {true, false}) {
    const std::vector<float> values{1e-40F, 5e-41F, 1e-44F};
    const auto back = decode(is_signed, encode(is_signed, values));
    // A code is good to 5 % this far below the scale, which is at least the smallest normal float.
    EXPECT_NEAR(static_cast<double>(back[0]) / 1e-40, 1, 0.05);
    EXPECT_NEAR(static_cast<double>(back[1]) / 5e-41, 1, 0.05);
  }
  EXPECT_GT(decode(false, encode(false, {1e-44F}))[0], 0.0F);
}

TEST(Quantise, NormalValuesKeepOnePercent) {
  const auto values = cast<float>(normal_values(25, 256 * 400));
  const auto back = decode(true, encode(true, values));
  double error = 0;
  double total = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    error += std::pow(static_cast<double>(back[i]) - static_cast<double>(values[i]), 2);
    total += std::pow(static_cast<double>(values[i]), 2);
  }
  // 1.08 % by the reference simulation of this map.
  EXPECT_NEAR(std::sqrt(error / total), 0.0108, 0.0004);
}

TEST(Quantise, ANonfiniteValueShowsInItsBlock) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> values(512, 1);
    values[5] = bad;
    const auto back = decode(true, encode(true, values));
    EXPECT_FALSE(std::isfinite(back[5]));
    EXPECT_EQ(back[256], 1.0F);
  }
}

TEST(Quantise, TheLargestFloatStaysFinite) {
  const float largest = std::numeric_limits<float>::max();
  for (const float value : {largest, -largest}) {
    const auto back = decode(true, encode(true, {value, 1.0F}));
    EXPECT_TRUE(std::isfinite(back[0]));
    EXPECT_NEAR(static_cast<double>(back[0] / value), 1, 0.01);
  }
}

}  // namespace
}  // namespace muster::kernels
