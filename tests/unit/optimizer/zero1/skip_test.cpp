// SPDX-License-Identifier: Apache-2.0
// The guard's contract and everything else that must not reach the weights, in every layout and
// state type.
#include "optimizer/src/layout/layout.h"
#include "tests/unit/optimizer/model.h"
#include "tests/unit/optimizer/spoiling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <mutex>
#include <tuple>

namespace muster::optimizer {
namespace {

class Skip : public ::testing::TestWithParam<std::tuple<Layout, StateType>> {};

TEST_P(Skip, LeavesEveryByteAndTheNextStepAsIfTheBatchHadNotBeen) {
  const auto [layout, state] = GetParam();
  const OptimizerOptions options = large_options(layout, state);
  run_ranks(3, [&](comm::Communicator& world) {
    const auto hit = make_optimizer(large_model(), options, world, &world);
    const auto spared = make_optimizer(large_model(), options, world, &world);
    for (Optimizer* optimizer : {hit.get(), spared.get()}) {
      set_initial_values(*optimizer);
      step_with(*optimizer, 0, world.rank());
    }
    const std::string before = everything(*hit);
    add_slice_gradients(*hit, 1, world.rank());
    for (std::size_t index = 0; index < hit->parameters().size(); ++index) {
      if (world.rank() == static_cast<int>(index % 3)) {
        hit->parameters()[index].gradient.back() = index % 2 == 0
                                                       ? std::numeric_limits<float>::quiet_NaN()
                                                       : std::numeric_limits<float>::infinity();
      }
    }
    ASSERT_TRUE(hit->reduce_gradients(soon()).ok());
    EXPECT_GT(hit->local_statistics().nonfinite_count, 0);
    ASSERT_TRUE(hit->apply(skip_step(), soon()).ok());
    ASSERT_TRUE(hit->gather_parameters(soon()).ok());
    hit->zero_gradients();
    EXPECT_EQ(everything(*hit), before);
    EXPECT_EQ(hit->applied_steps(), 1);
    for (Optimizer* optimizer : {hit.get(), spared.get()}) {
      step_with(*optimizer, 2, world.rank());
    }
    EXPECT_EQ(everything(*hit), everything(*spared));
  });
}

INSTANTIATE_TEST_SUITE_P(
    Types,
    Skip,
    ::testing::Combine(
        ::testing::ValuesIn(kLayouts),
        ::testing::Values(StateType::kFloat32, StateType::kBFloat16, StateType::kInt8Block)));

class InEveryLayout : public ::testing::TestWithParam<Layout> {};

INSTANTIATE_TEST_SUITE_P(
    Layouts, InEveryLayout, ::testing::ValuesIn(kLayouts), [](const auto& one) {
      return std::string{to_string(one.param)};
    });

std::vector<std::vector<float>> train(
    int ranks, Layout layout, const std::function<void(Optimizer&, int rank)>& before_apply) {
  std::mutex mutex;
  std::vector<std::vector<float>> values;
  run_ranks(ranks, [&](comm::Communicator& inner) {
    SpoilingCommunicator world{inner};
    const auto optimizer = make_optimizer(uneven_model(), uneven_options(layout), world, &world);
    set_initial_values(*optimizer);
    for (int step = 0; step < 2; ++step) {
      add_slice_gradients(*optimizer, step, inner.rank());
      ASSERT_TRUE(optimizer->reduce_gradients(soon()).ok());
      before_apply(*optimizer, inner.rank());
      EXPECT_EQ(optimizer->local_statistics().nonfinite_count, 0);
      ASSERT_TRUE(optimizer->apply(decide(1.0, 0.01), soon()).ok());
      ASSERT_TRUE(optimizer->gather_parameters(soon()).ok());
      optimizer->zero_gradients();
    }
    const std::lock_guard lock{mutex};
    if (values.empty()) {
      values = values_of(*optimizer);
    }
    EXPECT_EQ(difference(values_of(*optimizer), values), "");
  });
  return values;
}

std::vector<std::vector<float>> unspoilt(int ranks) {
  std::vector<std::vector<float>> values;
  run_ranks(1, [&](comm::Communicator& world) {
    const auto optimizer =
        make_optimizer(uneven_model(), uneven_options(Layout::kWholeMatrices), world, &world);
    set_initial_values(*optimizer);
    for (int step = 0; step < 2; ++step) {
      for (int slice = 0; slice < ranks; ++slice) {
        add_slice_gradients(*optimizer, step, slice);
      }
      finish_step(*optimizer, decide(1.0, 0.01));
    }
    values = values_of(*optimizer);
  });
  return values;
}

TEST_P(InEveryLayout, WhatCollectivesLeaveUnspecifiedReachesNothing) {
  EXPECT_EQ(difference(train(4, GetParam(), [](Optimizer&, int) {}), unspoilt(4)), "");
}

// Alignment padding lies between parameters; NaN in it must stay there.
TEST_P(InEveryLayout, PaddingReachesNeitherNormsNorNewtonSchulz) {
  const auto routing = route(uneven_model(), uneven_options(GetParam()).routes);
  ASSERT_TRUE(routing.ok());
  std::size_t poisoned = 0;
  const auto poison = [&](Optimizer& optimizer, int rank) {
    for (const BufferKey& key : buffer_keys(*routing)) {
      const BufferPlan plan = plan_buffer(*routing, uneven_options(GetParam()), key, 4);
      std::vector<bool> used(plan.size, false);
      for (const PlacedParameter& placed : plan.placed) {
        std::fill_n(
            used.begin() + static_cast<std::ptrdiff_t>(placed.begin),
            routing->parameters[placed.parameter].size,
            true);
      }
      const PlacedParameter& first = plan.placed.front();
      float* base = optimizer.parameters()[first.parameter].gradient.data() - first.begin;
      for (std::size_t i = 0; i < plan.size; ++i) {
        if (!used[i]) {
          base[i] = std::numeric_limits<float>::quiet_NaN();
          poisoned += rank == 0 ? 1 : 0;
        }
      }
    }
  };
  EXPECT_EQ(difference(train(4, GetParam(), poison), unspoilt(4)), "");
  EXPECT_GT(poisoned, 0U);
}

// Finite gradients whose momentum overflows: that block alone stays as it was, on every rank.
TEST_P(InEveryLayout, ABlockWhoseDirectionOverflowsStaysAsItWas) {
  std::mutex mutex;
  std::int64_t nonfinite = 0;
  std::int64_t blocks = 0;
  run_ranks(3, [&](comm::Communicator& world) {
    const auto optimizer =
        make_optimizer(uneven_model(), uneven_options(GetParam()), world, &world);
    set_initial_values(*optimizer);
    const auto before = values_of(*optimizer);
    add_slice_gradients(*optimizer, 0, world.rank());
    // Rows 5 to 9 of `heads` are its second head; `w18` is one block.
    if (world.rank() == 1) {
      optimizer->find("heads")->gradient[7 * 19] = 3e38F;
      optimizer->find("w18")->gradient[17 * 23] = 3e38F;
    }
    ASSERT_TRUE(optimizer->reduce_gradients(soon()).ok());
    EXPECT_EQ(optimizer->local_statistics().nonfinite_count, 0);
    ASSERT_TRUE(optimizer->apply(decide(1.0, 0.01), soon()).ok());
    ASSERT_TRUE(optimizer->gather_parameters(soon()).ok());
    const auto after = values_of(*optimizer);
    EXPECT_EQ(after[2], before[2]);
    EXPECT_NE(after[3], before[3]);
    for (std::size_t i = 0; i < after[4].size(); ++i) {
      const bool second_head = i >= 5 * 19 && i < 10 * 19;
      EXPECT_EQ(after[4][i] == before[4][i], second_head) << i;
    }
    const std::lock_guard lock{mutex};
    for (const GroupUpdateStatistics& group : optimizer->update_statistics()) {
      nonfinite += group.blocks.nonfinite_blocks;
      blocks += group.blocks.block_count;
    }
  });
  EXPECT_EQ(nonfinite, 2);
  EXPECT_EQ(blocks, 17 + 3 - 2);
}

TEST_P(InEveryLayout, TheScheduleOfCollectivesDoesNotDependOnGradients) {
  run_ranks(4, [&](comm::Communicator& inner) {
    SpoilingCommunicator world{inner};
    OptimizerOptions options = uneven_options(GetParam());
    options.clipping.agc = AgcOptions{};
    const auto optimizer = make_optimizer(uneven_model(), options, world, &world);
    (void)world.take();
    std::vector<std::string> first;
    for (int step = 0; step < 3; ++step) {
      if (step == 0) {
        add_slice_gradients(*optimizer, step, inner.rank());
      } else if (step == 1 && inner.rank() == 2) {
        optimizer->find("w29")->gradient[3] = 1.0F;  // no other rank has a gradient
      }
      finish_step(*optimizer, decide(1.0, 0.01));
      const auto calls = world.take();
      if (step == 0) {
        first = calls;
      }
      EXPECT_EQ(calls, first) << "step " << step;
      EXPECT_EQ(optimizer->moved_bytes().collectives, static_cast<std::int64_t>(calls.size()));
    }
  });
}

// Statistics [groups] of all ranks, combined.
std::vector<GroupUpdateStatistics> total_statistics(int ranks, Layout layout) {
  std::mutex mutex;
  std::vector<GroupUpdateStatistics> total;
  run_ranks(ranks, [&](comm::Communicator& world) {
    const auto optimizer = make_optimizer(uneven_model(), uneven_options(layout), world, &world);
    set_initial_values(*optimizer);
    for (int step = 0; step < 2; ++step) {
      for (int slice = world.rank(); slice < 8; slice += ranks) {
        add_slice_gradients(*optimizer, step, slice);
      }
      finish_step(*optimizer, decide(0.125, 0.01));
    }
    const std::lock_guard lock{mutex};
    total.resize(optimizer->group_names().size());
    for (std::size_t g = 0; g < total.size(); ++g) {
      total[g].add(optimizer->update_statistics()[g]);
    }
  });
  return total;
}

TEST_P(InEveryLayout, StatisticsCountEveryElementAndBlockOnce) {
  const auto alone = total_statistics(1, Layout::kWholeMatrices);
  for (const int ranks : {3, 8}) {
    const auto shared = total_statistics(ranks, GetParam());
    ASSERT_EQ(shared.size(), alone.size());
    for (std::size_t g = 0; g < alone.size(); ++g) {
      const GroupUpdateStatistics& a = alone[g];
      const GroupUpdateStatistics& s = shared[g];
      EXPECT_EQ(s.element_count, a.element_count);
      EXPECT_EQ(s.blocks.block_count, a.blocks.block_count);
      // Sums of the same terms in another order; the kernels add up runs in fp32 first.
      const auto near = [&](double one, double other, const char* what) {
        EXPECT_NEAR(one, other, 1e-5 * std::abs(other) + 1e-12) << what << " of group " << g;
      };
      near(s.elements.update_squared_sum, a.elements.update_squared_sum, "update");
      near(s.elements.parameter_squared_sum, a.elements.parameter_squared_sum, "parameter");
      near(s.elements.momentum_squared_sum, a.elements.momentum_squared_sum, "momentum");
      near(
          s.elements.momentum_gradient_sum,
          a.elements.momentum_gradient_sum,
          "momentum and gradient");
      near(s.elements.second_moment_sum, a.elements.second_moment_sum, "second moment");
      near(s.elements.gradient_squared_sum, a.elements.gradient_squared_sum, "gradient");
      near(s.elements.staleness_sum, a.elements.staleness_sum, "staleness");
      near(s.elements.parameter_abs_max, a.elements.parameter_abs_max, "largest parameter");
      near(s.elements.update_abs_max, a.elements.update_abs_max, "largest update");
      near(s.blocks.direction_norm_sum, a.blocks.direction_norm_sum, "direction");
      near(s.blocks.effective_rank_sum, a.blocks.effective_rank_sum, "effective rank");
      near(s.blocks.effective_rank_min, a.blocks.effective_rank_min, "least effective rank");
      near(s.blocks.orthogonality_error_sum, a.blocks.orthogonality_error_sum, "orthogonality");
      near(s.blocks.orthogonality_error_max, a.blocks.orthogonality_error_max, "largest error");
    }
  }
}

// One step of one batch is one step of the same batch in four pieces, exactly.
TEST_P(InEveryLayout, AccumulationOverMicroBatchesGivesTheSameBits) {
  std::vector<std::vector<std::vector<float>>> ends;
  std::vector<std::int64_t> calls;
  for (const int pieces : {1, 4}) {
    run_ranks(2, [&](comm::Communicator& world) {
      const auto optimizer =
          make_optimizer(uneven_model(), uneven_options(GetParam()), world, &world);
      set_initial_values(*optimizer);
      for (int step = 0; step < 2; ++step) {
        // Four slices per rank, as one sum or one after the other into the buffer.
        std::vector<std::vector<float>> sums;
        for (Parameter& parameter : optimizer->parameters()) {
          sums.emplace_back(parameter.gradient.size(), 0.0F);
        }
        for (int slice = 0; slice < 4; ++slice) {
          if (pieces == 4) {
            add_slice_gradients(*optimizer, step, 4 * world.rank() + slice);
            continue;
          }
          Random random{static_cast<std::uint64_t>(step * 1000 + 4 * world.rank() + slice)};
          for (auto& sum : sums) {
            for (float& value : sum) {
              value += exact_value(random);
            }
          }
        }
        for (std::size_t p = 0; pieces == 1 && p < sums.size(); ++p) {
          std::copy(sums[p].begin(), sums[p].end(), optimizer->parameters()[p].gradient.begin());
        }
        finish_step(*optimizer, decide(0.125, 0.01));
      }
      if (world.rank() == 0) {
        ends.push_back(values_of(*optimizer));
        calls.push_back(optimizer->newton_schulz_calls());
      }
    });
  }
  EXPECT_EQ(difference(ends[0], ends[1]), "");
  EXPECT_EQ(calls[0], calls[1]);
}

TEST(Zero1Groups, OnlyMuonOrOnlyAdamWIsAModelToo) {
  for (const Layout layout : kLayouts) {
    for (const Rule rule : {Rule::kMuon, Rule::kAdamW}) {
      run_ranks(3, [&](comm::Communicator& world) {
        OptimizerOptions options;
        options.routes = {{"*", rule, "all"}};
        options.layout = layout;
        const auto optimizer = make_optimizer({{"w", {5, 3}}}, options, world);
        add_slice_gradients(*optimizer, 0, world.rank());
        finish_step(*optimizer, decide(1.0, 0.01));
        EXPECT_EQ(optimizer->applied_steps(), 1);
      });
    }
  }
}

TEST(Zero1Groups, NoParametersAtAllIsAStepWithoutWork) {
  run_ranks(2, [](comm::Communicator& world) {
    OptimizerOptions options;
    options.overlap = true;
    const auto optimizer = make_optimizer({}, options, world);
    ASSERT_NE(optimizer, nullptr);
    finish_step(*optimizer, decide(1.0, 0.01));
    EXPECT_TRUE(optimizer->state().empty());
  });
}

// Each rank has different experts: groups of one reduce without a peer.
TEST(Zero1Groups, ExpertPeersOfOneRankReduceNothing) {
  for (const Layout layout : kLayouts) {
    run_ranks(3, [&](comm::Communicator& world) {
      const auto peers = world.split(world.rank(), 0, soon());
      ASSERT_TRUE(peers.ok());
      const auto optimizer =
          make_optimizer(uneven_model(), uneven_options(layout), world, peers->get());
      set_initial_values(*optimizer);
      const auto before = values_of(*optimizer);
      add_slice_gradients(*optimizer, 0, world.rank());
      finish_step(*optimizer, decide(1.0, 0.01));
      EXPECT_NE(values_of(*optimizer)[12], before[12]);
    });
  }
}

TEST(Zero1Momentum, IsNeverAnAliasOfWhatNewtonSchulzOverwrites) {
  for (const bool nesterov : {false, true}) {
    run_ranks(1, [&](comm::Communicator& world) {
      OptimizerOptions options;
      options.routes = {{"w", Rule::kMuon, "all"}};
      options.muon.nesterov = nesterov;
      const auto optimizer = make_optimizer({{"w", {4, 6}}}, options, world);
      add_slice_gradients(*optimizer, 0, 0);
      const auto gradient = optimizer->parameters()[0].gradient;
      const std::vector<float> expected{gradient.begin(), gradient.end()};
      finish_step(*optimizer, decide(1.0, 0.01));
      for (const TensorPiece& tensor : optimizer->state()) {
        if (tensor.name == "muon_momentum/w") {
          EXPECT_EQ(std::memcmp(tensor.data.data(), expected.data(), tensor.data.size()), 0);
        }
      }
    });
  }
}

TEST(Zero1Momentum, CountsAppliedStepsBeyondWhatSixteenBitsHold) {
  run_ranks(1, [](comm::Communicator& world) {
    const auto optimizer = make_optimizer(
        large_model(DType::kBFloat16),
        large_options(Layout::kWholeMatrices, StateType::kBFloat16),
        world,
        &world);
    optimizer->set_applied_steps(70000);
    finish_step(*optimizer, decide(1.0, 0.01));
    EXPECT_EQ(optimizer->applied_steps(), 70001);
    EXPECT_EQ(optimizer->state_values().at("optimizer.applied_steps"), "70001");
  });
}

// Per-group factors act like gradients that much smaller: exact for powers of two.
TEST(Zero1Clipping, EachGroupHasAFactorOfItsOwn) {
  run_ranks(2, [](comm::Communicator& world) {
    const OptimizerOptions options = uneven_options(Layout::kFlatOwner);
    const auto clipped = make_optimizer(uneven_model(), options, world, &world);
    const auto small = make_optimizer(uneven_model(), options, world, &world);
    StepDecision decision = decide(1.0, 0.01);
    decision.clip_factor = 0.001;  // not used when groups have their own
    for (std::size_t g = 0; g < clipped->group_names().size(); ++g) {
      decision.group_clip_factors.push_back(std::ldexp(1.0, -static_cast<int>(g)));
    }
    for (Optimizer* optimizer : {clipped.get(), small.get()}) {
      set_initial_values(*optimizer);
      add_slice_gradients(*optimizer, 0, world.rank());
    }
    for (Parameter& parameter : small->parameters()) {
      for (float& gradient : parameter.gradient) {
        gradient *= static_cast<float>(std::ldexp(1.0, -parameter.group_index));
      }
    }
    finish_step(*clipped, decision);
    finish_step(*small, decide(1.0, 0.01));
    EXPECT_EQ(everything(*clipped), everything(*small));
  });
}

TEST(Zero1Clipping, RefusesFactorsForAnotherNumberOfGroups) {
  run_ranks(1, [](comm::Communicator& world) {
    const auto optimizer = make_optimizer(small_model(), small_options(), world, &world);
    const std::string before = everything(*optimizer);
    StepDecision decision = decide(1.0, 0.01);
    decision.group_clip_factors = {1.0};
    EXPECT_EQ(optimizer->apply(decision, soon()).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(everything(*optimizer), before);
  });
}

// Clipping acts on gradients, never on the orthogonalised update: the first step of Muon does not
// see it at all.
TEST(Zero1Clipping, TheSizeOfMuonsUpdateDoesNotDependOnIt) {
  run_ranks(1, [](comm::Communicator& world) {
    std::vector<std::vector<std::vector<float>>> ends;
    for (const double factor : {1.0, 1.0 / 1024}) {
      const auto optimizer = make_optimizer(
          {{"w", {6, 10}}},
          [] {
            OptimizerOptions options;
            options.routes = {{"w", Rule::kMuon, "all"}};
            return options;
          }(),
          world);
      add_slice_gradients(*optimizer, 0, 0);
      StepDecision decision = decide(1.0, 0.01);
      decision.clip_factor = factor;
      finish_step(*optimizer, decision);
      ends.push_back(values_of(*optimizer));
    }
    EXPECT_EQ(difference(ends[0], ends[1]), "");
  });
}

}  // namespace
}  // namespace muster::optimizer
