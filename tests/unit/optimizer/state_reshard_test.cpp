// SPDX-License-Identifier: Apache-2.0
// State saved by N ranks in one layout continues identically on M ranks in another.
#include "tests/unit/optimizer/state_store.h"

#include <gtest/gtest.h>

#include <memory>
#include <tuple>

namespace muster::optimizer {
namespace {

constexpr int kReshardSlices = 8;

void train(Optimizer& optimizer, comm::Communicator& world, int first, int last) {
  for (int step = first; step < last; ++step) {
    for (int slice = world.rank(); slice < kReshardSlices; slice += world.size()) {
      add_slice_gradients(optimizer, step, slice);
    }
    finish_step(optimizer, decide(1.0 / kReshardSlices, 0.01));
  }
}

// Trains steps [0, steps) and saves; and the values after `more` steps on top.
struct Saved {
  std::unique_ptr<StateStore> store = std::make_unique<StateStore>();
  std::vector<std::vector<float>> later;
};

Saved train_and_save(
    int ranks,
    const std::vector<ParameterSpec>& specs,
    const OptimizerOptions& options,
    int steps,
    int more) {
  Saved saved;
  run_ranks(ranks, [&](comm::Communicator& world) {
    const auto optimizer = make_optimizer(specs, options, world, &world);
    ASSERT_NE(optimizer, nullptr);
    set_initial_values(*optimizer);
    train(*optimizer, world, 0, steps);
    saved.store->save(*optimizer);
    train(*optimizer, world, steps, steps + more);
    if (world.rank() == 0) {
      saved.later = values_of(*optimizer);
    }
  });
  saved.store->expect_complete();
  return saved;
}

void expect_goes_on(
    Saved& saved,
    int ranks,
    const std::vector<ParameterSpec>& specs,
    const OptimizerOptions& options,
    int steps,
    int more) {
  StateStore again;
  run_ranks(ranks, [&](comm::Communicator& world) {
    const auto optimizer = make_optimizer(specs, options, world, &world);
    ASSERT_NE(optimizer, nullptr);
    const Status loaded = optimizer->load_state(*saved.store);
    ASSERT_TRUE(loaded.ok()) << loaded.to_string();
    ASSERT_TRUE(optimizer->gather_parameters(soon()).ok());
    EXPECT_EQ(optimizer->applied_steps(), steps);
    again.save(*optimizer);
    train(*optimizer, world, steps, steps + more);
    EXPECT_EQ(difference(values_of(*optimizer), saved.later), "") << "rank " << world.rank();
  });
  again.expect_complete();
  EXPECT_EQ(again.contents(), saved.store->contents());
}

class Reshard : public ::testing::TestWithParam<std::tuple<Layout, Layout>> {};

TEST_P(Reshard, GoesOnBitForBitAtAnyNumberOfRanks) {
  const auto [from, to] = GetParam();
  // Two of six pairs each, so that all pairs meet all kinds of layouts.
  const std::pair<int, int> sizes[] = {{1, 7}, {3, 2}, {4, 8}, {8, 3}, {7, 1}, {2, 4}};
  const auto first = static_cast<std::size_t>(from) + 2 * static_cast<std::size_t>(to);
  for (const std::size_t at : {first % 6, (first + 3) % 6}) {
    const auto& [n, m] = sizes[at];
    SCOPED_TRACE(testing::Message() << n << " ranks to " << m);
    Saved saved = train_and_save(n, uneven_model(), uneven_options(from), 2, 2);
    expect_goes_on(saved, m, uneven_model(), uneven_options(to), 2, 2);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts,
    Reshard,
    ::testing::Combine(::testing::ValuesIn(kLayouts), ::testing::ValuesIn(kLayouts)),
    [](const auto& one) {
      return std::string{to_string(std::get<0>(one.param))} + "_to_" +
             to_string(std::get<1>(one.param));
    });

class ReshardCompressed : public ::testing::TestWithParam<std::tuple<StateType, Layout>> {};

TEST_P(ReshardCompressed, GoesOnBitForBitInTheSameType) {
  const auto [state, layout] = GetParam();
  Saved saved = train_and_save(3, large_model(), large_options(layout, state), 2, 2);
  for (const Layout to : kLayouts) {
    SCOPED_TRACE(to_string(to));
    expect_goes_on(saved, 4, large_model(), large_options(to, state), 2, 2);
  }
}

INSTANTIATE_TEST_SUITE_P(
    States,
    ReshardCompressed,
    ::testing::Combine(
        ::testing::Values(StateType::kBFloat16, StateType::kInt8Block),
        ::testing::ValuesIn(kLayouts)),
    [](const auto& one) {
      return std::string{std::get<0>(one.param) == StateType::kBFloat16 ? "bf16" : "int8"} + "_" +
             to_string(std::get<1>(one.param));
    });

// Two groups of experts on four ranks become one group on three: the expert axis is global.
TEST(ReshardExperts, AnotherNumberOfExpertGroupsHoldsTheSameExperts) {
  for (const StateType state : {StateType::kFloat32, StateType::kBFloat16, StateType::kInt8Block}) {
    SCOPED_TRACE(kernels::to_string(state));
    const OptimizerOptions options = large_options(Layout::kWholeMatrices, state);
    StateStore split;
    run_ranks(4, [&](comm::Communicator& world) {
      const auto peers = world.split(world.rank() % 2, world.rank(), soon());
      ASSERT_TRUE(peers.ok());
      const auto optimizer = make_optimizer(large_model(), options, world, peers->get());
      set_initial_values(*optimizer);
      add_slice_gradients(*optimizer, 0, world.rank());
      finish_step(*optimizer, decide(0.25, 0.01));
      split.save(*optimizer);
    });
    split.expect_complete();
    std::vector<ParameterSpec> joined = large_model();
    joined[7].shape[0] *= 2;
    joined[8].shape[0] *= 2;
    StateStore again;
    run_ranks(3, [&](comm::Communicator& world) {
      const auto optimizer = make_optimizer(joined, options, world, &world);
      const Status loaded = optimizer->load_state(split);
      ASSERT_TRUE(loaded.ok()) << loaded.to_string();
      again.save(*optimizer);
    });
    EXPECT_EQ(again.contents(), split.contents());
  }
}

// Rounding and 8-bit blocks count over all experts of the job: who holds them changes nothing.
TEST(ReshardExperts, ExpertParallelTrainingGivesTheBitsOfOneRankWithAllExperts) {
  for (const StateType state : {StateType::kFloat32, StateType::kBFloat16, StateType::kInt8Block}) {
    SCOPED_TRACE(kernels::to_string(state));
    const OptimizerOptions options = large_options(Layout::kWholeMatrices, state);
    // Gradients of experts 0 and 1 on rank 0, of 2 and 3 on rank 1; of everything else on rank 0.
    const auto fill = [](Parameter& parameter, int step, int group) {
      Random random{static_cast<std::uint64_t>(step * 10 + group)};
      for (float& gradient : parameter.gradient) {
        gradient = exact_value(random);
      }
    };
    StateStore split;
    run_ranks(2, [&](comm::Communicator& world) {
      const auto peers = world.split(world.rank(), 0, soon());
      ASSERT_TRUE(peers.ok());
      const auto optimizer = make_optimizer(large_model(), options, world, peers->get());
      for (int step = 0; step < 3; ++step) {
        for (Parameter& parameter : optimizer->parameters()) {
          if (parameter.spec.placement == Placement::kExpert || world.rank() == 0) {
            fill(parameter, step, world.rank());
          }
        }
        finish_step(*optimizer, decide(1.0, 0.01));
      }
      split.save(*optimizer);
    });
    std::vector<ParameterSpec> joined = large_model();
    joined[7].shape[0] *= 2;
    joined[8].shape[0] *= 2;
    StateStore alone;
    run_ranks(1, [&](comm::Communicator& world) {
      const auto optimizer = make_optimizer(joined, options, world, &world);
      for (int step = 0; step < 3; ++step) {
        for (Parameter& parameter : optimizer->parameters()) {
          const std::span<float> whole = parameter.gradient;
          if (parameter.spec.placement != Placement::kExpert) {
            fill(parameter, step, 0);
            continue;
          }
          for (int group = 0; group < 2; ++group) {
            parameter.gradient =
                whole.subspan(static_cast<std::size_t>(group) * whole.size() / 2, whole.size() / 2);
            fill(parameter, step, group);
          }
          parameter.gradient = whole;
        }
        finish_step(*optimizer, decide(1.0, 0.01));
      }
      alone.save(*optimizer);
    });
    EXPECT_EQ(split.contents(), alone.contents());
  }
}

TEST(ReshardPrecision, SixteenBitParametersKeepTypeAndMaster) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    const auto specs = large_model(dtype);
    Saved saved =
        train_and_save(2, specs, large_options(Layout::kFlatOwner, StateType::kFloat32), 2, 2);
    for (const auto& [name, entry] : saved.store->entries()) {
      EXPECT_EQ(entry.tensor.dtype, "F32") << name;
    }
    expect_goes_on(saved, 3, specs, large_options(Layout::kRowShards, StateType::kFloat32), 2, 2);
    // The same masters under another type of parameter.
    run_ranks(2, [&](comm::Communicator& world) {
      const auto options = large_options(Layout::kWholeMatrices, StateType::kFloat32);
      const auto wide = make_optimizer(large_model(), options, world, &world);
      ASSERT_TRUE(wide->load_state(*saved.store).ok());
      ASSERT_TRUE(wide->gather_parameters(soon()).ok());
      for (const Parameter& parameter : wide->parameters()) {
        const auto master = saved.store->floats("param/" + parameter.spec.name);
        EXPECT_EQ(std::vector(parameter.value.begin(), parameter.value.end()), master);
      }
    });
  }
}

}  // namespace
}  // namespace muster::optimizer
