// SPDX-License-Identifier: Apache-2.0
#include "tests/support/deadlines.h"
#include "tests/unit/trainer/job.h"
#include "tests/unit/trainer/reference_model.h"
#include "trainer/moe_lm/src/parameters.h"

#include <muster/comm/backends.h>

#include <gtest/gtest.h>

#include <cmath>

namespace muster::moe_lm {
namespace {

// How far two runs of the same arithmetic, rounded differently, may be apart in loss after `step`
// updates. Forward: some tens of float roundings of 2^-24 put a token's loss off by about 1e-6, the
// mean over 128 tokens by a tenth of that. An update's error enters through Newton-Schulz, whose
// slope of up to 485 at 0 turns rounding of 2^-24 into at most 3e-5 of a direction that moves an
// element by rate * 0.2 = 2e-3: 6e-8 per element, of random sign, seen through a gradient norm of
// about 1: below 5e-7 per step. Seen: 4e-8. A wrong formula anywhere is off by 1e-4 and more within
// two steps.
double tolerance(std::size_t step) {
  return 5e-7 * static_cast<double>(step + 1);
}

void expect_same_course(const std::vector<double>& a, const std::vector<double>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t step = 0; step < a.size(); ++step) {
    EXPECT_NEAR(a[step], b[step], tolerance(step)) << "step " << step;
  }
}

std::vector<double> reference_losses(const TrainOptions& options) {
  const auto world = comm::make_local_group(1);
  const auto initial = optimizer::Optimizer::create(
      parameter_specs(options.model, 1),
      optimizer_options(options),
      *world.front(),
      world.front().get(),
      muster::test::soon());
  EXPECT_TRUE(initial.ok());
  EXPECT_TRUE(set_initial_values(**initial, options.model, options.seed, 0).ok());
  reference::Trainer trainer{options, **initial, sample_text()};
  std::vector<double> losses;
  for (std::int64_t step = 0; step < options.steps; ++step) {
    losses.push_back(trainer.step());
  }
  // Scores carry rounding of about 1e-6; were two experts nearer than that, they might swap.
  EXPECT_GT(trainer.smallest_margin(), 3e-6) << "choose another seed";
  return losses;
}

TEST(MoeLmTraining, FollowsTheDoubleReferenceForTenSteps) {
  const TrainOptions options = small_options();
  SCOPED_TRACE("seed " + std::to_string(options.seed));
  const auto reference = reference_losses(options);
  EXPECT_NEAR(reference.front(), std::log(256.0), 0.2);
  EXPECT_LT(reference.back(), reference.front() - 1.0);  // It has gone somewhere in ten steps.
  expect_same_course(losses_of_job(1, options), reference);
}

TEST(MoeLmTraining, FourRanksFollowTheDoubleReferenceToo) {
  TrainOptions options = small_options();
  options.ep_size = 2;
  expect_same_course(losses_of_job(4, options), reference_losses(options));
}

TEST(MoeLmTraining, FourRanksFollowOneRankForEveryExpertLayout) {
  TrainOptions options = small_options();
  const auto alone = losses_of_job(1, options);
  for (const int ep_size : {1, 2, 4}) {
    SCOPED_TRACE(ep_size);
    options.ep_size = ep_size;
    expect_same_course(losses_of_job(4, options), alone);
  }
}

TEST(MoeLmTraining, MicroBatchesFollowOnePass) {
  TrainOptions options = small_options();
  const auto whole = losses_of_job(2, options);
  options.micro_batches = 4;
  expect_same_course(losses_of_job(2, options), whole);
}

TEST(MoeLmTraining, RunsOfTheSameSeedEndWithTheSameBits) {
  TrainOptions options = small_options();
  options.ep_size = 2;
  EXPECT_EQ(losses_of_job(4, options), losses_of_job(4, options));
}

}  // namespace
}  // namespace muster::moe_lm
