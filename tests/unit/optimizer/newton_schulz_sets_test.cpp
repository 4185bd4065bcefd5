// SPDX-License-Identifier: Apache-2.0
// The coefficient tables against what is known of the scalar map: bands, slopes, thresholds.
#include <muster/optimizer/newton_schulz_sets.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace muster::optimizer {
namespace {

using ::testing::HasSubstr;
using Schedule = std::vector<kernels::NewtonSchulzStep>;

MuonOptions options_of(NewtonSchulzSet set, int steps, double safety = 1.01) {
  MuonOptions options;
  options.newton_schulz_set = set;
  options.newton_schulz_steps = steps;
  options.polar_express_safety = safety;
  return options;
}

Schedule schedule_of(NewtonSchulzSet set, int steps, double safety = 1.01) {
  return newton_schulz_coefficients(options_of(set, steps, safety));
}

// Smallest and largest output over sigma in [lowest, 1], evenly and by powers of ten.
std::pair<double, double> band(const Schedule& schedule, double lowest) {
  std::pair<double, double> range{1e300, -1e300};
  const auto look = [&](double sigma) {
    const double out = map_singular_value(schedule, sigma);
    range.first = std::min(range.first, out);
    range.second = std::max(range.second, out);
  };
  constexpr int kPoints = 200000;
  for (int i = 0; i <= kPoints; ++i) {
    look(lowest + (1 - lowest) * i / kPoints);
    look(std::pow(lowest, static_cast<double>(i) / kPoints));
  }
  return range;
}

struct GoldenBand {
  const char* name;
  NewtonSchulzSet set;
  int steps;
  double safety;
  double slope_at_zero;
  double reaches_half;  // the smallest sigma that comes out at 0.5
  double low_001;       // band for sigma >= 0.01
  double high_001;
  double low_0001;  // band for sigma >= 0.001
  double high_0001;
};

class SetBands : public ::testing::TestWithParam<GoldenBand> {};

// Figures of docs/concepts/optimizers.md, to the digits given there.
TEST_P(SetBands, AreAsDocumented) {
  const GoldenBand& golden = GetParam();
  const Schedule schedule = schedule_of(golden.set, golden.steps, golden.safety);
  const auto [low_001, high_001] = band(schedule, 0.01);
  const auto [low_0001, high_0001] = band(schedule, 0.001);
  EXPECT_NEAR(low_001, golden.low_001, 1e-3);
  EXPECT_NEAR(high_001, golden.high_001, 1e-3);
  EXPECT_NEAR(low_0001, golden.low_0001, 1e-3);
  EXPECT_NEAR(high_0001, golden.high_0001, 1e-3);
  const double slope = map_singular_value(schedule, 1e-12) / 1e-12;
  EXPECT_NEAR(slope, golden.slope_at_zero, golden.slope_at_zero * 5e-3);
  double sigma = 0;
  while (map_singular_value(schedule, sigma) < 0.5) {
    sigma += golden.reaches_half * 1e-3;
  }
  EXPECT_NEAR(sigma, golden.reaches_half, golden.reaches_half * 5e-2);  // given to two digits
}

INSTANTIATE_TEST_SUITE_P(
    Golden,
    SetBands,
    ::testing::Values(
        GoldenBand{
            "keller5",
            NewtonSchulzSet::kKeller,
            5,
            1,
            484.9,
            1.07e-3,
            0.6818,
            1.1344,
            0.4705,
            1.2024},
        GoldenBand{
            "keller10",
            NewtonSchulzSet::kKeller,
            10,
            1,
            2.35e5,
            2.2e-6,
            0.6818,
            1.1344,
            0.6818,
            1.1344},
        GoldenBand{
            "you5", NewtonSchulzSet::kYou, 5, 1, 492.7, 1.06e-3, 0.9778, 1.0318, 0.4750, 1.1450},
        GoldenBand{
            "polar_express_101_5",
            NewtonSchulzSet::kPolarExpress,
            5,
            1.01,
            976,
            5.3e-4,
            0.8703,
            1.1236,
            0.8462,
            1.1236},
        GoldenBand{
            "polar_express_101_8",
            NewtonSchulzSet::kPolarExpress,
            8,
            1.01,
            6363,
            8.5e-5,
            1,
            1,
            1,
            1},
        GoldenBand{
            "polar_express_105_5",
            NewtonSchulzSet::kPolarExpress,
            5,
            1.05,
            804,
            6.5e-4,
            0.8461,
            1.1236,
            0.7290,
            1.1236},
        GoldenBand{
            "deepseek_v4_10",
            NewtonSchulzSet::kDeepSeekV4,
            10,
            1,
            7.9e4,
            6.8e-6,
            1,
            1.0005,
            1,
            1.0005},
        GoldenBand{
            "classic_cubic_5",
            NewtonSchulzSet::kClassicCubic,
            5,
            1,
            7.6,
            7.1e-2,
            0.076,
            1,
            0.0076,
            1},
        GoldenBand{
            "classic_cubic_15", NewtonSchulzSet::kClassicCubic, 15, 1, 438, 1.2e-3, 1, 1, 0.417, 1},
        GoldenBand{
            "classic_cubic_30",
            NewtonSchulzSet::kClassicCubic,
            30,
            1,
            std::pow(1.5, 30),
            2.8e-6,
            1,
            1,
            1,
            1}),
    [](const auto& test) { return std::string{test.param.name}; });

struct Threshold {
  const char* name;
  NewtonSchulzSet set;
  int steps;
  double safety;
  double sigma;  // the first above 1 whose output is above 1.5
};

class SetThresholds : public ::testing::TestWithParam<Threshold> {};

TEST_P(SetThresholds, LieWhereTheyAreDocumented) {
  const Threshold& known = GetParam();
  const Schedule schedule = schedule_of(known.set, known.steps, known.safety);
  double sigma = 1;
  while (std::abs(map_singular_value(schedule, sigma)) <= 1.5) {
    sigma += 1e-5;
  }
  EXPECT_NEAR(sigma, known.sigma, 1.1e-4);
}

INSTANTIATE_TEST_SUITE_P(
    Golden,
    SetThresholds,
    ::testing::Values(
        Threshold{"keller", NewtonSchulzSet::kKeller, 5, 1, 1.2637},
        Threshold{"you", NewtonSchulzSet::kYou, 5, 1, 1.3246},
        Threshold{"polar_express_101", NewtonSchulzSet::kPolarExpress, 5, 1.01, 1.0109},
        Threshold{"polar_express_105", NewtonSchulzSet::kPolarExpress, 5, 1.05, 1.0547},
        Threshold{"deepseek_v4", NewtonSchulzSet::kDeepSeekV4, 10, 1, 1.2637}),
    [](const auto& test) { return std::string{test.param.name}; });

// Image of a rank-1 direction, whose one singular value is exactly 1.
TEST(NewtonSchulzSets, ARankOneDirectionComesOutAsDocumented) {
  const auto at_one = [](NewtonSchulzSet set, int steps, double safety = 1.01) {
    return map_singular_value(schedule_of(set, steps, safety), 1.0);
  };
  EXPECT_NEAR(at_one(NewtonSchulzSet::kKeller, 5), 0.6964, 1e-4);
  EXPECT_NEAR(at_one(NewtonSchulzSet::kYou, 5), 0.9783, 1e-4);
  EXPECT_NEAR(at_one(NewtonSchulzSet::kPolarExpress, 5), 1.0288, 1e-4);
  EXPECT_NEAR(at_one(NewtonSchulzSet::kPolarExpress, 5, 1.05), 1.0190, 1e-4);
}

// The 2x3 matrix with singular values 0.996713 and 0.081019 after normalisation.
TEST(NewtonSchulzSets, MapsTheGoldenMatrixsSingularValues) {
  const Schedule keller = schedule_of(NewtonSchulzSet::kKeller, 5);
  EXPECT_NEAR(map_singular_value(keller, 0.996713), 0.700027, 2e-5);
  EXPECT_NEAR(map_singular_value(keller, 0.081019), 0.920395, 2e-5);
}

TEST(NewtonSchulzSets, PolarExpressDampsAllButItsLimit) {
  const Schedule table = schedule_of(NewtonSchulzSet::kPolarExpress, 9);
  EXPECT_NEAR(table[0][0], 8.28721201814563 / 1.01, 1e-12);
  EXPECT_NEAR(table[0][1], -23.595886519098837 / std::pow(1.01, 3), 1e-12);
  EXPECT_NEAR(table[0][2], 17.300387312530933 / std::pow(1.01, 5), 1e-12);
  EXPECT_NEAR(table[6][0], 1.8750014808534479 / 1.01, 1e-12);
  EXPECT_EQ(table[7], (kernels::NewtonSchulzStep{1.875, -1.25, 0.375}));
  EXPECT_EQ(table[8], table[7]);
}

TEST(NewtonSchulzSets, YouCyclesThroughItsFive) {
  const Schedule table = schedule_of(NewtonSchulzSet::kYou, 11);
  EXPECT_EQ(table[0], (kernels::NewtonSchulzStep{4.0848, -6.8946, 2.9270}));
  EXPECT_EQ(table[5], table[0]);
  EXPECT_EQ(table[9], table[4]);
  EXPECT_EQ(table[10], table[0]);
}

TEST(NewtonSchulzSets, DeepSeekIsEightOfKellersAndThenItsLimit) {
  const Schedule table = schedule_of(NewtonSchulzSet::kDeepSeekV4, 12);
  EXPECT_EQ(table[7], (kernels::NewtonSchulzStep{3.4445, -4.7750, 2.0315}));
  EXPECT_EQ(table[8], (kernels::NewtonSchulzStep{2.0, -1.5, 0.5}));
  EXPECT_EQ(table[11], table[8]);
}

TEST(NewtonSchulzSets, CustomIsWhatWasGiven) {
  MuonOptions options = options_of(NewtonSchulzSet::kCustom, 2);
  options.custom_coefficients = {{3.0, -3.0, 1.0}, {1.875, -1.25, 0.375}};
  EXPECT_TRUE(validate(options).ok()) << validate(options).to_string();
  EXPECT_EQ(newton_schulz_coefficients(options), options.custom_coefficients);
}

TEST(NewtonSchulzSets, NamesRoundTrip) {
  for (const auto set :
       {NewtonSchulzSet::kKeller,
        NewtonSchulzSet::kYou,
        NewtonSchulzSet::kPolarExpress,
        NewtonSchulzSet::kClassicCubic,
        NewtonSchulzSet::kDeepSeekV4,
        NewtonSchulzSet::kCustom}) {
    EXPECT_EQ(parse_newton_schulz_set(to_string(set)).value(), set);
  }
}

TEST(NewtonSchulzSets, RefusesAnUnknownNameAndListsTheKnown) {
  const auto parsed = parse_newton_schulz_set("quintic");
  ASSERT_FALSE(parsed.ok());
  EXPECT_THAT(parsed.status().message(), HasSubstr("'quintic'"));
  EXPECT_THAT(parsed.status().message(), HasSubstr("polar_express"));
}

TEST(NewtonSchulzSets, RefusesByNameWhatNeedsAnotherNormalisation) {
  const auto refusal = [](const char* name) {
    return parse_newton_schulz_set(name).status().message();
  };
  EXPECT_THAT(refusal("aol"), HasSubstr("negates singular values above 0.8837"));
  EXPECT_THAT(refusal("cans"), HasSubstr("1.00001"));
  EXPECT_THAT(refusal("cubic5"), HasSubstr("flips at 1.0035"));
}

// The tables of the refused sets, as published.
const Schedule kAol{
    {4.0098, -7.0585, 2.4635},
    {3.4585, -5.5479, 2.5959},
    {2.7573, -3.2939, 1.4254},
    {2.7215, -3.0494, 1.3169}};
const Schedule kCans{
    {8.4703, -25.1081, 18.6293},
    {4.1828, -3.1087, 0.5806},
    {3.9619, -2.9541, 0.5630},
    {3.2866, -2.4647, 0.5074},
    {2.2737, -1.6447, 0.4162}};
const Schedule kCubic5{
    {3.3656576, -3.3420992, 0},
    {2.5744352, -1.4957376, 0},
    {2.5368962, -1.4312570, 0},
    {2.4418906, -1.2764040, 0},
    {2.2230472, -0.9630650, 0}};

TEST(CheckCoefficients, RefusesThePublishedTablesThatFrobeniusNormalisationBreaks) {
  EXPECT_EQ(check_coefficients(kAol).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(check_coefficients(kCans).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(check_coefficients(kCubic5).code(), StatusCode::kInvalidArgument);
}

TEST(CheckCoefficients, NamesASingularValueAndWhatBecomesOfIt) {
  EXPECT_THAT(check_coefficients(kAol).message(), HasSubstr("a singular value of 1 into -0.99"));
  EXPECT_THAT(check_coefficients(kCubic5).message(), HasSubstr("a singular value of 1.003"));
}

// Derives the figures that the refusals by name quote.
TEST(CheckCoefficients, TheRefusedSetsBreakWhereTheirRefusalsSay) {
  EXPECT_GT(map_singular_value(kAol, 0.8836), 0);
  EXPECT_LT(map_singular_value(kAol, 0.8838), 0);
  EXPECT_LE(map_singular_value(kCans, 1.0), 1.5);
  EXPECT_GT(map_singular_value(kCans, 1.00002), 1.5);
  EXPECT_GT(map_singular_value(kCubic5, 1.0034), 0);
  EXPECT_LT(map_singular_value(kCubic5, 1.0036), 0);
}

TEST(CheckCoefficients, AllowsEverySetOnOffer) {
  for (const auto set :
       {NewtonSchulzSet::kKeller,
        NewtonSchulzSet::kYou,
        NewtonSchulzSet::kClassicCubic,
        NewtonSchulzSet::kDeepSeekV4}) {
    for (const int steps : {1, 2, 3, 5, 8, 10, 17}) {
      EXPECT_TRUE(check_coefficients(schedule_of(set, steps)).ok())
          << to_string(set) << " with " << steps << " steps";
    }
  }
  for (const int steps : {5, 6, 7, 8, 12}) {
    EXPECT_TRUE(check_coefficients(schedule_of(NewtonSchulzSet::kPolarExpress, steps)).ok())
        << steps;
  }
}

// Its first steps widen the band to nearly 2 before the later ones close it.
TEST(CheckCoefficients, RefusesPolarExpressThatIsCutShort) {
  for (const int steps : {1, 2, 3, 4}) {
    EXPECT_THAT(
        check_coefficients(schedule_of(NewtonSchulzSet::kPolarExpress, steps)).message(),
        HasSubstr("must come out in [0, 1.5]"));
  }
}

TEST(CheckCoefficients, RefusesPolarExpressWithoutItsSafetyFactor) {
  const Status refused = validate(options_of(NewtonSchulzSet::kPolarExpress, 5, 1.0));
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("polar_express with 5 steps"));
}

// a + b y + c y^2 has its minimum `depth` at y = 0.31830988, between the points of any scan.
Schedule dip_to(double depth) {
  constexpr double kWhere = 0.31830988;
  constexpr double kCurvature = 2.0;
  return {{kCurvature * kWhere * kWhere + depth, -2 * kCurvature * kWhere, kCurvature}};
}

TEST(CheckCoefficients, FindsADipHoweverNarrow) {
  EXPECT_FALSE(check_coefficients(dip_to(-1e-12)).ok());
  EXPECT_TRUE(check_coefficients(dip_to(1e-12)).ok());
}

TEST(CheckCoefficients, RefusesWhatIsNotANumber) {
  EXPECT_FALSE(check_coefficients(Schedule{{std::nan(""), 0, 0}}).ok());
  EXPECT_FALSE(check_coefficients(Schedule{{1e200, 1e200, 1e200}, {1e200, 1e200, 1e200}}).ok());
}

TEST(MuonOptions, AreCheckedOneByOne) {
  const auto refusal = [](auto&& change) {
    MuonOptions options;
    change(options);
    return validate(options).message();
  };
  EXPECT_EQ(refusal([](MuonOptions&) {}), "");
  EXPECT_THAT(refusal([](MuonOptions& o) { o.momentum = 1.0; }), HasSubstr("muon.momentum"));
  EXPECT_THAT(refusal([](MuonOptions& o) { o.newton_schulz_steps = 0; }), HasSubstr("[1, 100]"));
  EXPECT_THAT(refusal([](MuonOptions& o) { o.rms_scale = 0; }), HasSubstr("muon.rms_scale"));
  EXPECT_EQ(
      refusal([](MuonOptions& o) {
        o.rms_scale = 0;
        o.scale = MuonScale::kMuP;
      }),
      "");
  EXPECT_THAT(
      refusal([](MuonOptions& o) { o.newton_schulz_set = NewtonSchulzSet::kCustom; }),
      HasSubstr("0 triples for 5"));
  EXPECT_THAT(
      refusal([](MuonOptions& o) {
        o.custom_coefficients = {{1, 0, 0}};
      }),
      HasSubstr("newton_schulz_set is keller"));
  EXPECT_THAT(
      refusal([](MuonOptions& o) {
        o.newton_schulz_set = NewtonSchulzSet::kCustom;
        o.newton_schulz_steps = 4;
        o.custom_coefficients = kAol;
      }),
      HasSubstr("custom with 4 steps"));
}

TEST(MuonScale, FollowsTheBlockThatWasOrthogonalised) {
  MuonOptions options;
  EXPECT_DOUBLE_EQ(muon_scale(options, 64, 256), 0.2 * 16);
  EXPECT_DOUBLE_EQ(muon_scale(options, 256, 64), 0.2 * 16);
  options.rms_scale = 0.18;
  EXPECT_DOUBLE_EQ(muon_scale(options, 100, 4), 1.8);
  options.scale = MuonScale::kKeller;
  EXPECT_DOUBLE_EQ(muon_scale(options, 64, 256), 1.0);
  EXPECT_DOUBLE_EQ(muon_scale(options, 256, 64), 2.0);
  options.scale = MuonScale::kMuP;
  EXPECT_DOUBLE_EQ(muon_scale(options, 64, 256), 0.5);
  EXPECT_DOUBLE_EQ(muon_scale(options, 256, 64), 2.0);
}

TEST(MuonNames, RoundTripAndListTheKnown) {
  for (const auto form : {MomentumForm::kHeavyBall, MomentumForm::kEma}) {
    EXPECT_EQ(parse_momentum_form(to_string(form)).value(), form);
  }
  for (const auto scale : {MuonScale::kRmsMatch, MuonScale::kKeller, MuonScale::kMuP}) {
    EXPECT_EQ(parse_muon_scale(to_string(scale)).value(), scale);
  }
  EXPECT_THAT(parse_momentum_form("lerp").status().message(), HasSubstr("heavy_ball or ema"));
  EXPECT_THAT(parse_muon_scale("kimi").status().message(), HasSubstr("rms_match"));
}

}  // namespace
}  // namespace muster::optimizer
