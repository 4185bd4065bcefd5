// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/launcher/fixture.h"

#include <muster/common/file.h>

#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>

namespace muster::launcher::testing {

namespace fs = std::filesystem;

using ::testing::Test;

namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string variable(const std::string& environment, const std::string& name) {
  std::size_t begin = environment.find("\n" + name + "=");
  if (begin == std::string::npos) {
    return "(unset)";
  }
  begin += name.size() + 2;
  return environment.substr(begin, environment.find('\n', begin) - begin);
}

}  // namespace

TEST_F(LauncherTest, EndsWithZeroWhenAllRanksAreDone) {
  EXPECT_EQ(run(shell("exit 0", 3)), kExitDone);
  EXPECT_EQ(end_.exit_code, kExitDone);
  EXPECT_TRUE(end_.restarts.empty());
  EXPECT_EQ(log_->kinds(), (std::vector<std::string>{"run_started", "run_ended"}));
}

TEST_F(LauncherTest, GivesEveryRankItsEnvironment) {
  LauncherOptions options = shell("echo; env", 2);
  options.collector = "127.0.0.1:29600";
  ASSERT_EQ(run(options), kExitDone);
  const fs::path logs = root_ / "run" / "logs" / "gen-1";
  const std::string first = read(logs / "rank-0.log");
  const std::string second = read(logs / "rank-1.log");
  EXPECT_EQ(variable(first, "RANK"), "0");
  EXPECT_EQ(variable(second, "RANK"), "1");
  EXPECT_EQ(variable(second, "LOCAL_RANK"), "1");
  EXPECT_EQ(variable(second, "WORLD_SIZE"), "2");
  EXPECT_EQ(variable(second, "LOCAL_WORLD_SIZE"), "2");
  EXPECT_EQ(variable(first, "MASTER_ADDR"), "127.0.0.1");
  EXPECT_GT(std::stoi(variable(first, "MASTER_PORT")), 0);
  EXPECT_EQ(variable(first, "MASTER_PORT"), variable(second, "MASTER_PORT"));
  EXPECT_EQ(variable(first, "MUSTER_RUN_ID"), "run");
  EXPECT_EQ(variable(first, "MUSTER_GENERATION"), "1");
  EXPECT_EQ(variable(first, "MUSTER_INCARNATION").size(), 32U);
  EXPECT_EQ(variable(first, "MUSTER_RUN_UID").size(), 32U);
  EXPECT_EQ(variable(first, "MUSTER_RUN_UID"), variable(second, "MUSTER_RUN_UID"));
  EXPECT_NE(variable(first, "MUSTER_INCARNATION"), variable(second, "MUSTER_INCARNATION"));
  EXPECT_EQ(variable(first, "MUSTER_COLLECTOR"), "127.0.0.1:29600");
  EXPECT_EQ(variable(first, "MUSTER_RESUME_FROM"), "");
  EXPECT_EQ(variable(first, "MUSTER_CHECKPOINT_ROOT"), root_.string());
  EXPECT_EQ(variable(first, "MUSTER_SPOOL"), (root_ / "run" / "spool").string());
}

TEST_F(LauncherTest, GenerationIsDurableBeforeTheFirstProcessExists) {
  ASSERT_EQ(run(shell("test \"$(cat $DIR/run/GENERATION)\" = \"$MUSTER_GENERATION\"")), kExitDone);
}

TEST_F(LauncherTest, RestartsAllRanksWithTheNextGenerationAfterADeath) {
  // Rank 1 kills itself in generation 1; rank 0 would run for ever and must be stopped.
  const int code = run(shell(
      "test $MUSTER_GENERATION = 2 && exit 0; test $RANK = 1 && kill -9 $$; exec sleep 1000", 2));
  EXPECT_EQ(code, kExitDone);
  EXPECT_EQ(end_.generation, Generation{2});
  ASSERT_EQ(end_.restarts.size(), 1U);
  const RestartRecord& restart = end_.restarts[0];
  EXPECT_EQ(restart.failed, Generation{1});
  EXPECT_EQ(restart.next, Generation{2});
  EXPECT_EQ(restart.rank, 1);
  EXPECT_TRUE(contains(restart.reason, "was killed by signal 9 (Killed)")) << restart.reason;
  EXPECT_GT(restart.first_new_process_at, restart.killed_at);
  EXPECT_EQ(
      log_->kinds(),
      (std::vector<std::string>{"run_started", "rank_lost", "restart", "run_ended"}));
  EXPECT_TRUE(contains(console(), "rank 1 (pid ")) << console();
}

TEST_F(LauncherTest, ResumesAllRanksFromTheNewestVerifiedCheckpoint) {
  commit_checkpoint(10);
  commit_checkpoint(20);
  std::ofstream{root_ / "run" / "step-20.gen-2" / "rank-0.json"} << "damaged";
  ASSERT_EQ(run(shell("echo; env", 2)), kExitDone);
  const std::string expected = (root_ / "run" / "step-10.gen-1").string();
  EXPECT_EQ(end_.resume_from, expected);
  for (const char* rank : {"rank-0.log", "rank-1.log"}) {
    EXPECT_EQ(
        variable(read(root_ / "run" / "logs" / "gen-3" / rank), "MUSTER_RESUME_FROM"), expected);
  }
  EXPECT_TRUE(contains(console(), "damaged checkpoint: step-20.gen-2")) << console();
}

TEST_F(LauncherTest, GivesUpWhenTheBudgetIsUsedUp) {
  LauncherOptions options = shell("exit 3");
  options.restarts_max = 2;
  options.no_progress_restarts_max = 100;
  EXPECT_EQ(run(options), kExitFailed);
  EXPECT_EQ(end_.generation, Generation{3});
  EXPECT_TRUE(contains(end_.reason, "budget of 2 restarts")) << end_.reason;
  EXPECT_TRUE(contains(end_.reason, "exited with code 3")) << end_.reason;
  EXPECT_TRUE(contains(read(root_ / "run" / "EXIT_REASON"), "budget of 2 restarts"));
}

TEST_F(LauncherTest, GivesUpWith93WhenNoStepIsCommittedBetweenRestarts) {
  LauncherOptions options = shell("exit 3");
  options.no_progress_restarts_max = 2;
  EXPECT_EQ(run(options), kExitNeverRestart);
  EXPECT_EQ(end_.generation, Generation{3});
  EXPECT_TRUE(contains(end_.reason, "no progress within 2 restarts")) << end_.reason;
}

TEST_F(LauncherTest, PassesPreemptionThrough) {
  EXPECT_EQ(run(shell("exit 75", 2)), kExitPreempted);
  EXPECT_TRUE(end_.restarts.empty());
}

TEST_F(LauncherTest, NeverRestartsAfter93) {
  EXPECT_EQ(run(shell("test $RANK = 1 && exit 93; exec sleep 1000", 2)), kExitNeverRestart);
  EXPECT_TRUE(end_.restarts.empty());
  EXPECT_EQ(end_.generation, Generation{1});
}

TEST_F(LauncherTest, A93OfAnotherRankWinsOverAFailure) {
  EXPECT_EQ(
      run(shell(
          "trap 'exit 93' TERM; test $RANK = 0 && { touch $DIR/ready; while :; do sleep 0.01;"
          " done; }; while ! test -e $DIR/ready; do sleep 0.01; done; exit 4",
          2)),
      kExitNeverRestart);
}

TEST_F(LauncherTest, RestartsAfterARollbackRequestAndCountsIt) {
  LauncherOptions options = shell("exit 85");
  options.restarts_max = 1;
  EXPECT_EQ(run(options), kExitFailed);
  EXPECT_EQ(end_.restarts.size(), 1U);
  EXPECT_TRUE(contains(end_.reason, "rollback requested"));
}

TEST_F(LauncherTest, ForwardsAStopAsTermAndEndsPreempted) {
  start(shell("trap 'exit 75' TERM; touch $DIR/up-$RANK; while :; do sleep 0.01; done", 2));
  ASSERT_TRUE(wait_for_file(root_ / "up-0"));
  ASSERT_TRUE(wait_for_file(root_ / "up-1"));
  launcher_->request_stop();
  EXPECT_EQ(join(), kExitPreempted);
  EXPECT_TRUE(end_.restarts.empty());
}

TEST_F(LauncherTest, ActsOnAStopWhileItStartsRanks) {
  LauncherOptions options = shell("touch $DIR/up; sleep 1000", 2000);
  start(options);
  ASSERT_TRUE(wait_for_file(root_ / "up"));
  launcher_->request_stop();
  EXPECT_EQ(join(), kExitPreempted);
  EXPECT_TRUE(contains(end_.reason, "asked to stop while ranks started")) << end_.reason;
}

TEST_F(LauncherTest, SaysWhoEndedARunWith93AndWhy) {
  ASSERT_EQ(
      run(shell("printf 'command 3 of ann: loss diverged' >$DIR/run/RANK_REASON; exit 93")),
      kExitNeverRestart);
  EXPECT_TRUE(contains(end_.reason, "command 3 of ann: loss diverged")) << end_.reason;
}

TEST_F(LauncherTest, ASecondStopKillsAtOnce) {
  start(shell("trap '' TERM; touch $DIR/up; while :; do sleep 0.01; done"));
  ASSERT_TRUE(wait_for_file(root_ / "up"));
  launcher_->request_stop();
  launcher_->request_stop();
  EXPECT_EQ(join(), kExitFailed);
  EXPECT_TRUE(contains(end_.reason, "stopped before all ranks had saved")) << end_.reason;
}

TEST_F(LauncherTest, KillsARankThatIgnoresTermAfterTheGraceAndSaysSo) {
  LauncherOptions options = shell(
      "test $MUSTER_GENERATION = 2 && exit 0; trap '' TERM; touch $DIR/up-$RANK;"
      " while ! test -e $DIR/up-0; do sleep 0.01; done; test $RANK = 1 && exit 5;"
      " while :; do sleep 0.01; done",
      2);
  options.failure_grace = std::chrono::milliseconds{50};
  EXPECT_EQ(run(options), kExitDone);
  EXPECT_TRUE(contains(console(), "rank 0 (pid ")) << console();
  EXPECT_TRUE(contains(console(), "did not end within 0.1 s and is killed")) << console();
}

TEST_F(LauncherTest, AHelperThatEndsWellDoesNotHideATrainerThatAStopKilled) {
  start(shell(
      "sleep 1000 & sh -c 'trap \"exit 0\" TERM; touch $DIR/up; while :; do sleep 0.01; done' &"
      " wait"));
  ASSERT_TRUE(wait_for_file(root_ / "up"));
  launcher_->request_stop();
  EXPECT_EQ(join(), kExitFailed) << console();
}

TEST_F(LauncherTest, WaitsForATrainerWhoseShellDiedOfTheStop) {
  // The inner shell is the trainer: it saves for a while after SIGTERM and says so with 75.
  start(shell(
      "sh -c 'trap \"sleep 0.3; touch $DIR/saved-$RANK; exit 75\" TERM; touch $DIR/up-$RANK;"
      " while :; do sleep 0.01; done'; exit $?",
      2));
  ASSERT_TRUE(wait_for_file(root_ / "up-0"));
  ASSERT_TRUE(wait_for_file(root_ / "up-1"));
  launcher_->request_stop();
  EXPECT_EQ(join(), kExitPreempted) << console();
  EXPECT_TRUE(std::filesystem::exists(root_ / "saved-0"));
  EXPECT_TRUE(std::filesystem::exists(root_ / "saved-1"));
  EXPECT_TRUE(contains(console(), "waiting for what it started: sh (pid ")) << console();
}

TEST_F(LauncherTest, WaitsForAnUploadThatAFinishedRankLeft) {
  ASSERT_EQ(run(shell("(sleep 0.3; touch $DIR/uploaded) & exit 0")), kExitDone);
  EXPECT_TRUE(std::filesystem::exists(root_ / "uploaded"));
}

TEST_F(LauncherTest, KillsWhatARankLeftInItsProcessGroup) {
  LauncherOptions options = shell("sleep 1000 & echo $! >$DIR/child");
  options.grace = std::chrono::milliseconds{100};
  ASSERT_EQ(run(options), kExitDone);
  EXPECT_TRUE(contains(console(), "rank 0 left sleep (pid ")) << console();
  EXPECT_TRUE(contains(console(), "which did not end within 0.1 s and is killed")) << console();
  const pid_t child = std::stoi(read(root_ / "child"));
  const FileDescriptor pidfd{static_cast<int>(::syscall(SYS_pidfd_open, child, 0))};
  pollfd ended{pidfd.get(), POLLIN, 0};
  // It was reparented away from us: gone already, or about to end.
  EXPECT_TRUE(!pidfd.valid() || ::poll(&ended, 1, 20'000) == 1);
}

TEST_F(LauncherTest, CapturesBothStreamsInAFileAndPrefixesLines) {
  ASSERT_EQ(run(shell("echo out; echo err >&2; printf unfinished", 1)), kExitDone);
  EXPECT_EQ(read(root_ / "run" / "logs" / "gen-1" / "rank-0.log"), "out\nerr\nunfinished");
  // The launcher's own lines may stand between them.
  std::istringstream lines(console());
  std::string of_rank;
  for (std::string line; std::getline(lines, line);) {
    of_rank += line.starts_with("[0] ") ? line + "\n" : "";
  }
  EXPECT_EQ(of_rank, "[0] out\n[0] err\n[0] unfinished\n") << console();
}

TEST_F(LauncherTest, ShowsPidsOfRunningRanksInTheSnapshot) {
  start(shell("echo $$ >$DIR/tmp-$RANK; mv $DIR/tmp-$RANK $DIR/pid-$RANK; exec sleep 1000", 2));
  ASSERT_TRUE(wait_for_file(root_ / "pid-0"));
  ASSERT_TRUE(wait_for_file(root_ / "pid-1"));
  const LauncherSnapshot now = launcher_->snapshot();
  ASSERT_EQ(now.pids.size(), 2U);
  EXPECT_TRUE(now.running);
  EXPECT_EQ(now.pids[0], std::stoi(read(root_ / "pid-0")));
  EXPECT_EQ(now.pids[1], std::stoi(read(root_ / "pid-1")));
  EXPECT_EQ(now.exit_code, -1);
  launcher_->request_stop();
  EXPECT_EQ(join(), kExitFailed);  // sleep does not save, it just dies.
}

TEST_F(LauncherTest, RefusesASecondLauncherOfTheSameRun) {
  start(shell("touch $DIR/up; exec sleep 1000"));
  ASSERT_TRUE(wait_for_file(root_ / "up"));
  const auto second = Launcher::create(shell("exit 0"), nullptr);
  EXPECT_EQ(second.status().code(), StatusCode::kAlreadyExists);
  EXPECT_TRUE(contains(second.status().message(), std::to_string(::getpid())));
}

TEST_F(LauncherTest, RefusesAProgramThatDoesNotExistByName) {
  LauncherOptions options = shell("");
  options.program = {"no-such-program-of-muster"};
  const auto created = Launcher::create(options, nullptr);
  EXPECT_EQ(created.status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(contains(created.status().message(), "no-such-program-of-muster"));
}

TEST_F(LauncherTest, EndsWithoutRestartsWhenAProgramCannotBeExecuted) {
  const fs::path broken = root_ / "broken";
  std::ofstream{broken} << "#!/no/such/interpreter\n";
  fs::permissions(broken, fs::perms::owner_all);
  LauncherOptions options = shell("");
  options.program = {broken.string()};
  EXPECT_EQ(run(options), -1);
  EXPECT_TRUE(contains(end_.reason, "cannot execute")) << end_.reason;
  EXPECT_TRUE(contains(end_.reason, "'/no/such/interpreter', which does not exist"));
  EXPECT_EQ(end_.generation, Generation{1});
}

TEST_F(LauncherTest, NamesTheCarriageReturnOfAScriptFromWindows) {
  const fs::path script = root_ / "job.sh";
  std::ofstream{script} << "#!/bin/sh\r\nexit 0\r\n";
  fs::permissions(script, fs::perms::owner_all);
  LauncherOptions options = shell("");
  options.program = {script.string()};
  EXPECT_EQ(run(options), -1);
  EXPECT_TRUE(contains(end_.reason, "'/bin/sh' followed by a carriage return")) << end_.reason;
}

TEST_F(LauncherTest, RefusesAFolderAsAProgram) {
  LauncherOptions options = shell("");
  options.program = {root_.string()};
  const auto created = Launcher::create(options, nullptr);
  EXPECT_TRUE(contains(created.status().message(), "is a folder, not a program"));
}

TEST_F(LauncherTest, ChildrenDieWithTheLauncher) {
  const pid_t process = ::fork();
  ASSERT_GE(process, 0);
  if (process == 0) {
    LauncherOptions options =
        shell("echo $$ >$DIR/tmp-$RANK; mv $DIR/tmp-$RANK $DIR/pid-$RANK; exec sleep 1000", 2);
    options.console_fd = -1;
    auto launcher = Launcher::create(options, nullptr);
    ::_exit(launcher ? (*launcher)->run().value_or(1) : 1);
  }
  // The orphans become ours, so that their end can be waited for instead of polled.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  const bool up = wait_for_file(root_ / "pid-0") && wait_for_file(root_ / "pid-1");
  ::kill(process, SIGKILL);
  ::waitpid(process, nullptr, 0);
  ASSERT_TRUE(up);
  for (const char* name : {"pid-0", "pid-1"}) {
    const pid_t rank = std::stoi(read(root_ / name));
    int status = 0;
    EXPECT_EQ(::waitpid(rank, &status, 0), rank);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  }
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
}

}  // namespace muster::launcher::testing
