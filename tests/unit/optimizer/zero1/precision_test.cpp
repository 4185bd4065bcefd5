// SPDX-License-Identifier: Apache-2.0
// 16-bit parameters with fp32 masters, and compressed states, in every layout.
#include "tests/unit/optimizer/model.h"

#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <tuple>

namespace muster::optimizer {
namespace {

constexpr int kPrecisionSlices = 8;

std::vector<std::vector<float>> train(
    int ranks, const std::vector<ParameterSpec>& specs, const OptimizerOptions& options) {
  std::mutex mutex;
  std::vector<std::vector<float>> values;
  run_ranks(ranks, [&](comm::Communicator& world) {
    const auto optimizer = make_optimizer(specs, options, world, &world);
    ASSERT_NE(optimizer, nullptr);
    set_initial_values(*optimizer);
    for (int step = 0; step < 3; ++step) {
      for (int slice = world.rank(); slice < kPrecisionSlices; slice += world.size()) {
        add_slice_gradients(*optimizer, step, slice);
      }
      finish_step(*optimizer, decide(1.0 / kPrecisionSlices, 0.01));
    }
    const std::lock_guard lock{mutex};
    if (values.empty()) {
      values = values_of(*optimizer);
    }
    EXPECT_EQ(difference(values_of(*optimizer), values), "");
  });
  return values;
}

class EveryPrecision : public ::testing::TestWithParam<std::tuple<DType, StateType, Layout>> {};

TEST_P(EveryPrecision, EndsWithTheBitsOfOneRank) {
  const auto [dtype, state, layout] = GetParam();
  const auto specs = large_model(dtype);
  const auto alone = train(1, specs, large_options(Layout::kWholeMatrices, state));
  for (const int ranks : {3, 8}) {
    EXPECT_EQ(difference(train(ranks, specs, large_options(layout, state)), alone), "") << ranks;
  }
}

const char* state_name(StateType type) {
  return type == StateType::kFloat32 ? "fp32" : type == StateType::kBFloat16 ? "bf16" : "int8";
}

INSTANTIATE_TEST_SUITE_P(
    Types,
    EveryPrecision,
    ::testing::Combine(
        ::testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16),
        ::testing::Values(StateType::kFloat32, StateType::kBFloat16, StateType::kInt8Block),
        ::testing::ValuesIn(kLayouts)),
    [](const auto& one) {
      return concat(
          short_name(std::get<0>(one.param)),
          "_",
          state_name(std::get<1>(one.param)),
          "_",
          std::get<2>(one.param));
    });

// Masters as they are saved, by parameter; of one rank everything.
std::map<std::string, std::vector<float>> masters(Optimizer& optimizer) {
  std::map<std::string, std::vector<float>> found;
  for (const TensorPiece& tensor : optimizer.state()) {
    if (tensor.name.starts_with("param/")) {
      std::vector<float> values(tensor.data.size() / sizeof(float));
      std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
      found[tensor.name.substr(6)] = std::move(values);
    }
  }
  return found;
}

void expect_rounded_masters(Optimizer& optimizer) {
  const auto found = masters(optimizer);
  for (const Parameter& parameter : optimizer.parameters()) {
    const auto& master = found.at(parameter.spec.name);
    std::vector<std::uint16_t> rounded(master.size());
    kernels::narrow(parameter.spec.dtype, master, rounded);
    EXPECT_EQ(std::vector(parameter.value16.begin(), parameter.value16.end()), rounded)
        << parameter.spec.name;
    EXPECT_TRUE(parameter.value.empty());
  }
}

TEST(Zero1Precision, ForwardReadsTheRoundedMasters) {
  run_ranks(1, [](comm::Communicator& world) {
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
      const auto optimizer = make_optimizer(
          large_model(dtype),
          large_options(Layout::kFlatOwner, StateType::kFloat32),
          world,
          &world);
      set_initial_values(*optimizer);
      expect_rounded_masters(*optimizer);
      add_slice_gradients(*optimizer, 0, 0);
      finish_step(*optimizer, decide(1.0, 1e-5));  // too small to show in most 16-bit values
      expect_rounded_masters(*optimizer);
    }
  });
}

TEST(Zero1Precision, MastersRememberUpdatesTooSmallForTheCopy) {
  run_ranks(1, [](comm::Communicator& world) {
    const auto optimizer = make_optimizer(
        {{"w", {1, 4}, Placement::kReplicated, DType::kBFloat16}},
        [] {
          OptimizerOptions options;
          options.routes = {{"w", Rule::kSgd, "all"}};
          return options;
        }(),
        world);
    ASSERT_TRUE(optimizer->set_values(0, std::vector<float>(4, 1.0F)).ok());
    const std::uint16_t one = optimizer->parameters()[0].value16[0];
    // An ulp of bf16 at 1 is 2^-7 upwards and 2^-8 downwards; ten steps of 2^-11 cross half of it.
    for (int step = 0; step < 10; ++step) {
      std::fill_n(optimizer->parameters()[0].gradient.begin(), 4, 1.0F);
      finish_step(*optimizer, decide(1.0, 1.0 / 2048));
      if (step == 0) {
        EXPECT_EQ(optimizer->parameters()[0].value16[0], one);
      }
    }
    EXPECT_NE(optimizer->parameters()[0].value16[0], one);
    EXPECT_FLOAT_EQ(masters(*optimizer).at("w")[0], 1.0F - 10.0F / 2048.0F);
  });
}

TEST(Zero1Precision, SetValuesRefusesTheWrongSize) {
  run_ranks(1, [](comm::Communicator& world) {
    const auto optimizer = make_optimizer(small_model(), small_options(), world, &world);
    EXPECT_EQ(optimizer->set_values(1, std::vector<float>(6)).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(
        optimizer->set_values(99, std::vector<float>(6)).code(), StatusCode::kInvalidArgument);
  });
}

// QK-clip on sharded masters: both precisions of the clipped rows, nothing else.
TEST(Zero1Precision, ScalesMasterAndCopyOfTheNamedRowsOnly) {
  for (const Layout layout : kLayouts) {
    SCOPED_TRACE(to_string(layout));
    std::mutex mutex;
    std::map<std::string, std::vector<float>> pieces;
    run_ranks(3, [&](comm::Communicator& world) {
      const auto specs = large_model(DType::kBFloat16);
      const auto optimizer =
          make_optimizer(specs, large_options(layout, StateType::kFloat32), world, &world);
      set_initial_values(*optimizer);
      const auto before = values_of(*optimizer);
      const HeadScale head{"w", 24, 48, 0.7};
      const HeadScale bias{"scale", 100, 200, 0.25};
      ASSERT_TRUE(optimizer->scale_heads(std::vector{head, bias}).ok());
      ASSERT_TRUE(optimizer->gather_parameters(soon()).ok());
      auto expected = before;
      Random random{17};
      for (std::size_t p = 0; p < expected.size(); ++p) {
        std::vector<float> master(expected[p].size());
        for (float& value : master) {
          value = exact_value(random);
        }
        for (std::size_t i = 0; i < master.size(); ++i) {
          const bool in_head = specs[p].name == "w" && i >= 24 * 64 && i < 48 * 64;
          const bool in_bias = specs[p].name == "scale" && i >= 100 && i < 200;
          master[i] *= in_head ? 0.7F : in_bias ? 0.25F : 1.0F;
        }
        std::vector<std::uint16_t> bits(master.size());
        kernels::narrow(DType::kBFloat16, master, bits);
        kernels::widen(DType::kBFloat16, bits, expected[p]);
      }
      EXPECT_EQ(difference(values_of(*optimizer), expected), "");
    });
  }
}

TEST(Zero1Precision, DigestsSeeWhatForwardReads) {
  run_ranks(1, [](comm::Communicator& world) {
    const auto optimizer = make_optimizer(
        large_model(DType::kBFloat16),
        large_options(Layout::kWholeMatrices, StateType::kFloat32),
        world,
        &world);
    const std::uint64_t before = optimizer->replica_digest();
    optimizer->find("w")->value16[5] ^= 1;
    EXPECT_NE(optimizer->replica_digest(), before);
  });
}

TEST(Zero1Precision, SmallParametersKeepFullStates) {
  run_ranks(1, [](comm::Communicator& world) {
    const auto optimizer = make_optimizer(
        large_model(), large_options(Layout::kWholeMatrices, StateType::kInt8Block), world, &world);
    for (const TensorPiece& tensor : optimizer->state()) {
      if (tensor.name == "adamw_m/norm") {
        EXPECT_EQ(tensor.dtype, DType::kFloat32);
      }
      if (tensor.name == "adamw_m/embedding") {
        EXPECT_EQ(tensor.dtype, DType::kUint8);
      }
    }
  });
}

}  // namespace
}  // namespace muster::optimizer
