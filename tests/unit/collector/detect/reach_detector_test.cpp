// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/collector/detect/observations.h"

#include <muster/detect/job_detector.h>
#include <muster/detect/reach_detector.h>

#include <gtest/gtest.h>

namespace muster::detect {

namespace {

const double kUnsaid = kNaN;

// Feeds `count` steps of layers that stay as they are.
class Layers {
 public:
  explicit Layers(ReachOptions options = {}) : detector_(options) { modes_.begin(1); }

  std::vector<Finding> steps(int count, const std::vector<AttentionLayer>& layers) {
    std::vector<Finding> found;
    for (int i = 0; i < count; ++i) {
      StepObservation observation = observation_at(step_++);
      observation.attention = layers;
      modes_.observe(observation);
      for (Finding& finding : detector_.observe(observation, modes_)) {
        found.push_back(std::move(finding));
      }
    }
    return found;
  }

  ModeTracker& modes() { return modes_; }

 private:
  ReachDetector detector_;
  ModeTracker modes_;
  std::int64_t step_{0};
};

}  // namespace

TEST(ReachDetector, FindsALayerWhoseBlocksGetNoGradientsOnceAndNamesTheRemedy) {
  Layers run;
  run.modes().note({1, 0, 1, "full", "moba:512,3"});
  const std::vector<AttentionLayer> layers{{0, 1, 0.9, 0.9}, {1, 1, 0.01, 0.12}};
  EXPECT_TRUE(run.steps(31, layers).empty());
  const auto findings = run.steps(100, layers);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].rule, "attention_reach_low");
  EXPECT_EQ(findings[0].severity, Severity::kWarning);
  EXPECT_EQ(findings[0].step, 31);
  EXPECT_EQ(findings[0].subject, "layer 1");
  EXPECT_DOUBLE_EQ(findings[0].inputs.at("block_reach"), 0.12);
  EXPECT_DOUBLE_EQ(findings[0].inputs.at("block_reach_low"), 0.5);
  const std::string& reason = findings[0].reason;
  for (const char* part : {"layer 1", "moba:512,3", "12 %", "50 %", "last_full 1"}) {
    EXPECT_NE(reason.find(part), std::string::npos) << part << " in: " << reason;
  }
}

TEST(ReachDetector, TheLastLayersQueryReachIsTheDatas) {
  Layers run;
  EXPECT_TRUE(run.steps(100, {{0, 0, 0.9, 1}, {1, 1, 0.01, 0.9}}).empty());
}

TEST(ReachDetector, AFullLayersReachIsTheDatasToo) {
  Layers run;
  EXPECT_TRUE(run.steps(100, {{0, 0, 0.01, 0.2}, {1, 0, 0.01, 0.2}}).empty());
}

TEST(ReachDetector, FewTokensReachedBelowABlockLayerAskForFullLayersAboveIt) {
  Layers run;
  const auto findings = run.steps(100, {{0, 0, 0.1, 1}, {1, 1, 0.9, 0.9}, {2, 0, 0.01, 1}});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].subject, "layer 0");
  EXPECT_EQ(findings[0].inputs.at("last_full"), 2.0);
  EXPECT_NE(findings[0].reason.find("10 % of its tokens"), std::string::npos) << findings[0].reason;
}

TEST(ReachDetector, UnknownModesCountAsBlockAttention) {
  Layers run;
  EXPECT_EQ(run.steps(100, {{0, kUnsaid, kUnsaid, 0.1}, {1, kUnsaid, 0.01, 0.9}}).size(), 1U);
}

TEST(ReachDetector, LayersThatReportNoReachAreWell) {
  Layers run;
  EXPECT_TRUE(run.steps(100, {{0, 1}, {1, 1}}).empty());
}

TEST(ReachDetector, OneHealthyStepStartsTheCountAgain) {
  Layers run;
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(run.steps(31, {{0, 1, 0.9, 0.1}}).empty());
    EXPECT_TRUE(run.steps(1, {{0, 1, 0.9, 0.9}}).empty());
  }
}

TEST(ReachDetector, IsFoundAgainOnlyAfterAsManyHealthySteps) {
  Layers run{{.steps = 4}};
  const std::vector<AttentionLayer> low{{0, 1, 0.9, 0.1}};
  const std::vector<AttentionLayer> well{{0, 1, 0.9, 0.9}};
  EXPECT_EQ(run.steps(4, low).size(), 1U);
  EXPECT_TRUE(run.steps(3, well).empty());
  EXPECT_TRUE(run.steps(4, low).empty());
  EXPECT_TRUE(run.steps(4, well).empty());
  EXPECT_EQ(run.steps(4, low).size(), 1U);
}

TEST(ReachDetector, AFullLayerEndsTheFindingAndBlocksBringItBack) {
  Layers run{{.steps = 4}};
  EXPECT_EQ(run.steps(8, {{0, 1, 0.9, 0.1}}).size(), 1U);
  EXPECT_TRUE(run.steps(8, {{0, 0, 0.9, 0.1}}).empty());
  EXPECT_EQ(run.steps(8, {{0, 1, 0.9, 0.1}}).size(), 1U);
}

TEST(ReachDetector, SkippedStepsDoNotCount) {
  JobDetectorOptions options;
  options.reach.steps = 4;
  JobDetector detector{options};
  std::size_t found = 0;
  for (std::int64_t step = 0; step < 8; ++step) {
    StepObservation observation = observation_at(step);
    observation.attention = {{0, 1, 0.9, 0.1}};
    observation.skipped = step % 2 == 1;
    found += detector.observe(observation).size();
    EXPECT_EQ(found, step < 6 ? 0U : 1U) << "step " << step;
  }
}

}  // namespace muster::detect
