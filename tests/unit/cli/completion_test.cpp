// SPDX-License-Identifier: Apache-2.0
// Completion scripts: every subcommand and option, in a form that the shell accepts.
#include "tests/unit/cli/program.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace muster::cli::testing {

namespace {

// What bash would offer after the words of `line`, one per line.
std::string offered_by_bash(const std::string& line) {
  const std::string script =
      "source <(" + std::string{MUSTER_EXECUTABLE} + " completion bash); COMP_WORDS=(" + line +
      "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _muster; printf \"%s\\n\" \"${COMPREPLY[@]}\"";
  FILE* pipe = ::popen(("bash -c '" + script + "'").c_str(), "r");
  std::string out;
  std::array<char, 4096> buffer{};
  while (pipe != nullptr && std::fgets(buffer.data(), buffer.size(), pipe) != nullptr) {
    out += buffer.data();
  }
  if (pipe != nullptr) {
    ::pclose(pipe);
  }
  return out;
}

}  // namespace

TEST(Completion, BashOffersSubcommandsAndTheirOptions) {
  EXPECT_EQ(offered_by_bash("muster ck"), "ckpt\n");
  EXPECT_EQ(offered_by_bash("muster ckpt ver"), "verify\n");
  EXPECT_EQ(offered_by_bash("muster run --nproc"), "--nproc-per-node\n");
  EXPECT_EQ(offered_by_bash("muster plan ep --exp"), "--experts\n");
}

TEST(Completion, BashLeavesTheTrainingProgramToTheDefault) {
  EXPECT_EQ(offered_by_bash("muster run -- --nproc"), "\n");
}

TEST(Completion, ZshAndFishNameEverySubcommandWithItsSummary) {
  const ProgramResult zsh = muster({"completion", "zsh"});
  EXPECT_EQ(zsh.exit_code, 0) << zsh.err;
  EXPECT_TRUE(zsh.out.starts_with("#compdef muster\n")) << zsh.out;
  EXPECT_NE(zsh.out.find("'send:Send a command to a run'"), std::string::npos) << zsh.out;
  EXPECT_NE(zsh.out.find("'--db:The collector'\\''s database file'"), std::string::npos) << zsh.out;
  const ProgramResult fish = muster({"completion", "fish"});
  EXPECT_EQ(fish.exit_code, 0) << fish.err;
  EXPECT_NE(fish.out.find(" -f -a send -d 'Send a command to a run'\n"), std::string::npos);
  EXPECT_NE(fish.out.find(" -l db -r -d 'The collector\\'s database file'\n"), std::string::npos);
}

TEST(Completion, IsHiddenFromHelpAndRefusesOtherShells) {
  EXPECT_EQ(muster({"--help"}).out.find("completion"), std::string::npos);
  const ProgramResult other = muster({"completion", "tcsh"});
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_NE(other.err.find("tcsh"), std::string::npos) << other.err;
}

}  // namespace muster::cli::testing
