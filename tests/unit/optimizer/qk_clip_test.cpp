#include "ranks.h"

#include <muster/common/random.h>
#include <muster/optimizer/qk_clip.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace muster::optimizer {
namespace {

using ::testing::HasSubstr;

constexpr int kHeads = 3;
constexpr int kHeadDim = 4;
constexpr int kIn = 10;
constexpr int kTokens = 9;

AttentionLayer layer() {
  return {0, kHeads, kHeadDim, "wq", "wk"};
}

TEST(QkClip, LeavesEverythingAtOrBelowTheThresholdAlone) {
  const std::vector<double> logits{10.0, 0.0, -400.0, 99.999};
  EXPECT_EQ(qk_clip_gammas(logits, 100.0), (std::vector<double>{1, 1, 1, 1}));
  EXPECT_EQ(qk_clip_gammas(logits, 10.0)[0], 1.0);
}

TEST(QkClip, BringsALogitOverTheThresholdDownToIt) {
  EXPECT_DOUBLE_EQ(qk_clip_gammas(std::vector<double>{400.0}, 100.0)[0], 0.25);
}

TEST(QkClip, NeverScalesByNonFiniteMaxima) {
  const double infinity = std::numeric_limits<double>::infinity();
  const std::vector<double> logits{
      infinity, -infinity, std::numeric_limits<double>::quiet_NaN(), 200.0};
  EXPECT_EQ(qk_clip_gammas(logits, 100.0), (std::vector<double>{1, 1, 1, 0.5}));
}

TEST(QkClip, IsOffAtThresholdZero) {
  EXPECT_EQ(qk_clip_gammas(std::vector<double>{1e6}, 0.0), std::vector<double>{1.0});
}

TEST(QkClip, ScalesOnlyTheRowsOfHeadsOverTheThreshold) {
  const auto scales = head_scales(layer(), std::vector<double>{1.0, 0.25, 1.0});
  ASSERT_EQ(scales.size(), 2U);
  EXPECT_EQ(scales[0].parameter, "wq");
  EXPECT_EQ(scales[1].parameter, "wk");
  EXPECT_EQ(scales[0].row_begin, 4);
  EXPECT_EQ(scales[0].row_end, 8);
  EXPECT_DOUBLE_EQ(scales[0].factor, 0.5);
  EXPECT_DOUBLE_EQ(scales[1].factor, 0.5);
}

// The largest q . k per head over all pairs of the rows of x, in double.
std::vector<double> head_maxima(
    std::span<const float> wq, std::span<const float> wk, const std::vector<double>& x) {
  const auto project = [&](std::span<const float> w, std::size_t row, std::size_t token) {
    double sum = 0;
    for (std::size_t i = 0; i < kIn; ++i) {
      sum += static_cast<double>(w[row * kIn + i]) * x[token * kIn + i];
    }
    return sum;
  };
  std::vector<double> maxima(kHeads, -1e300);
  for (std::size_t head = 0; head < kHeads; ++head) {
    for (std::size_t q = 0; q < kTokens; ++q) {
      for (std::size_t k = 0; k < kTokens; ++k) {
        double logit = 0;
        for (std::size_t row = head * kHeadDim; row < (head + 1) * kHeadDim; ++row) {
          logit += project(wq, row, q) * project(wk, row, k);
        }
        maxima[head] = std::max(maxima[head], logit);
      }
    }
  }
  return maxima;
}

struct ClipRun {
  std::vector<double> before;
  std::vector<double> after;
};

// Random projections with head 1 made loud, clipped at `tau` by ranks that route them to `rule`.
ClipRun clip(comm::Communicator& world, Rule rule, double tau) {
  OptimizerOptions options;
  options.routes = {{"*", rule, "attention", 0.0, 1.0}};
  const std::vector<std::int64_t> shape{kHeads * kHeadDim, kIn};
  const auto optimizer = make_optimizer(
      {{"wq", shape, Placement::kReplicated}, {"wk", shape, Placement::kReplicated}},
      options,
      world);
  Random random{23};
  for (Parameter& parameter : optimizer->parameters()) {
    for (std::size_t i = 0; i < parameter.value.size(); ++i) {
      const bool loud = i / (kHeadDim * kIn) == 1;
      parameter.value[i] = static_cast<float>(random.normal() * (loud ? 8.0 : 1.0));
    }
  }
  std::vector<double> x(kTokens * kIn);
  for (double& value : x) {
    value = random.normal();
  }
  Parameter& wq = *optimizer->find("wq");
  Parameter& wk = *optimizer->find("wk");
  ClipRun run;
  run.before = head_maxima(wq.value, wk.value, x);
  const auto scales = head_scales(layer(), qk_clip_gammas(run.before, tau));
  EXPECT_TRUE(optimizer->scale_heads(scales).ok());
  EXPECT_TRUE(optimizer->gather_parameters(soon()).ok());
  run.after = head_maxima(wq.value, wk.value, x);
  return run;
}

void expect_only_the_loud_head_clipped(const ClipRun& run, double tau) {
  ASSERT_GT(run.before[1], tau);
  EXPECT_NEAR(run.after[1], tau, tau * 1e-6);  // Two float roundings per row, 2^-23 relative.
  EXPECT_EQ(run.after[0], run.before[0]);
  EXPECT_EQ(run.after[2], run.before[2]);
}

TEST(QkClip, MakesTheLogitOfTheSameWeightsExactlyTau) {
  run_ranks(1, [](comm::Communicator& world) {
    expect_only_the_loud_head_clipped(clip(world, Rule::kMuon, 1000.0), 1000.0);
  });
}

TEST(QkClip, ReachesEveryRankWhoeverOwnsTheRows) {
  for (const Rule rule : {Rule::kMuon, Rule::kAdamW}) {
    for (const int ranks : {2, 3, 5}) {
      run_ranks(ranks, [rule](comm::Communicator& world) {
        expect_only_the_loud_head_clipped(clip(world, rule, 1000.0), 1000.0);
      });
    }
  }
}

TEST(QkClip, RefusesScalesThatDoNotFitAndChangesNothing) {
  run_ranks(1, [](comm::Communicator& world) {
    OptimizerOptions options;
    options.routes = {{"*", Rule::kAdamW, "attention", 0.0, 1.0}};
    const auto optimizer = make_optimizer(
        {{"wq", {4, 2}, Placement::kReplicated}, {"bias", {4}, Placement::kReplicated}},
        options,
        world);
    std::fill_n(optimizer->find("wq")->value.begin(), 8, 1.0F);
    const auto refusal = [&](HeadScale bad) {
      const std::vector<HeadScale> scales{{"wq", 0, 4, 0.5}, std::move(bad)};
      return optimizer->scale_heads(scales).message();
    };
    EXPECT_THAT(refusal({"wz", 0, 1, 0.5}), HasSubstr("no parameter 'wz'"));
    EXPECT_THAT(refusal({"bias", 0, 1, 0.5}), HasSubstr("'bias' is not a matrix"));
    EXPECT_THAT(refusal({"wq", 3, 5, 0.5}), HasSubstr("[3, 5) do not lie in parameter 'wq'"));
    EXPECT_THAT(refusal({"wq", 0, 1, 0.0}), HasSubstr("not a positive finite number"));
    EXPECT_EQ(optimizer->find("wq")->value[0], 1.0F);
  });
}

}  // namespace
}  // namespace muster::optimizer
