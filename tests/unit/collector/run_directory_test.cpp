// SPDX-License-Identifier: Apache-2.0
#include "collector/src/run_directory.h"

#include <gtest/gtest.h>

namespace muster::collector {
namespace {

Identity process(const std::string& run, std::int64_t generation, const std::string& uid) {
  return {run, Generation{generation}, Rank{0}, "incarnation", uid};
}

TEST(RunDirectory, GivesARunOfAnotherUidALineOfItsOwn) {
  RunDirectory runs;
  EXPECT_EQ(runs.line_of(process("exp", 1, "a")).name, "exp");
  EXPECT_EQ(runs.line_of(process("exp", 2, "a")).name, "exp");
  const store::RunLine second = runs.line_of(process("exp", 1, "b"));
  EXPECT_EQ(second.name, "exp#2");
  EXPECT_EQ(second.base, "exp");
  EXPECT_EQ(runs.line_of(process("exp", 1, "c")).name, "exp#3");
  EXPECT_EQ(runs.line_of(process("exp", 3, "a")).name, "exp");
}

TEST(RunDirectory, PutsAProcessWithoutUidOnTheNewestLine) {
  RunDirectory runs;
  EXPECT_EQ(runs.line_of(process("exp", 1, "a")).name, "exp");
  EXPECT_EQ(runs.line_of(process("exp", 1, "b")).name, "exp#2");
  EXPECT_EQ(runs.line_of(process("exp", 1, "")).name, "exp#2");
}

TEST(RunDirectory, HandsALineOfAnOlderMusterToItsNextGenerationOnly) {
  RunDirectory runs;
  runs.load({{"exp", "", "", Generation{4}}, {"old", "", "", Generation{4}}});
  EXPECT_EQ(runs.line_of(process("exp", 5, "a")).name, "exp");
  EXPECT_EQ(runs.line_of(process("old", 1, "b")).name, "old#2");
}

TEST(RunDirectory, KnowsWhatWasStored) {
  RunDirectory runs;
  runs.load({{"exp", "", "a", Generation{1}}, {"exp#2", "exp", "b", Generation{1}}});
  EXPECT_EQ(runs.line_of(process("exp", 2, "b")).name, "exp#2");
  EXPECT_EQ(runs.line_of(process("exp", 2, "a")).name, "exp");
  EXPECT_EQ(runs.line_of(process("exp", 1, "c")).name, "exp#3");
}

TEST(RunDirectory, LeavesANameAloneThatSomebodyElseChose) {
  RunDirectory runs;
  EXPECT_EQ(runs.line_of(process("exp#2", 1, "z")).name, "exp#2");
  EXPECT_EQ(runs.line_of(process("exp", 1, "a")).name, "exp");
  EXPECT_EQ(runs.line_of(process("exp", 1, "b")).name, "exp#3");
}

}  // namespace
}  // namespace muster::collector
