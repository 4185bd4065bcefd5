// SPDX-License-Identifier: Apache-2.0
// Disabled statistics cost nothing and change nothing.
#include "tests/unit/optimizer/model.h"

#include <gtest/gtest.h>

#include <vector>

namespace muster::optimizer {
namespace {

TEST(Zero1Statistics, OffLeaveTheSumsAtZero) {
  run_ranks(2, [](comm::Communicator& world) {
    for (const bool statistics : {true, false}) {
      OptimizerOptions options = uneven_options(Layout::kFlatOwner);
      options.statistics = statistics;
      const auto optimizer = make_optimizer(uneven_model(), options, world, &world);
      step_with(*optimizer, 0, world.rank());
      double sum = 0;
      std::int64_t elements = 0;
      for (const GroupUpdateStatistics& group : optimizer->update_statistics()) {
        sum += group.elements.update_squared_sum + group.elements.momentum_squared_sum +
               group.blocks.effective_rank_sum;
        elements += group.element_count;
      }
      EXPECT_EQ(sum > 0, statistics);
      EXPECT_GT(elements, 0);
    }
  });
}

TEST(Zero1Statistics, OffGiveTheSameUpdate) {
  run_ranks(2, [](comm::Communicator& world) {
    for (const StateType state :
         {StateType::kFloat32, StateType::kBFloat16, StateType::kInt8Block}) {
      std::vector<std::vector<std::vector<float>>> ends;
      for (const bool statistics : {true, false}) {
        OptimizerOptions options = large_options(Layout::kFlatOwner, state);
        options.statistics = statistics;
        const auto optimizer = make_optimizer(large_model(), options, world, &world);
        set_initial_values(*optimizer);
        for (int step = 0; step < 2; ++step) {
          step_with(*optimizer, step, world.rank());
        }
        ends.push_back(values_of(*optimizer));
      }
      EXPECT_EQ(difference(ends[0], ends[1]), "") << kernels::to_string(state);
    }
  });
}

}  // namespace
}  // namespace muster::optimizer
