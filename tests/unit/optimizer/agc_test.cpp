// SPDX-License-Identifier: Apache-2.0
// Adaptive clipping over rows, whole or in parts.
#include "tests/unit/optimizer/model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

namespace muster::optimizer {
namespace {

// SGD at rate 1 shows the clipped gradient: w0 - w.
OptimizerOptions sgd_options(Layout layout, double factor) {
  OptimizerOptions options;
  options.routes = {{"left", Rule::kSgd, "left"}, {"*", Rule::kSgd, "rows"}};
  options.layout = layout;
  options.cut_granularity = 16;
  options.clipping.agc = AgcOptions{factor, 1e-3, {"rows"}};
  return options;
}

std::vector<ParameterSpec> rows_model() {
  return {{"matrix", {9, 53}}, {"vector", {71}}, {"stack", {2, 5, 31}}, {"left", {6, 40}}};
}

// The definition, in double.
std::vector<float> clipped(
    const std::vector<float>& weight,
    const std::vector<float>& gradient,
    std::size_t unit,
    double scale,
    const AgcOptions& agc) {
  std::vector<float> end = weight;
  for (std::size_t begin = 0; begin < weight.size(); begin += unit) {
    double w = 0;
    double g = 0;
    for (std::size_t i = begin; i < begin + unit; ++i) {
      w += std::pow(static_cast<double>(weight[i]), 2);
      g += std::pow(scale * static_cast<double>(gradient[i]), 2);
    }
    const double bound = agc.factor * std::max(std::sqrt(w), agc.epsilon);
    const double factor = std::sqrt(g) > bound ? bound / std::sqrt(g) : 1.0;
    for (std::size_t i = begin; i < begin + unit; ++i) {
      end[i] -= static_cast<float>(factor * scale * static_cast<double>(gradient[i]));
    }
  }
  return end;
}

TEST(AdaptiveClipping, BoundsEveryRowOfEveryLayoutByItsWeights) {
  constexpr double kFactor = 0.5;
  constexpr double kScale = 0.25;
  for (const Layout layout : kLayouts) {
    for (const int ranks : {1, 2, 3, 4, 7, 8}) {
      SCOPED_TRACE(testing::Message() << to_string(layout) << ' ' << ranks);
      run_ranks(ranks, [&](comm::Communicator& world) {
        const auto optimizer =
            make_optimizer(rows_model(), sgd_options(layout, kFactor), world, nullptr);
        set_initial_values(*optimizer);
        // Rows of tiny weights are bounded by epsilon, rows of tiny gradients not at all.
        auto& matrix = *optimizer->find("matrix");
        std::fill_n(matrix.value.begin(), 53, 1e-6F);
        const auto before = values_of(*optimizer);
        std::vector<std::vector<float>> gradients;
        for (Parameter& parameter : optimizer->parameters()) {
          Random random{parameter.gradient.size()};
          for (std::size_t i = 0; i < parameter.gradient.size(); ++i) {
            parameter.gradient[i] = exact_value(random) * (i / 53 == 3 ? 0.0625F : 8.0F);
          }
          gradients.emplace_back(parameter.gradient.begin(), parameter.gradient.end());
          if (world.rank() != 0) {
            std::fill(parameter.gradient.begin(), parameter.gradient.end(), 0.0F);
          }
        }
        finish_step(*optimizer, decide(kScale, 1.0));
        const AgcOptions agc{kFactor, 1e-3, {}};
        const std::vector<std::size_t> units{53, 71, 31, 40};
        for (std::size_t p = 0; p < 4; ++p) {
          const AgcOptions none{1e9, 1e-3, {}};
          const auto expected =
              clipped(before[p], gradients[p], units[p], kScale, p == 3 ? none : agc);
          const auto value = optimizer->parameters()[p].value;
          for (std::size_t i = 0; i < value.size(); ++i) {
            // fp32 products of norms that are summed in double, in another order per layout.
            EXPECT_NEAR(
                value[i], expected[i], 1e-6 * (1.0 + static_cast<double>(std::abs(expected[i]))))
                << p << ' ' << i;
          }
        }
      });
    }
  }
}

TEST(AdaptiveClipping, LeavesSmallGradientsBitForBit) {
  run_ranks(2, [](comm::Communicator& world) {
    OptimizerOptions options = uneven_options(Layout::kFlatOwner);
    const auto plain = make_optimizer(uneven_model(), options, world, &world);
    options.clipping.agc = AgcOptions{1e9, 1e-3, {}};
    const auto clipping = make_optimizer(uneven_model(), options, world, &world);
    for (Optimizer* optimizer : {plain.get(), clipping.get()}) {
      set_initial_values(*optimizer);
      add_slice_gradients(*optimizer, 0, world.rank());
      finish_step(*optimizer, decide(1.0, 0.01));
    }
    EXPECT_EQ(everything(*plain), everything(*clipping));
  });
}

TEST(AdaptiveClipping, RefusesGroupsThatDoNotExist) {
  run_ranks(1, [](comm::Communicator& world) {
    OptimizerOptions options = small_options();
    options.clipping.agc = AgcOptions{0.01, 1e-3, {"nobody"}};
    EXPECT_EQ(
        Optimizer::create(small_model(), options, world, &world, soon()).status().code(),
        StatusCode::kInvalidArgument);
  });
}

}  // namespace
}  // namespace muster::optimizer
