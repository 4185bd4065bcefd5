// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/optimizer/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace muster::optimizer {
namespace {

using ::testing::HasSubstr;

TEST(Zero1Creation, KeepsTheOrderOfTheSpecsAndFindsByName) {
  run_ranks(3, [](comm::Communicator& world) {
    const auto specs = small_model();
    const auto optimizer = make_optimizer(specs, small_options(), world, &world);
    ASSERT_EQ(optimizer->parameters().size(), specs.size());
    for (std::size_t i = 0; i < specs.size(); ++i) {
      EXPECT_EQ(optimizer->parameters()[i].spec.name, specs[i].name);
      EXPECT_EQ(optimizer->find(specs[i].name), &optimizer->parameters()[i]);
    }
    EXPECT_EQ(optimizer->find("nobody"), nullptr);
  });
}

TEST(Zero1Creation, RefusesRanksWithDifferentModelsAndNamesTheirHashes) {
  run_ranks(3, [](comm::Communicator& world) {
    auto specs = small_model();
    if (world.rank() == 1) {
      specs[0].shape[0] += 1;
    }
    const auto optimizer = Optimizer::create(specs, small_options(), world, &world, soon());
    ASSERT_FALSE(optimizer.ok());
    EXPECT_EQ(optimizer.status().code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(optimizer.status().message(), HasSubstr("rank 1 ("));
    EXPECT_THAT(optimizer.status().message(), HasSubstr("must be the same on all ranks"));
  });
}

TEST(Zero1Creation, RefusesRanksWithDifferentHyperparameters) {
  run_ranks(2, [](comm::Communicator& world) {
    OptimizerOptions options = small_options();
    options.adamw.beta2 = world.rank() == 0 ? 0.95 : 0.99;
    EXPECT_EQ(
        Optimizer::create(small_model(), options, world, &world, soon()).status().code(),
        StatusCode::kFailedPrecondition);
  });
}

TEST(Zero1Creation, FreesTheOtherRanksWhenOneRefusesItsParameters) {
  run_ranks(2, [](comm::Communicator& world) {
    auto specs = small_model();
    if (world.rank() == 1) {
      specs.push_back({"stray", {3}, Placement::kReplicated});
    }
    const auto optimizer = Optimizer::create(specs, small_options(), world, &world, soon());
    ASSERT_FALSE(optimizer.ok());
    EXPECT_THAT(
        optimizer.status().message(),
        HasSubstr(
            world.rank() == 1 ? "'stray' of shape [3] matches no route"
                              : "rank 1 (refused its own)"));
  });
}

TEST(Zero1Creation, RefusesExpertParametersWithoutPeersByName) {
  run_ranks(1, [](comm::Communicator& world) {
    const auto optimizer =
        Optimizer::create(small_model(), small_options(), world, nullptr, soon());
    EXPECT_THAT(optimizer.status().message(), HasSubstr("'experts.up' is an expert parameter"));
  });
}

TEST(Zero1Creation, RefusesExpertPeersOfUnequalNumber) {
  run_ranks(3, [](comm::Communicator& world) {
    const auto peers = world.split(world.rank() == 2 ? 1 : 0, world.rank(), soon());
    ASSERT_TRUE(peers.ok());
    const auto optimizer =
        Optimizer::create(small_model(), small_options(), world, peers->get(), soon());
    EXPECT_EQ(optimizer.status().code(), StatusCode::kFailedPrecondition);
  });
}

TEST(Zero1Creation, DescribesEveryRegionOfThePlan) {
  run_ranks(2, [](comm::Communicator& world) {
    const auto optimizer = make_optimizer(small_model(), small_options(), world, &world);
    const std::string text = optimizer->describe_plan();
    for (const char* region :
         {"replicated elementwise",
          "replicated matrices",
          "expert elementwise",
          "expert matrices"}) {
      EXPECT_THAT(text, HasSubstr(region));
    }
  });
}

// Allocates every request on separate cache lines, as a symmetric heap does.
class GivenMemory {
 public:
  [[nodiscard]] Expected<std::span<std::byte>> allocate(std::size_t bytes) {
    lines_.emplace_back((bytes + sizeof(Line) - 1) / sizeof(Line));
    return std::as_writable_bytes(std::span{lines_.back()}).first(bytes);
  }

  [[nodiscard]] bool holds(std::span<const float> values) const {
    return std::any_of(lines_.begin(), lines_.end(), [&](const std::vector<Line>& lines) {
      const auto bytes = std::as_bytes(std::span{lines});
      const auto* begin = reinterpret_cast<const std::byte*>(values.data());  // NOLINT
      return begin >= bytes.data() && begin + values.size_bytes() <= bytes.data() + bytes.size();
    });
  }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };

  std::vector<std::vector<Line>> lines_;
};

TEST(ExpertMemory, HoldsTheExpertsAndChangesNoBitInAnyLayout) {
  for (const Layout layout : kLayouts) {
    SCOPED_TRACE(to_string(layout));
    run_ranks(2, [&](comm::Communicator& world) {
      OptimizerOptions options = uneven_options(layout);
      const auto plain = make_optimizer(uneven_model(), options, world, &world);
      GivenMemory memory;
      options.expert_memory = [&memory](std::size_t bytes) { return memory.allocate(bytes); };
      const auto placed = make_optimizer(uneven_model(), options, world, &world);
      for (const Parameter& parameter : placed->parameters()) {
        const bool expert = parameter.spec.placement == Placement::kExpert;
        EXPECT_EQ(memory.holds(parameter.value), expert) << parameter.spec.name;
        EXPECT_EQ(memory.holds(parameter.gradient), expert) << parameter.spec.name;
      }
      for (Optimizer* optimizer : {plain.get(), placed.get()}) {
        set_initial_values(*optimizer);
        for (int step = 0; step < 2; ++step) {
          add_slice_gradients(*optimizer, step, world.rank());
          finish_step(*optimizer, decide(0.5, 0.01));
        }
      }
      EXPECT_EQ(difference(values_of(*plain), values_of(*placed)), "");
    });
  }
}

TEST(ExpertMemory, ThatIsTooSmallIsRefusedWithBothSizes) {
  run_ranks(2, [](comm::Communicator& world) {
    OptimizerOptions options = small_options();
    GivenMemory memory;
    options.expert_memory = [&memory](std::size_t bytes) -> Expected<std::span<std::byte>> {
      MUSTER_ASSIGN_OR_RETURN(const std::span<std::byte> all, memory.allocate(bytes));
      return all.first(64);
    };
    const auto optimizer = Optimizer::create(small_model(), options, world, &world, soon());
    ASSERT_FALSE(optimizer.ok());
    EXPECT_THAT(optimizer.status().message(), HasSubstr("expert_memory gave 64 of "));
  });
}

}  // namespace
}  // namespace muster::optimizer
