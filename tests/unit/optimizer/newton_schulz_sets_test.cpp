#include <muster/optimizer/newton_schulz_sets.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

namespace muster::optimizer {
namespace {

// The scalar map of the whole schedule: what it does to one singular value.
double mapped(NewtonSchulzSet set, int steps, double sigma) {
  for (const auto& [a, b, c] : newton_schulz_coefficients(set, steps)) {
    const double square = sigma * sigma;
    sigma *= a + b * square + c * square * square;
  }
  return sigma;
}

// Smallest and largest output over sigma in [lowest, 1].
std::pair<double, double> band(NewtonSchulzSet set, int steps, double lowest) {
  std::pair<double, double> range{1e300, -1e300};
  constexpr int kPoints = 200000;
  for (int i = 0; i <= kPoints; ++i) {
    const double out = mapped(set, steps, lowest + (1 - lowest) * i / kPoints);
    range.first = std::min(range.first, out);
    range.second = std::max(range.second, out);
  }
  return range;
}

void expect_band(NewtonSchulzSet set, int steps, double low, double high) {
  const auto [first, second] = band(set, steps, 0.01);
  EXPECT_NEAR(first, low, 1e-3);
  EXPECT_NEAR(second, high, 1e-3);
}

// Bands of docs/optimizers.md, found there by a scan in double.
TEST(NewtonSchulzSets, KellerLandsInItsKnownBand) {
  expect_band(NewtonSchulzSet::kKeller, 5, 0.6818, 1.1344);
}

TEST(NewtonSchulzSets, YouLandsInItsKnownBand) {
  expect_band(NewtonSchulzSet::kYou, 5, 0.9778, 1.0318);
}

TEST(NewtonSchulzSets, PolarExpressLandsInItsKnownBand) {
  expect_band(NewtonSchulzSet::kPolarExpress, 5, 0.8703, 1.1236);
}

TEST(NewtonSchulzSets, ClassicCubicLandsInItsKnownBand) {
  expect_band(NewtonSchulzSet::kClassicCubic, 5, 0.076, 1.0);
}

TEST(NewtonSchulzSets, PolarExpressConvergesPastTheEndOfItsTable) {
  EXPECT_NEAR(mapped(NewtonSchulzSet::kPolarExpress, 12, 0.01), 1.0, 1e-3);
}

TEST(NewtonSchulzSets, PolarExpressDampsAllButItsLimit) {
  const auto table = newton_schulz_coefficients(NewtonSchulzSet::kPolarExpress, 9);
  EXPECT_NEAR(table[0][0], 8.28721201814563 / 1.01, 1e-12);
  EXPECT_EQ(table[7][0], 1.875);
  EXPECT_EQ(table[8], table[7]);
}

TEST(NewtonSchulzSets, NamesRoundTrip) {
  for (const auto set :
       {NewtonSchulzSet::kKeller,
        NewtonSchulzSet::kYou,
        NewtonSchulzSet::kPolarExpress,
        NewtonSchulzSet::kClassicCubic}) {
    EXPECT_EQ(parse_newton_schulz_set(to_string(set)).value(), set);
  }
}

TEST(NewtonSchulzSets, RefusesAnUnknownNameAndListsTheKnown) {
  const auto parsed = parse_newton_schulz_set("quintic");
  ASSERT_FALSE(parsed.ok());
  EXPECT_NE(parsed.status().message().find("'quintic'"), std::string::npos);
  EXPECT_NE(parsed.status().message().find("polar_express"), std::string::npos);
}

}  // namespace
}  // namespace muster::optimizer
