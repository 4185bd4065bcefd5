// SPDX-License-Identifier: Apache-2.0
#include "tests/support/floats.h"
#include "tests/unit/optimizer/model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>

namespace muster::optimizer {
namespace {

using muster::test::kInfinityF;
using muster::test::kNanF;

void good_step(Optimizer& optimizer, int step, int slice) {
  add_slice_gradients(optimizer, step, slice);
  finish_step(optimizer, decide(1.0, 0.01));
}

TEST(Zero1Guard, ASkippedStepChangesNothingBitForBit) {
  run_ranks(3, [](comm::Communicator& world) {
    const auto optimizer = make_optimizer(small_model(), small_options(), world, &world);
    set_initial_values(*optimizer);
    good_step(*optimizer, 0, world.rank());
    const std::string before = everything(*optimizer);
    add_slice_gradients(*optimizer, 1, world.rank());
    optimizer->find("wq")->gradient[3] = kNanF;
    optimizer->find("norm")->gradient[0] = kInfinityF;
    ASSERT_TRUE(optimizer->reduce_gradients(soon()).ok());
    EXPECT_GT(optimizer->local_statistics().nonfinite_count, 0);
    ASSERT_TRUE(optimizer->apply(skip_step(), soon()).ok());
    ASSERT_TRUE(optimizer->gather_parameters(soon()).ok());
    optimizer->zero_gradients();
    EXPECT_EQ(everything(*optimizer), before);
    for (const GroupUpdateStatistics& group : optimizer->update_statistics()) {
      EXPECT_EQ(group.element_count, 0);
      EXPECT_EQ(group.elements.update_squared_sum, 0.0);
    }
  });
}

TEST(Zero1Guard, TrainingGoesOnAfterASkippedNanAsIfItHadNotBeen) {
  run_ranks(2, [](comm::Communicator& world) {
    const auto hit = make_optimizer(small_model(), small_options(), world, &world);
    const auto spared = make_optimizer(small_model(), small_options(), world, &world);
    for (Optimizer* optimizer : {hit.get(), spared.get()}) {
      set_initial_values(*optimizer);
      good_step(*optimizer, 0, world.rank());
    }
    add_slice_gradients(*hit, 1, world.rank());
    hit->find("experts.up")->gradient[5] = kNanF;
    ASSERT_TRUE(hit->reduce_gradients(soon()).ok());
    ASSERT_TRUE(hit->apply(skip_step(), soon()).ok());
    ASSERT_TRUE(hit->gather_parameters(soon()).ok());
    hit->zero_gradients();
    for (Optimizer* optimizer : {hit.get(), spared.get()}) {
      good_step(*optimizer, 2, world.rank());
    }
    EXPECT_EQ(everything(*hit), everything(*spared));
  });
}

// Sum of nonfinite_count over the ranks when `spoil` has had its way with the gradients.
std::int64_t count_nonfinite(
    int ranks, const std::function<void(Optimizer&, comm::Communicator&)>& spoil) {
  std::mutex mutex;
  std::int64_t total = 0;
  run_ranks(ranks, [&](comm::Communicator& world) {
    const auto optimizer = make_optimizer(small_model(), small_options(), world, &world);
    add_slice_gradients(*optimizer, 0, world.rank());
    spoil(*optimizer, world);
    ASSERT_TRUE(optimizer->reduce_gradients(soon()).ok());
    const std::int64_t count = optimizer->local_statistics().nonfinite_count;
    const std::lock_guard lock{mutex};
    total += count;
  });
  return total;
}

TEST(Zero1Guard, CountsNothingOnAGoodStep) {
  EXPECT_EQ(count_nonfinite(1, [](Optimizer&, comm::Communicator&) {}), 0);
  EXPECT_EQ(count_nonfinite(3, [](Optimizer&, comm::Communicator&) {}), 0);
}

TEST(Zero1Guard, SeesANanOfOneRankInEveryParameter) {
  for (const ParameterSpec& spec : small_model()) {
    for (const int culprit : {0, 2}) {
      SCOPED_TRACE(spec.name);
      const auto spoil = [&](Optimizer& optimizer, comm::Communicator& world) {
        if (world.rank() == culprit) {
          optimizer.find(spec.name)->gradient.back() = kNanF;
        }
      };
      EXPECT_GT(count_nonfinite(3, spoil), 0);
    }
  }
}

TEST(Zero1Guard, SeesInfinitiesOfOppositeSign) {
  const auto spoil = [](Optimizer& optimizer, comm::Communicator& world) {
    optimizer.find("wk")->gradient[0] = world.rank() == 0 ? kInfinityF : -kInfinityF;
  };
  EXPECT_GE(count_nonfinite(2, spoil), 2);
}

TEST(Zero1Guard, SeesASumThatOverflowsOnlyInTheReduction) {
  const auto spoil = [](Optimizer& optimizer, comm::Communicator&) {
    optimizer.find("embedding")->gradient[0] = std::numeric_limits<float>::max();
  };
  EXPECT_EQ(count_nonfinite(2, spoil), 1);
}

TEST(Zero1Guard, SeesANonFiniteGradientOfAWorldOfOne) {
  const auto spoil = [](Optimizer& optimizer, comm::Communicator&) {
    optimizer.find("tall")->gradient[0] = -kInfinityF;
  };
  EXPECT_EQ(count_nonfinite(1, spoil), 1);
}

// A clip factor must act like gradients that much smaller: exact for powers of two.
TEST(Zero1Guard, AClipFactorScalesTheGradientsBeforeTheirMoments) {
  run_ranks(1, [](comm::Communicator& world) {
    const auto clipped = make_optimizer(small_model(), small_options(), world, &world);
    const auto small = make_optimizer(small_model(), small_options(), world, &world);
    for (int step = 0; step < 3; ++step) {
      add_slice_gradients(*clipped, step, 0);
      add_slice_gradients(*small, step, 0);
      const double factor = step == 1 ? 0.125 : 1.0;
      for (Parameter& parameter : small->parameters()) {
        for (float& gradient : parameter.gradient) {
          gradient *= static_cast<float>(factor * 0.5);
        }
      }
      StepDecision clip = decide(0.5, 0.01);
      clip.clip_factor = factor;
      ASSERT_TRUE(clipped->apply(clip, soon()).ok());
      ASSERT_TRUE(small->apply(decide(1.0, 0.01), soon()).ok());
      clipped->zero_gradients();
      small->zero_gradients();
    }
    EXPECT_EQ(everything(*clipped), everything(*small));
  });
}

TEST(Zero1Guard, DigestsAreEqualUntilAReplicaDiverges) {
  std::mutex mutex;
  std::vector<std::uint64_t> good(3);
  std::vector<std::uint64_t> diverged(3);
  run_ranks(3, [&](comm::Communicator& world) {
    const auto optimizer = make_optimizer(small_model(), small_options(), world, &world);
    set_initial_values(*optimizer);
    good_step(*optimizer, 0, world.rank());
    const std::uint64_t before = optimizer->replica_digest();
    if (world.rank() == 2) {
      float& value = optimizer->find("wide")->value[1];
      value = std::nextafter(value, kInfinityF);
    }
    const std::lock_guard lock{mutex};
    good[static_cast<std::size_t>(world.rank())] = before;
    diverged[static_cast<std::size_t>(world.rank())] = optimizer->replica_digest();
  });
  EXPECT_EQ(good[0], good[1]);
  EXPECT_EQ(good[0], good[2]);
  EXPECT_LT(good[0], std::uint64_t{1} << 52);
  EXPECT_EQ(diverged[0], good[0]);
  EXPECT_NE(diverged[2], good[2]);
}

TEST(Zero1Guard, DigestsLeaveExpertsOut) {
  run_ranks(1, [](comm::Communicator& world) {
    const auto optimizer = make_optimizer(small_model(), small_options(), world, &world);
    const std::uint64_t before = optimizer->replica_digest();
    optimizer->find("experts.up")->value[0] += 1.0F;
    EXPECT_EQ(optimizer->replica_digest(), before);
  });
}

}  // namespace
}  // namespace muster::optimizer
