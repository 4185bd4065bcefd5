// SPDX-License-Identifier: Apache-2.0
#include "kernels/newton_schulz/cpu/engine.h"
#include "tests/unit/kernels/newton_schulz/reference.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace muster::kernels {
namespace {

using test::cans;
using test::cosine;
using test::keller;
using test::log_spectrum;
using test::name_of;
using test::options_of;
using test::orthogonalise;
using test::polar_express;
using test::relative_error;
using test::safe_schedules;
using test::Schedule;
using test::SpectralMatrix;
using test::Values;
using test::Variant;
using test::variants;
using test::you;

bool is_bf16(const Variant& variant) {
  return variant.precision == DType::kBFloat16;
}

// sigma >= 0.01 lands in these, exactly.
struct Band {
  Schedule schedule;
  double low;
  double high;
};

std::vector<Band> bands() {
  return {
      {keller(), 0.6818, 1.1344},
      {you(), 0.9778, 1.0318},
      {polar_express(1.01, false), 0.8703, 1.1236},
      {polar_express(1.05, true), 0.8461, 1.1236},
      {test::deepseek_v4(), 1.0000, 1.0005},
      {test::cubic5(), 0.7741, 1.3000}};
}

TEST(NewtonSchulzPrecision, SingularValuesFallIntoTheGoldenBands) {
  const SpectralMatrix spectrum(48, 128, log_spectrum(48, 1.5));
  ASSERT_GE(spectrum.sigma().back(), 0.01);
  const auto input = spectrum.matrix();
  for (const auto& [schedule, low, high] : bands()) {
    for (const Variant& variant : variants()) {
      const auto x = orthogonalise(input, 48, 128, options_of(schedule, variant));
      const double slack = is_bf16(variant) ? 0.03 : 1e-3;
      for (std::size_t s = 0; s < spectrum.sigma().size(); ++s) {
        const double got = spectrum.component(x, s);
        EXPECT_GE(got, low - slack) << name_of(variant) << " sigma " << spectrum.sigma()[s];
        EXPECT_LE(got, high + slack) << name_of(variant) << " sigma " << spectrum.sigma()[s];
        EXPECT_NEAR(got, test::polynomial(schedule, spectrum.sigma()[s]), slack);
      }
    }
  }
}

// A Gaussian matrix 1 : 4, as the reference measured: its singular values lie between 0.5 and 1.5
// times 1 / sqrt(rows).
TEST(NewtonSchulzPrecision, GaussianMatricesComeCloseToTheExactPolynomial) {
  Values sigma;
  for (int i = 0; i < 64; ++i) {
    sigma.push_back(1.5 - i / 63.0);
  }
  const SpectralMatrix spectrum(64, 256, sigma);
  for (const auto& [name, schedule] : safe_schedules()) {
    const Values expected = spectrum.result(schedule);
    for (const Variant& variant : variants()) {
      const auto x = orthogonalise(spectrum.matrix(), 64, 256, options_of(schedule, variant));
      EXPECT_LT(relative_error(x, expected), is_bf16(variant) ? 0.012 : 1e-5)
          << name << ' ' << name_of(variant);
    }
  }
}

// Three decades of singular values. What others have in bf16: 5.5e-2 in the standard form, 0.28 in
// the Gram form of polar express.
TEST(NewtonSchulzPrecision, WideSpectraStayCloseToTheExactPolynomial) {
  const SpectralMatrix spectrum(64, 256, log_spectrum(64, 3));
  for (const auto& [name, schedule] : safe_schedules()) {
    const Values expected = spectrum.result(schedule);
    for (const Variant& variant : variants()) {
      NewtonSchulzReport report;
      const auto x =
          orthogonalise(spectrum.matrix(), 64, 256, options_of(schedule, variant), &report);
      EXPECT_LT(relative_error(x, expected), is_bf16(variant) ? 0.08 : 1e-3)
          << name << ' ' << name_of(variant);
      EXPECT_FALSE(report.recomputed) << name << ' ' << name_of(variant);
    }
  }
}

// An expert that saw one token. Rounding noise in the other directions grows by the slope at 0, up
// to 2e5: the direction must survive it.
TEST(NewtonSchulzPrecision, RankOneKeepsItsDirectionInEverySetAndPrecision) {
  const SpectralMatrix spectrum(64, 200, {1});
  auto schedules = safe_schedules();
  schedules.push_back({"cans", cans()});
  for (const auto& [name, schedule] : schedules) {
    const Values expected = spectrum.result(schedule);
    for (const Variant& variant : variants()) {
      NewtonSchulzReport report;
      const auto x =
          orthogonalise(spectrum.matrix(), 64, 200, options_of(schedule, variant), &report);
      EXPECT_GT(cosine(x, expected), 0.97) << name << ' ' << name_of(variant);
      EXPECT_NEAR(spectrum.component(x, 0), test::polynomial(schedule, 1), 0.12)
          << name << ' ' << name_of(variant);
      EXPECT_NEAR(report.effective_rank, 1, 1e-2);
    }
  }
}

TEST(NewtonSchulzPrecision, LowRankKeepsItsDirectionsInEverySetAndPrecision) {
  const SpectralMatrix spectrum(64, 200, {1, 0.5, 0.3, 0.01});
  for (const auto& [name, schedule] : safe_schedules()) {
    const Values expected = spectrum.result(schedule);
    for (const Variant& variant : variants()) {
      const auto x = orthogonalise(spectrum.matrix(), 64, 200, options_of(schedule, variant));
      EXPECT_GT(cosine(x, expected), 0.97) << name << ' ' << name_of(variant);
    }
  }
}

TEST(NewtonSchulzPrecision, TheGoldenMatricesComeOutInEveryForm) {
  const std::vector<std::tuple<Schedule, Values>> golden{
      {keller(), {-0.568290, 0.057742, 0.683774, 0.563355, 0.405613, 0.247871}},
      {you(), {-0.591518, 0.110997, 0.813512, 0.707256, 0.560562, 0.413868}},
      {polar_express(1.01, false, 8),
       {-0.577792, 0.115117, 0.808025, 0.706746, 0.565757, 0.424769}}};
  for (const auto& [schedule, expected] : golden) {
    for (const Variant& variant : variants()) {
      const auto x = orthogonalise({1, 2, 3, 4, 5, 6}, 2, 3, options_of(schedule, variant));
      EXPECT_LT(test::distance(x, expected), is_bf16(variant) ? 0.02 : 1e-5) << name_of(variant);
    }
  }
}

// The seam: plans that choose_newton_schulz would not make.
class Detector : public ::testing::Test {
 protected:
  static NewtonSchulzPlan unguarded_plan(const Schedule& schedule) {
    NewtonSchulzPlan plan = plan_newton_schulz(
        64, 256, options_of(schedule, {DType::kBFloat16, NewtonSchulzForm::kGram}));
    plan.restarts.clear();
    plan.rounded_steps = 100;
    return plan;
  }

  NewtonSchulzReport run(std::vector<float>& x, const NewtonSchulzPlan& plan) {
    ThreadTeam alone(1);
    return engine_.run(x, 64, 256, plan, alone);
  }

  NewtonSchulzEngine engine_;
};

TEST_F(Detector, ABf16GramRunWithoutRestartTripsItAndIsWorkedOutAgain) {
  const SpectralMatrix wide(64, 256, log_spectrum(64, 3));
  const SpectralMatrix rank_one(64, 256, {1});
  const std::vector<std::tuple<Schedule, const SpectralMatrix*>> cases{
      {keller(), &rank_one},
      {you(), &rank_one},
      {you(), &wide},
      {polar_express(1.05, true), &rank_one},
      {polar_express(1.05, true), &wide}};
  for (const auto& [schedule, spectrum] : cases) {
    auto x = spectrum->matrix();
    const NewtonSchulzReport report = run(x, unguarded_plan(schedule));
    EXPECT_TRUE(report.recomputed);
    EXPECT_FALSE(report.nonfinite);
    const Variant safe{DType::kFloat32, NewtonSchulzForm::kSymmetric};
    EXPECT_EQ(x, orthogonalise(spectrum->matrix(), 64, 256, options_of(schedule, safe)));
  }
}

TEST_F(Detector, ItsVerdictDoesNotDependOnDiagnostics) {
  const SpectralMatrix spectrum(64, 256, log_spectrum(64, 3));
  NewtonSchulzPlan plan = unguarded_plan(you());
  plan.diagnostics = false;
  auto x = spectrum.matrix();
  EXPECT_TRUE(run(x, plan).recomputed);
}

// A range that is too narrow stands for products that are wrong. There is no form left to try.
TEST_F(Detector, AFiniteResultBeyondTheRangeInFp32IsFlaggedAndNeverStored) {
  const SpectralMatrix spectrum(64, 256, log_spectrum(64, 3));
  for (const NewtonSchulzForm form : {NewtonSchulzForm::kStandard, NewtonSchulzForm::kSymmetric}) {
    const NewtonSchulzPlan sound =
        plan_newton_schulz(64, 256, options_of(keller(), {DType::kFloat32, form}));
    for (const std::size_t step : {std::size_t{2}, sound.coefficients.size()}) {
      NewtonSchulzPlan narrow = sound;
      narrow.envelope[step] = 1e-3;
      auto x = spectrum.matrix();
      EXPECT_TRUE(run(x, narrow).nonfinite) << step;
      EXPECT_TRUE(std::all_of(x.begin(), x.end(), [](float value) { return std::isnan(value); }));
    }
    auto x = spectrum.matrix();
    EXPECT_FALSE(run(x, sound).nonfinite);
    EXPECT_FALSE(std::isnan(x[0]));
  }
}

TEST_F(Detector, StaysQuietOnWhatTheChosenFormsDo) {
  const SpectralMatrix spectrum(64, 256, log_spectrum(64, 7));
  for (const auto& [name, schedule] : safe_schedules()) {
    for (const Variant& variant : variants()) {
      NewtonSchulzReport report;
      orthogonalise(spectrum.matrix(), 64, 256, options_of(schedule, variant), &report);
      EXPECT_FALSE(report.recomputed) << name << ' ' << name_of(variant);
    }
  }
}

}  // namespace
}  // namespace muster::kernels
