#include "ranks.h"
#include "reference.h"

#include <muster/common/random.h>
#include <muster/optimizer/newton_schulz_sets.h>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace muster::optimizer {
namespace {

constexpr double kFloatEpsilon = 1.0 / (1 << 24);  // half an ulp of 1.0F

void step_with(
    Optimizer& optimizer,
    Parameter& parameter,
    std::span<const double> gradient,
    const StepDecision& decision) {
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    parameter.gradient[i] = static_cast<float>(gradient[i]);
  }
  ASSERT_TRUE(optimizer.reduce_gradients(soon()).ok());
  optimizer.apply(decision);
  ASSERT_TRUE(optimizer.gather_parameters(soon()).ok());
  optimizer.zero_gradients();
}

// torch.optim.AdamW in double: p = 1, g = 0.1, -0.2, 0.3, lr 1e-3, betas (0.9, 0.999), eps 1e-8,
// weight decay 0.01.
TEST(AdamWRule, FollowsTorchsGoldenTrajectory) {
  run_ranks(1, [](comm::Communicator& world) {
    OptimizerOptions options;
    options.routes = {{"*", Rule::kAdamW, "all", 0.01, 1.0}};
    options.adamw = {0.9, 0.999, 1e-8};
    const auto optimizer = make_optimizer({{"p", {1}, Placement::kReplicated}}, options, world);
    Parameter& p = *optimizer->find("p");
    p.value[0] = 1.0F;
    const std::vector<double> gradients{0.1, -0.2, 0.3};
    const std::vector<double> golden{0.998990000100, 0.999346113704, 0.998992879178};
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      step_with(*optimizer, p, std::span{gradients}.subspan(i, 1), {false, 1.0, 1.0, 1e-3});
      EXPECT_NEAR(
          static_cast<double>(p.value[0]),
          golden[i],
          static_cast<double>(i + 1) * 2 * kFloatEpsilon);
    }
    const auto state = optimizer->state();
    ASSERT_EQ(state.size(), 3U);
    EXPECT_NEAR(static_cast<double>(state[1].data[0]), 0.0201, 1e-8);
    EXPECT_NEAR(static_cast<double>(state[2].data[0]), 1.3994001e-4, 1e-10);
  });
}

std::vector<double> random_vector(Random& random, std::size_t size, double scale) {
  std::vector<double> values(size);
  for (double& value : values) {
    value = static_cast<double>(static_cast<float>(random.normal() * scale));
  }
  return values;
}

TEST(AdamWRule, MatchesADoubleReferenceOverRandomSteps) {
  run_ranks(1, [](comm::Communicator& world) {
    constexpr std::size_t kSize = 67;
    constexpr int kSteps = 50;
    constexpr double kRate = 3e-3;
    OptimizerOptions options;
    options.routes = {{"*", Rule::kAdamW, "all", 0.1, 0.5}};
    const auto optimizer = make_optimizer({{"p", {kSize}, Placement::kReplicated}}, options, world);
    Parameter& p = *optimizer->find("p");
    Random random{31};
    ReferenceAdamW reference;
    reference.value = random_vector(random, kSize, 1.0);
    for (std::size_t i = 0; i < kSize; ++i) {
      p.value[i] = static_cast<float>(reference.value[i]);
    }
    for (int step = 0; step < kSteps; ++step) {
      // The optimizer sees sums over 8 tokens and a clip factor; the reference their product.
      const std::vector<double> gradient = random_vector(random, kSize, 1.0);
      std::vector<double> sums = gradient;
      for (double& sum : sums) {
        sum *= 16.0;
      }
      step_with(*optimizer, p, sums, {false, 1.0 / 8.0, 0.5, kRate});
      reference.update(gradient, options.adamw, kRate * 0.5, 0.1);
    }
    // Each step rounds p a few times and its update (at most about the rate) by a few ulps.
    for (std::size_t i = 0; i < kSize; ++i) {
      const double tolerance =
          kSteps * kFloatEpsilon * (3 * std::abs(reference.value[i]) + 32 * kRate);
      EXPECT_NEAR(static_cast<double>(p.value[i]), reference.value[i], tolerance);
    }
  });
}

struct MuonCase {
  std::int64_t rows;
  std::int64_t cols;
  NewtonSchulzSet set;
  bool nesterov;
};

class MuonRule : public ::testing::TestWithParam<MuonCase> {};

TEST_P(MuonRule, MatchesADoubleReferenceOverRandomSteps) {
  const MuonCase test = GetParam();
  run_ranks(1, [&test](comm::Communicator& world) {
    constexpr int kSteps = 10;
    constexpr double kRate = 0.02;
    OptimizerOptions options;
    options.routes = {{"*", Rule::kMuon, "all", 0.1, 1.0}};
    options.muon.newton_schulz_set = test.set;
    options.muon.nesterov = test.nesterov;
    const auto optimizer =
        make_optimizer({{"w", {test.rows, test.cols}, Placement::kReplicated}}, options, world);
    Parameter& w = *optimizer->find("w");
    Random random{37};
    const auto rows = static_cast<std::size_t>(test.rows);
    const auto cols = static_cast<std::size_t>(test.cols);
    ReferenceMuon reference{rows, cols, random_vector(random, rows * cols, 0.1), {}};
    for (std::size_t i = 0; i < rows * cols; ++i) {
      w.value[i] = static_cast<float>(reference.value[i]);
    }
    for (int step = 0; step < kSteps; ++step) {
      const auto gradient = random_vector(random, rows * cols, 1.0);
      step_with(*optimizer, w, gradient, {false, 1.0, 1.0, kRate});
      reference.update(gradient, options.muon, kRate, 0.1);
    }
    // Rounding of a singular direction is amplified by the slope of the polynomial at 0 (below 1000
    // for all sets), so one step's O is off by up to 1000 * sqrt(short side) * epsilon.
    const double short_side = static_cast<double>(std::min(rows, cols));
    const double scale = 0.2 * std::sqrt(static_cast<double>(std::max(rows, cols)));
    const double tolerance =
        kSteps * kFloatEpsilon * (2.0 + kRate * scale * 1000.0 * std::sqrt(short_side));
    for (std::size_t i = 0; i < rows * cols; ++i) {
      EXPECT_NEAR(static_cast<double>(w.value[i]), reference.value[i], tolerance);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    ShapesAndSets,
    MuonRule,
    ::testing::Values(
        MuonCase{12, 20, NewtonSchulzSet::kKeller, true},
        MuonCase{20, 12, NewtonSchulzSet::kKeller, false},
        MuonCase{16, 16, NewtonSchulzSet::kYou, true},
        MuonCase{7, 33, NewtonSchulzSet::kPolarExpress, true},
        MuonCase{1, 9, NewtonSchulzSet::kClassicCubic, true}));

TEST(MuonRule, MovesEachMatrixOfAStackLikeAMatrixOfItsOwn) {
  run_ranks(1, [](comm::Communicator& world) {
    OptimizerOptions options;
    options.routes = {{"*", Rule::kMuon, "all", 0.1, 1.0}};
    const auto stacked = make_optimizer({{"s", {2, 6, 4}, Placement::kReplicated}}, options, world);
    const auto apart = make_optimizer(
        {{"a", {6, 4}, Placement::kReplicated}, {"b", {6, 4}, Placement::kReplicated}},
        options,
        world);
    Random random{41};
    Parameter& stack = *stacked->find("s");
    for (std::size_t i = 0; i < 48; ++i) {
      Parameter& alone = *apart->find(i < 24 ? "a" : "b");
      // The two matrices differ in size by far: a shared norm would show.
      stack.gradient[i] = static_cast<float>(random.normal() * (i < 24 ? 1.0 : 1e-4));
      alone.gradient[i % 24] = stack.gradient[i];
    }
    stacked->apply({false, 1.0, 1.0, 0.1});
    apart->apply({false, 1.0, 1.0, 0.1});
    for (std::size_t i = 0; i < 48; ++i) {
      EXPECT_EQ(stack.value[i], apart->find(i < 24 ? "a" : "b")->value[i % 24]);
    }
  });
}

TEST(MuonRule, LeavesAMatrixWithoutGradientToItsDecayAlone) {
  run_ranks(1, [](comm::Communicator& world) {
    OptimizerOptions options;
    options.routes = {{"*", Rule::kMuon, "all", 0.5, 1.0}};
    const auto optimizer = make_optimizer({{"w", {3, 3}, Placement::kReplicated}}, options, world);
    Parameter& w = *optimizer->find("w");
    std::fill(w.value.begin(), w.value.end(), 2.0F);
    optimizer->apply({false, 1.0, 1.0, 0.5});
    for (const float value : w.value) {
      EXPECT_EQ(value, 1.5F);
    }
  });
}

TEST(UpdateStatistics, DescribeWhatTheUpdateLeft) {
  run_ranks(1, [](comm::Communicator& world) {
    OptimizerOptions options;
    options.routes = {
        {"w", Rule::kMuon, "matrices", 0.1, 1.0}, {"p", Rule::kAdamW, "vectors", 0.1, 1.0}};
    const auto optimizer = make_optimizer(
        {{"p", {9}, Placement::kReplicated}, {"w", {5, 4}, Placement::kReplicated}},
        options,
        world);
    Random random{43};
    for (Parameter& parameter : optimizer->parameters()) {
      for (float& gradient : parameter.gradient) {
        gradient = static_cast<float>(random.normal());
      }
    }
    optimizer->apply({false, 1.0, 1.0, 0.1});
    const auto groups = optimizer->update_statistics();
    ASSERT_EQ(groups.size(), 2U);
    for (const StateTensor& tensor : optimizer->state()) {
      const bool muon = tensor.name.ends_with("/w");
      const GroupUpdateStatistics& group = groups[muon ? 0 : 1];
      double squared = 0;
      double largest = 0;
      for (const float value : tensor.data) {
        squared += static_cast<double>(value) * static_cast<double>(value);
        largest = std::max(largest, std::abs(static_cast<double>(value)));
      }
      const bool parameter = tensor.name.starts_with("param/");
      const bool second = tensor.name.starts_with("adamw_v/");
      const double seen_squared = parameter ? group.parameter_squared_sum
                                  : second  ? group.second_moment_squared_sum
                                            : group.momentum_squared_sum;
      const double seen_largest = parameter ? group.parameter_abs_max
                                  : second  ? group.second_moment_abs_max
                                            : group.momentum_abs_max;
      EXPECT_NEAR(seen_squared, squared, squared * 1e-12) << tensor.name;
      EXPECT_DOUBLE_EQ(seen_largest, largest) << tensor.name;
      EXPECT_EQ(group.element_count, static_cast<std::int64_t>(tensor.data.size()));
    }
    // Values started at 0, so the update is what is there now.
    EXPECT_NEAR(
        groups[0].update_squared_sum,
        groups[0].parameter_squared_sum,
        groups[0].parameter_squared_sum * 1e-6);
  });
}

}  // namespace
}  // namespace muster::optimizer
