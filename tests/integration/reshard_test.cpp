// SPDX-License-Identifier: Apache-2.0
// A run continues with fewer processes than saved it, with the real launcher and trainer.
#include "tests/integration/support/job.h"
#include "tests/support/scratch_folder.h"

#include <muster/checkpoint/checkpoint.h>
#include <muster/common/file.h>

#include <gtest/gtest.h>

#include <cstdlib>

namespace muster::test {
namespace {

namespace fs = std::filesystem;

class ReshardedRun : public ::testing::Test {
 protected:
  [[nodiscard]] JobOptions job(int ranks, int steps) const {
    JobOptions options;
    options.folder = folder_.string();
    options.ranks = ranks;
    options.steps = steps;
    return options;
  }

  [[nodiscard]] std::string dump_of(int rank) const {
    const auto content = read_file(folder_ / ("params.rank-" + std::to_string(rank)));
    EXPECT_TRUE(content.ok()) << content.status().to_string();
    return content.value_or("");
  }

  ScratchFolder scratch_;
  fs::path folder_{scratch_.path()};
};

TEST_F(ReshardedRun, TwoProcessesTakeUpWhatFourSavedBitForBit) {
  ASSERT_EQ(run_to_end(job(4, 12)), 0);
  const std::string first = dump_of(0);
  const std::string second = dump_of(1);  // The other half of the experts.
  ASSERT_EQ(run_to_end(job(2, 12)), 0);   // Nothing is left to train.
  EXPECT_EQ(dump_of(0), first);
  EXPECT_EQ(dump_of(1), second);
}

TEST_F(ReshardedRun, TrainingGoesOnWithOtherProcessCountsLayoutsAndExpertGroups) {
  ASSERT_EQ(run_to_end(job(4, 12)), 0);
  JobOptions two = job(2, 18);
  two.trainer = {"--layout", "row_shards", "--ep-size", "1"};
  ASSERT_EQ(run_to_end(two), 0);
  JobOptions one = job(1, 24);
  one.trainer = {"--layout", "flat_owner"};
  ASSERT_EQ(run_to_end(one), 0);
  const auto newest = checkpoint::newest_verified(folder_ / "checkpoints", "job");
  ASSERT_TRUE(newest.ok()) << newest.status().to_string();
  EXPECT_EQ(newest->step, StepIndex{24});
  EXPECT_EQ(newest->world_size, 1);
}

}  // namespace
}  // namespace muster::test
