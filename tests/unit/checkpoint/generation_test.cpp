// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/src/generation.h"

#include "tests/unit/checkpoint/fixture.h"

#include <muster/common/file.h>

#include <algorithm>
#include <thread>

namespace muster::checkpoint::testing {

namespace fs = std::filesystem;

using Generations = CheckpointTest;

TEST_F(Generations, AscendFromOneAndPersist) {
  EXPECT_EQ(generation_, Generation{1});
  EXPECT_EQ(allocate_generation(root_, "run").value(), Generation{2});
  EXPECT_EQ(current_generation(root_, "run").value(), Generation{2});
  EXPECT_EQ(current_generation(root_, "fresh").value(), Generation{0});
}

TEST_F(Generations, KeepTheUidOfTheirRunUntilItsFolderIsDeleted) {
  const std::string first = run_uid(root_, "run").value();
  EXPECT_EQ(first.size(), 32U);
  ASSERT_TRUE(allocate_generation(root_, "run"));
  EXPECT_EQ(run_uid(root_, "run").value(), first);
  EXPECT_EQ(run_uid(root_, "fresh").value(), "");
  fs::remove_all(run_folder());
  ASSERT_TRUE(allocate_generation(root_, "run"));
  EXPECT_NE(run_uid(root_, "run").value(), first);
}

TEST_F(Generations, AreUniqueUnderConcurrentAllocation) {
  std::vector<std::int64_t> allocated(16);
  std::vector<std::thread> threads;
  for (std::int64_t& slot : allocated) {
    threads.emplace_back([&] { slot = allocate_generation(root_, "run").value().value(); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  std::sort(allocated.begin(), allocated.end());
  EXPECT_EQ(std::unique(allocated.begin(), allocated.end()), allocated.end());
  EXPECT_EQ(allocated.back(), 17);
}

TEST_F(Generations, NeverFallBelowTheFoldersOfALostFile) {
  make_checkpoint(3);
  ASSERT_TRUE(allocate_generation(root_, "run"));
  fs::rename(folder_of(3, 1), folder_of(3, 7));
  fs::remove(run_folder() / "GENERATION");
  EXPECT_EQ(allocate_generation(root_, "run").value(), Generation{8});
}

TEST_F(Generations, ADamagedFileIsRefusedWithTheRemedy) {
  for (const char* content : {"", "x\n", "-3\n", "3", "3 \n", "99999999999999999999\n"}) {
    write_bytes(run_folder() / "GENERATION", content);
    const auto allocated = allocate_generation(root_, "run");
    EXPECT_EQ(allocated.status().code(), StatusCode::kDataLoss) << content;
  }
}

TEST_F(Generations, AStaleWriterCannotCommit) {
  const OwnedState owned = make_state(0, 1);
  const auto stale = writer(options());
  ASSERT_TRUE(stale->begin(1, StepIndex{5}, owned.state).ok());
  ASSERT_TRUE(stale->wait(kWait).ok());
  ASSERT_TRUE(allocate_generation(root_, "run"));
  stale->commit(1, false);
  EXPECT_EQ(stale->wait(kWait).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(stale->committed_sequence(), 0);
  EXPECT_FALSE(fs::exists(folder_of(5, 1)));
  EXPECT_TRUE(list(root_, "run")->empty());
}

TEST_F(Generations, AWriterOfAForeignGenerationDoesNotStart) {
  ASSERT_TRUE(allocate_generation(root_, "run"));
  EXPECT_EQ(Writer::create(options()).status().code(), StatusCode::kFailedPrecondition);
  WriterOptions future = options();
  future.identity.generation = Generation{9};
  EXPECT_EQ(Writer::create(future).status().code(), StatusCode::kFailedPrecondition);
}

TEST_F(Generations, ACommitAndAnAllocationExcludeEachOther) {
  const OwnedState owned = make_state(0, 1);
  const auto rank = writer(options());
  ASSERT_TRUE(rank->begin(1, StepIndex{5}, owned.state).ok());
  ASSERT_TRUE(rank->wait(kWait).ok());
  {
    const auto held = lock_generation(run_folder(), "the test");
    ASSERT_TRUE(held);
    rank->commit(1, false);
    EXPECT_EQ(rank->wait(std::chrono::milliseconds{50}).code(), StatusCode::kDeadlineExceeded);
    EXPECT_FALSE(fs::exists(folder_of(5, 1)));
  }
  EXPECT_TRUE(rank->wait(kWait).ok());
  EXPECT_TRUE(fs::exists(folder_of(5, 1)));
}

TEST_F(Generations, NewestCheckpointPrefersTheStepThenTheGeneration) {
  make_checkpoint(5);
  make_checkpoint(9);
  generation_ = allocate_generation(root_, "run").value();
  writer_ = writer(options());
  sequence_ = 0;
  make_checkpoint(5);
  const auto found = list(root_, "run").value();
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found[0].step, StepIndex{9});
  EXPECT_EQ(found[1].generation, Generation{2});
  EXPECT_EQ(found[2].generation, Generation{1});
}

}  // namespace muster::checkpoint::testing
