// SPDX-License-Identifier: Apache-2.0
// Whole updates through an optimizer of one rank: what the pieces of Muon make together, and the
// statistics that every rule leaves.
#include "tests/support/random_values.h"
#include "tests/unit/optimizer/ranks.h"
#include "tests/unit/optimizer/reference.h"

#include <muster/common/random.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace muster::optimizer {
namespace {

using test::fp32_normal_values;

constexpr double kMuonEpsilon = 1.0 / (1 << 24);  // half an ulp of 1.0F

StepDecision at_rate(double learning_rate) {
  StepDecision decision;
  decision.learning_rate = learning_rate;
  return decision;
}

void step_muon(
    Optimizer& optimizer,
    Parameter& parameter,
    std::span<const double> gradient,
    const StepDecision& decision) {
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    parameter.gradient[i] = static_cast<float>(gradient[i]);
  }
  ASSERT_TRUE(optimizer.reduce_gradients(soon()).ok());
  ASSERT_TRUE(optimizer.apply(decision, soon()).ok());
  ASSERT_TRUE(optimizer.gather_parameters(soon()).ok());
  optimizer.zero_gradients();
}

// Routes from the options; every parameter replicated and fp32.
OptimizerOptions all_to(Rule rule, double weight_decay) {
  OptimizerOptions options;
  options.routes = {{"*", rule, "all", weight_decay, 1.0}};
  return options;
}

struct MuonCase {
  std::int64_t rows;
  std::int64_t cols;
  NewtonSchulzSet set;
  bool nesterov;
  MomentumForm form;
  MuonScale scale;
};

class MuonRule : public ::testing::TestWithParam<MuonCase> {};

TEST_P(MuonRule, MatchesADoubleReferenceOverRandomSteps) {
  const MuonCase test = GetParam();
  run_ranks(1, [&test](comm::Communicator& world) {
    constexpr int kMuonSteps = 10;
    constexpr double kMuonRate = 0.02;
    OptimizerOptions options = all_to(Rule::kMuon, 0.1);
    options.muon.newton_schulz_set = test.set;
    options.muon.nesterov = test.nesterov;
    options.muon.momentum_form = test.form;
    options.muon.scale = test.scale;
    const auto optimizer = make_optimizer({{"w", {test.rows, test.cols}}}, options, world);
    Parameter& w = *optimizer->find("w");
    Random random{37};
    const auto rows = static_cast<std::size_t>(test.rows);
    const auto cols = static_cast<std::size_t>(test.cols);
    ReferenceMuon reference{rows, cols, fp32_normal_values(random, rows * cols, 0.1), {}};
    for (std::size_t i = 0; i < rows * cols; ++i) {
      w.value[i] = static_cast<float>(reference.value[i]);
    }
    for (int step = 0; step < kMuonSteps; ++step) {
      const auto gradient = fp32_normal_values(random, rows * cols, 1.0);
      step_muon(*optimizer, w, gradient, at_rate(kMuonRate));
      reference.update(gradient, options.muon, kMuonRate, 0.1);
    }
    // Rounding of a singular direction is amplified by the slope of the polynomial at 0 (below 1000
    // for all sets), so one step's O is off by up to 1000 * sqrt(short side) * epsilon.
    const double short_side = static_cast<double>(std::min(rows, cols));
    const double scale = muon_scale(options.muon, test.rows, test.cols);
    const double tolerance =
        kMuonSteps * kMuonEpsilon * (2.0 + kMuonRate * scale * 1000.0 * std::sqrt(short_side));
    for (std::size_t i = 0; i < rows * cols; ++i) {
      EXPECT_NEAR(static_cast<double>(w.value[i]), reference.value[i], tolerance);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    ShapesSetsFormsAndScales,
    MuonRule,
    ::testing::Values(
        MuonCase{
            12, 20, NewtonSchulzSet::kKeller, true, MomentumForm::kHeavyBall, MuonScale::kRmsMatch},
        MuonCase{20, 12, NewtonSchulzSet::kKeller, false, MomentumForm::kEma, MuonScale::kKeller},
        MuonCase{16, 16, NewtonSchulzSet::kYou, true, MomentumForm::kEma, MuonScale::kMuP},
        MuonCase{
            7, 33, NewtonSchulzSet::kPolarExpress, true, MomentumForm::kHeavyBall, MuonScale::kMuP},
        MuonCase{
            33,
            7,
            NewtonSchulzSet::kPolarExpress,
            false,
            MomentumForm::kHeavyBall,
            MuonScale::kKeller},
        MuonCase{
            1,
            9,
            NewtonSchulzSet::kClassicCubic,
            true,
            MomentumForm::kHeavyBall,
            MuonScale::kRmsMatch}));

// Heavy-ball and EMA momenta differ by a factor, which the orthogonalisation removes.
TEST(MuonForms, GiveTheSameUpdate) {
  std::vector<std::vector<float>> values;
  for (const MomentumForm form : {MomentumForm::kHeavyBall, MomentumForm::kEma}) {
    run_ranks(1, [&](comm::Communicator& world) {
      OptimizerOptions options = all_to(Rule::kMuon, 0.1);
      options.muon.momentum_form = form;
      const auto optimizer = make_optimizer({{"w", {8, 12}}}, options, world);
      Parameter& w = *optimizer->find("w");
      Random random{39};
      for (int step = 0; step < 6; ++step) {
        step_muon(*optimizer, w, fp32_normal_values(random, 96, 1.0), at_rate(0.02));
      }
      values.emplace_back(w.value.begin(), w.value.end());
    });
  }
  // Six steps of rounding through slopes below 500, at a rate of 0.02 * 0.2 * sqrt(12).
  for (std::size_t i = 0; i < values[0].size(); ++i) {
    EXPECT_NEAR(values[0][i], values[1][i], 6 * 0.014 * 500 * kMuonEpsilon * 3);
  }
}

TEST(MuonRule, MovesEachMatrixOfAStackLikeAMatrixOfItsOwn) {
  run_ranks(1, [](comm::Communicator& world) {
    const OptimizerOptions options = all_to(Rule::kMuon, 0.1);
    const auto stacked = make_optimizer({{"s", {2, 6, 4}}}, options, world);
    const auto apart = make_optimizer({{"a", {6, 4}}, {"b", {6, 4}}}, options, world);
    Random random{41};
    Parameter& stack = *stacked->find("s");
    for (std::size_t i = 0; i < 48; ++i) {
      Parameter& alone = *apart->find(i < 24 ? "a" : "b");
      // The two matrices differ in size by far: a shared norm would show.
      stack.gradient[i] = static_cast<float>(random.normal() * (i < 24 ? 1.0 : 1e-4));
      alone.gradient[i % 24] = stack.gradient[i];
    }
    ASSERT_TRUE(stacked->apply(at_rate(0.1), soon()).ok());
    ASSERT_TRUE(apart->apply(at_rate(0.1), soon()).ok());
    for (std::size_t i = 0; i < 48; ++i) {
      EXPECT_EQ(stack.value[i], apart->find(i < 24 ? "a" : "b")->value[i % 24]);
    }
  });
}

// Per-head blocks: each is orthogonalised and scaled as the matrix it is, not as the fused one.
TEST(MuonRule, MovesEachBlockOfAMatrixLikeAMatrixOfItsOwn) {
  run_ranks(1, [](comm::Communicator& world) {
    const OptimizerOptions options = all_to(Rule::kMuon, 0.1);
    ParameterSpec fused{"f", {12, 4}};
    fused.blocks = {{4}, 3, false};
    const auto blocked = make_optimizer({fused}, options, world);
    const auto apart =
        make_optimizer({{"h0", {4, 4}}, {"h1", {4, 4}}, {"h2", {4, 4}}}, options, world);
    Random random{47};
    Parameter& whole = *blocked->find("f");
    for (std::size_t i = 0; i < 48; ++i) {
      whole.gradient[i] = static_cast<float>(random.normal());
      apart->parameters()[i / 16].gradient[i % 16] = whole.gradient[i];
    }
    ASSERT_TRUE(blocked->apply(at_rate(0.1), soon()).ok());
    ASSERT_TRUE(apart->apply(at_rate(0.1), soon()).ok());
    for (std::size_t i = 0; i < 48; ++i) {
      EXPECT_EQ(whole.value[i], apart->parameters()[i / 16].value[i % 16]);
    }
  });
}

TEST(MuonRule, LeavesAMatrixWithoutGradientToItsDecayAlone) {
  run_ranks(1, [](comm::Communicator& world) {
    const auto optimizer = make_optimizer({{"w", {3, 3}}}, all_to(Rule::kMuon, 0.5), world);
    Parameter& w = *optimizer->find("w");
    std::fill(w.value.begin(), w.value.end(), 2.0F);
    ASSERT_TRUE(optimizer->apply(at_rate(0.5), soon()).ok());
    for (const float value : w.value) {
      EXPECT_EQ(value, 1.5F);
    }
  });
}

// Clipping acts on the raw gradient: a constant factor cancels in the direction, so the size of a
// Muon update does not depend on the clip.
TEST(MuonRule, IsNotShortenedByClipping) {
  run_ranks(1, [](comm::Communicator& world) {
    std::vector<std::vector<float>> values;
    for (const double clip_factor : {1.0, 1.0 / 1024}) {
      const auto optimizer = make_optimizer({{"w", {6, 4}}}, all_to(Rule::kMuon, 0.0), world);
      Parameter& w = *optimizer->find("w");
      Random random{53};
      StepDecision decision = at_rate(0.1);
      decision.clip_factor = clip_factor;
      step_muon(*optimizer, w, fp32_normal_values(random, 24, 1.0), decision);
      values.emplace_back(w.value.begin(), w.value.end());
    }
    EXPECT_EQ(values[0], values[1]);  // A power of two: not even rounding differs.
  });
}

// The sums of the tensors in `state`, by the prefix of their checkpoint names.
struct Sums {
  double squared{0};
  double largest{0};
  std::int64_t count{0};
};

Sums sums_of(Optimizer& optimizer, const std::string& prefix, const std::string& parameter) {
  Sums sums;
  for (const TensorPiece& tensor : optimizer.state()) {
    if (tensor.name != prefix + "/" + parameter) {
      continue;
    }
    const auto* values = reinterpret_cast<const float*>(tensor.data.data());
    sums.count = static_cast<std::int64_t>(tensor.data.size() / sizeof(float));
    for (std::int64_t i = 0; i < sums.count; ++i) {
      const auto value = static_cast<double>(values[i]);
      sums.squared += value * value;
      sums.largest = std::max(sums.largest, std::abs(value));
    }
  }
  return sums;
}

TEST(UpdateStatistics, DescribeWhatTheUpdateLeft) {
  run_ranks(1, [](comm::Communicator& world) {
    OptimizerOptions options;
    options.routes = {
        {"w", Rule::kMuon, "matrices", 0.1, 1.0}, {"p", Rule::kAdamW, "vectors", 0.1, 1.0}};
    const auto optimizer = make_optimizer({{"p", {9}}, {"w", {5, 4}}}, options, world);
    Random random{43};
    for (Parameter& parameter : optimizer->parameters()) {
      for (float& gradient : parameter.gradient) {
        gradient = static_cast<float>(random.normal());
      }
    }
    ASSERT_TRUE(optimizer->apply(at_rate(0.1), soon()).ok());
    const auto groups = optimizer->update_statistics();
    ASSERT_EQ(groups.size(), 2U);
    const auto expect = [](double squared, double largest, const Sums& sums) {
      // The pass may add up a few squares in fp32 before they enter a double.
      EXPECT_NEAR(squared, sums.squared, sums.squared * 8 * kMuonEpsilon);
      EXPECT_DOUBLE_EQ(largest, sums.largest);
      EXPECT_GT(sums.count, 0);
    };
    const GroupUpdateStatistics& muon = groups[0];
    const GroupUpdateStatistics& adamw = groups[1];
    expect(
        muon.elements.parameter_squared_sum,
        muon.elements.parameter_abs_max,
        sums_of(*optimizer, "param", "w"));
    expect(
        muon.elements.momentum_squared_sum,
        muon.elements.momentum_abs_max,
        sums_of(*optimizer, "muon_momentum", "w"));
    expect(
        adamw.elements.parameter_squared_sum,
        adamw.elements.parameter_abs_max,
        sums_of(*optimizer, "param", "p"));
    expect(
        adamw.elements.momentum_squared_sum,
        adamw.elements.momentum_abs_max,
        sums_of(*optimizer, "adamw_m", "p"));
    expect(
        adamw.elements.second_moment_squared_sum,
        adamw.elements.second_moment_abs_max,
        sums_of(*optimizer, "adamw_v", "p"));
    EXPECT_EQ(muon.element_count, 20);
    EXPECT_EQ(adamw.element_count, 9);
    // Values started at 0, so the update is what is there now.
    EXPECT_NEAR(
        muon.elements.update_squared_sum,
        muon.elements.parameter_squared_sum,
        muon.elements.parameter_squared_sum * 1e-6);
    EXPECT_EQ(muon.blocks.block_count, 1);
    EXPECT_EQ(adamw.blocks.block_count, 0);
    EXPECT_GE(muon.blocks.effective_rank_min, 1.0 / 4);
    EXPECT_LE(muon.blocks.effective_rank_min, 1.0);
    EXPECT_GT(muon.blocks.direction_norm_sum, 0.0);
    // Values started at 0: the largest update is the largest value, the one block has the largest
    // error.
    EXPECT_FLOAT_EQ(
        static_cast<float>(adamw.elements.update_abs_max),
        static_cast<float>(adamw.elements.parameter_abs_max));
    EXPECT_FLOAT_EQ(
        static_cast<float>(muon.elements.update_abs_max),
        static_cast<float>(muon.elements.parameter_abs_max));
    EXPECT_GT(muon.blocks.orthogonality_error_max, 0.0);
    EXPECT_EQ(muon.blocks.orthogonality_error_max, muon.blocks.orthogonality_error_sum);
  });
}

}  // namespace
}  // namespace muster::optimizer
