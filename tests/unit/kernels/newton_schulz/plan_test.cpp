// SPDX-License-Identifier: Apache-2.0
#include "kernels/newton_schulz/cpu/plan.h"

#include "tests/unit/kernels/newton_schulz/reference.h"

namespace muster::kernels {
namespace {

using test::cans;
using test::cubic5;
using test::deepseek_v4;
using test::keller;
using test::polar_express;
using test::safe_schedules;
using test::Schedule;
using test::you;

using Restarts = std::vector<int>;

constexpr double kHalfPrecision = 4e-4;

double condition(const Schedule& schedule, const Restarts& restarts) {
  return gram_condition(schedule, restarts, kHalfPrecision);
}

Restarts bf16_restarts(const Schedule& schedule) {
  return place_restarts(schedule, DType::kBFloat16);
}

NewtonSchulzOptions options_of(
    const Schedule& schedule,
    DType precision = DType::kFloat32,
    NewtonSchulzForm form = NewtonSchulzForm::kAuto) {
  return {.coefficients = schedule, .precision = precision, .form = form};
}

// To the two or three digits that the reference gives.
TEST(NewtonSchulzRestarts, ConditionsAreThoseOfTheReference) {
  EXPECT_NEAR(condition(keller(), {}) / 3.8e6, 1, 0.02);
  EXPECT_NEAR(condition(keller(), {3}), 62.5, 0.1);
  EXPECT_NEAR(condition(keller(), {2}), 74.1, 0.1);
  EXPECT_NEAR(condition(you(), {2}), 53.2, 0.1);
  EXPECT_NEAR(condition(polar_express(1.05, true), {2}), 84.6, 0.1);
  EXPECT_NEAR(condition(polar_express(1.01, true), {1}), 631, 1);
  EXPECT_NEAR(condition(polar_express(1.01, true), {1, 2}), 69, 1);
  EXPECT_LT(condition(cubic5(), {}), 290);
}

TEST(NewtonSchulzRestarts, Bf16RestartsWhereTheReferenceDoes) {
  EXPECT_EQ(bf16_restarts(keller()), (Restarts{3}));
  EXPECT_EQ(bf16_restarts(you()), (Restarts{2}));
  EXPECT_EQ(bf16_restarts(polar_express(1.05, true)), (Restarts{2}));
  EXPECT_EQ(bf16_restarts(polar_express(1.01, false)), (Restarts{1, 2}));
  EXPECT_LE(condition(deepseek_v4(), bf16_restarts(deepseek_v4())), 100);
}

TEST(NewtonSchulzRestarts, Float32NeedsNoneInFiveStepsAndOneInTen) {
  for (const Schedule& schedule :
       {keller(), you(), polar_express(1.05, true), polar_express(1.01, false), cubic5()}) {
    EXPECT_EQ(place_restarts(schedule, DType::kFloat32), Restarts{});
  }
  EXPECT_EQ(place_restarts(deepseek_v4(), DType::kFloat32), (Restarts{5}));
}

TEST(NewtonSchulzRestarts, ThePlacesAreTheBestOfTheirNumber) {
  for (const Schedule& schedule : {keller(), you(), polar_express(1.05, true), keller(7)}) {
    const Restarts chosen = bf16_restarts(schedule);
    ASSERT_LE(chosen.size(), 2U);
    const auto steps = static_cast<int>(schedule.size());
    double best = condition(schedule, {});
    if (chosen.size() == 1) {
      for (int i = 1; i < steps; ++i) {
        best = std::min(best, condition(schedule, {i}));
      }
    } else {
      for (int i = 1; i < steps; ++i) {
        for (int j = i + 1; j < steps; ++j) {
          best = std::min(best, condition(schedule, {i, j}));
        }
      }
    }
    EXPECT_DOUBLE_EQ(condition(schedule, chosen), best);
  }
}

TEST(NewtonSchulzRestarts, WhereNoNumberSufficesTheFewestThatHelpAreTaken) {
  const Restarts chosen = bf16_restarts(cans());
  EXPECT_EQ(chosen.size(), 1U);
  EXPECT_GT(condition(cans(), chosen), 100);
}

TEST(NewtonSchulzRestarts, ShortSchedulesHaveNone) {
  EXPECT_EQ(bf16_restarts({}), Restarts{});
  EXPECT_EQ(bf16_restarts(keller(1)), Restarts{});
}

TEST(NewtonSchulzRestarts, TheEnvelopeIsTheLargestSingularValueOfEachStep) {
  const auto envelope = newton_schulz_envelope(keller());
  ASSERT_EQ(envelope.size(), 6U);
  EXPECT_DOUBLE_EQ(envelope[0], 1);
  for (std::size_t k = 1; k < envelope.size(); ++k) {
    EXPECT_NEAR(envelope[k], 1.2024, 1e-3);  // f(0.5545), the local maximum
  }
  EXPECT_NEAR(newton_schulz_envelope(polar_express(1.05, true)).back(), 1.1236, 1e-3);
}

// Section by section: 2 m^3 of a product is halved where its result is symmetric.
TEST(NewtonSchulzFlops, FollowTheFormulas) {
  constexpr double kCube = 1024.0 * 1024 * 1024;
  const auto flops = [](NewtonSchulzForm form, std::int64_t ratio, int restarts) {
    return newton_schulz_flops(form, 1024, 1024 * ratio, 5, restarts) / kCube;
  };
  EXPECT_DOUBLE_EQ(flops(NewtonSchulzForm::kStandard, 1, 0), 30);
  EXPECT_DOUBLE_EQ(flops(NewtonSchulzForm::kStandard, 4, 0), 90);
  EXPECT_DOUBLE_EQ(flops(NewtonSchulzForm::kSymmetric, 1, 0), 20);
  EXPECT_DOUBLE_EQ(flops(NewtonSchulzForm::kSymmetric, 4, 0), 65);
  EXPECT_DOUBLE_EQ(flops(NewtonSchulzForm::kGram, 1, 1), 20);
  EXPECT_DOUBLE_EQ(flops(NewtonSchulzForm::kGram, 4, 1), 38);
  EXPECT_DOUBLE_EQ(flops(NewtonSchulzForm::kGram, 4, 0), 29);
}

TEST(NewtonSchulzFlops, AChoiceCountsItsOwnForm) {
  const Schedule schedule = keller();
  const auto choice = choose_newton_schulz(4096, 1024, options_of(schedule));
  EXPECT_DOUBLE_EQ(
      choice.flops,
      newton_schulz_flops(choice.form, 1024, 4096, 5, static_cast<int>(choice.restarts.size())));
}

TEST(NewtonSchulzFlops, ACubicStepHasNoSquare) {
  const Schedule cubic = cubic5();
  const auto choice = choose_newton_schulz(
      64, 256, options_of(cubic, DType::kFloat32, NewtonSchulzForm::kSymmetric));
  EXPECT_DOUBLE_EQ(choice.flops, 15.0 * 64 * 64 * 256);
}

TEST(NewtonSchulzModel, WideMatricesTakeTheGramFormAndSquareOnesTheSymmetric) {
  const Schedule schedule = keller();
  for (const DType precision : {DType::kFloat32, DType::kBFloat16}) {
    for (const std::int64_t m : {128, 256, 512, 1024, 4096}) {
      const auto options = options_of(schedule, precision);
      EXPECT_EQ(choose_newton_schulz(m, m, options).form, NewtonSchulzForm::kSymmetric) << m;
      EXPECT_EQ(choose_newton_schulz(m, 2 * m, options).form, NewtonSchulzForm::kGram) << m;
      EXPECT_EQ(choose_newton_schulz(4 * m, m, options).form, NewtonSchulzForm::kGram) << m;
    }
  }
}

TEST(NewtonSchulzModel, DoesNotCareWhichSideIsShort) {
  for (const auto& [name, schedule] : safe_schedules()) {
    const auto wide = choose_newton_schulz(300, 900, options_of(schedule));
    const auto tall = choose_newton_schulz(900, 300, options_of(schedule));
    EXPECT_EQ(wide.form, tall.form) << name;
    EXPECT_EQ(wide.restarts, tall.restarts) << name;
    EXPECT_EQ(wide.seconds, tall.seconds) << name;
  }
}

TEST(NewtonSchulzModel, TimeGrowsWithEitherSideAndWithTheSteps) {
  for (const DType precision : {DType::kFloat32, DType::kBFloat16}) {
    const auto seconds = [&](std::int64_t m, std::int64_t n, std::size_t steps) {
      const Schedule schedule = keller(steps);
      return choose_newton_schulz(m, n, options_of(schedule, precision)).seconds;
    };
    double last = 0;
    for (std::int64_t m = 16; m <= 2048; m *= 2) {
      EXPECT_GT(seconds(m, 4096, 5), last);
      last = seconds(m, 4096, 5);
    }
    for (std::int64_t n = 512; n <= 8192; n += 512) {
      EXPECT_GT(seconds(512, n + 512, 5), seconds(512, n, 5));
    }
    for (std::size_t steps = 1; steps < 12; ++steps) {
      EXPECT_GT(seconds(512, 2048, steps + 1), seconds(512, 2048, steps));
    }
  }
}

TEST(NewtonSchulzModel, AFormThatIsAskedForIsTaken) {
  const Schedule schedule = keller();
  for (const NewtonSchulzForm form :
       {NewtonSchulzForm::kStandard, NewtonSchulzForm::kSymmetric, NewtonSchulzForm::kGram}) {
    const auto options = options_of(schedule, DType::kBFloat16, form);
    const auto choice = choose_newton_schulz(256, 256, options);
    EXPECT_EQ(choice.form, form);
    EXPECT_EQ(choice.restarts.empty(), form != NewtonSchulzForm::kGram);
  }
}

TEST(NewtonSchulzModel, LongSchedulesBeginExactInBf16) {
  const Schedule five = keller();
  const Schedule ten = deepseek_v4();
  EXPECT_EQ(plan_newton_schulz(64, 256, options_of(five)).exact_steps, 0);
  EXPECT_EQ(plan_newton_schulz(64, 256, options_of(ten)).exact_steps, 3);
}

TEST(NewtonSchulzModel, ASetThatNoRestartMakesSafeKeepsItsGramFormInFloat32) {
  const Schedule schedule = cans();
  const auto bf16 = DType::kBFloat16;
  EXPECT_EQ(
      plan_newton_schulz(64, 256, options_of(schedule, bf16, NewtonSchulzForm::kGram)).exact_steps,
      5);
  EXPECT_EQ(
      choose_newton_schulz(1024, 4096, options_of(schedule, bf16)).form,
      NewtonSchulzForm::kSymmetric);
}

TEST(NewtonSchulzModel, NamesItsForms) {
  EXPECT_STREQ(to_string(NewtonSchulzForm::kAuto), "auto");
  EXPECT_STREQ(to_string(NewtonSchulzForm::kStandard), "standard");
  EXPECT_STREQ(to_string(NewtonSchulzForm::kSymmetric), "symmetric");
  EXPECT_STREQ(to_string(NewtonSchulzForm::kGram), "gram");
}

}  // namespace
}  // namespace muster::kernels
