// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/collector/detect/observations.h"

#include <muster/detect/expert_imbalance_detector.h>

#include <gtest/gtest.h>

namespace muster::detect {

namespace {

// Layers 0 and 1 with rho 1.3 +- 0.05 and maxvio 0.8 +- 0.1, plus what a test adds to layer 1.
class Router {
 public:
  explicit Router(std::uint64_t seed) : random_(seed) {}

  std::vector<Finding> steps(int count, double rho = 0, double maxvio = 0) {
    std::vector<Finding> found;
    for (int i = 0; i < count; ++i) {
      StepObservation observation = observation_at(step_++);
      for (int layer = 0; layer < 2; ++layer) {
        const double on = layer == 1 ? 1 : 0;
        observation.experts.push_back(
            {layer,
             1.3 + 0.05 * random_.normal() + on * rho,
             0.8 + 0.1 * random_.normal() + on * maxvio});
      }
      for (Finding& finding : detector.observe(observation)) {
        found.push_back(std::move(finding));
      }
    }
    return found;
  }

  ExpertImbalanceDetector detector{{}};

 private:
  Random random_;
  std::int64_t step_{0};
};

}  // namespace

TEST(ExpertImbalanceDetector, FindsRisingRankImbalanceAtFlatMaxvioOnce) {
  Router router{51};
  EXPECT_TRUE(router.steps(200).empty());
  EXPECT_TRUE(router.steps(7, 0.8).empty());
  const auto findings = router.steps(50, 0.8);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].rule, "expert_imbalance");
  EXPECT_EQ(findings[0].subject, "layer 1");
  EXPECT_EQ(findings[0].step, 207);
  EXPECT_GT(findings[0].inputs.at("z"), 5.0);
  EXPECT_LT(findings[0].inputs.at("maxvio_z"), 3.0);
  EXPECT_NEAR(findings[0].inputs.at("median"), 1.3, 0.05);
  EXPECT_NE(findings[0].reason.find("layer 1"), std::string::npos);
}

TEST(ExpertImbalanceDetector, LeavesARouterThatIsSkewedItselfToOthers) {
  Router router{52};
  EXPECT_TRUE(router.steps(200).empty());
  EXPECT_TRUE(router.steps(50, 0.8, 3.0).empty());
}

TEST(ExpertImbalanceDetector, AShortRiseIsNoFinding) {
  Router router{53};
  EXPECT_TRUE(router.steps(200).empty());
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(router.steps(7, 0.8).empty());
    EXPECT_TRUE(router.steps(2).empty());
  }
}

TEST(ExpertImbalanceDetector, IsQuietOnACleanStream) {
  constexpr std::uint64_t kSeed = 54;
  Router router{kSeed};
  EXPECT_TRUE(router.steps(50'000).empty()) << "seed " << kSeed;
}

TEST(ExpertImbalanceDetector, ALevelThatStaysIsAcceptedAndTheNextRiseFound) {
  Router router{55};
  EXPECT_TRUE(router.steps(200).empty());
  EXPECT_EQ(router.steps(200, 0.8).size(), 1U);
  EXPECT_EQ(router.steps(20, 1.8).size(), 1U);
}

TEST(ExpertImbalanceDetector, ALevelIsAcceptedWithItsLastFrozenValue) {
  const int most = static_cast<int>(ExpertImbalanceOptions{}.freeze_steps_max);
  for (const int frozen : {most - 1, most}) {
    Router router{57};
    EXPECT_TRUE(router.steps(200).empty());
    EXPECT_EQ(router.steps(frozen, 3.0).size(), 1U);
    // Steps back, then the same rise: news only where the old level is still the usual one.
    EXPECT_TRUE(router.steps(8).empty());
    EXPECT_EQ(router.steps(8, 3.0).size(), frozen < most ? 1U : 0U) << frozen;
  }
}

TEST(ExpertImbalanceDetector, NothingIsFoundBeforeTheWindowHasWarmedUp) {
  Router router{56};
  EXPECT_TRUE(router.steps(40).empty());
  EXPECT_TRUE(router.steps(20, 5.0).empty());
}

TEST(ExpertImbalanceDetector, ValuesThatAreNotFiniteArePassedOver) {
  Router router{57};
  EXPECT_TRUE(router.steps(200).empty());
  StepObservation observation = observation_at(200);
  observation.experts = {{1, kNaN, kNaN}, {2, kInfinity, 0.5}};
  EXPECT_TRUE(router.detector.observe(observation).empty());
  EXPECT_EQ(router.steps(8, 0.8).size(), 1U);
}

}  // namespace muster::detect
