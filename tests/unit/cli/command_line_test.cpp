// SPDX-License-Identifier: Apache-2.0
// The executable as a user meets it: what it prints, and the code it ends with.
#include "tests/support/scratch_folder.h"
#include "tests/unit/cli/program.h"

#include <muster/checkpoint/checkpoint.h>
#include <muster/collector/collector.h>
#include <muster/common/clock.h>
#include <muster/common/file.h>

#include <gtest/gtest.h>

#include <sys/stat.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace muster::cli::testing {

namespace fs = std::filesystem;

class CommandLine : public ::testing::Test {
 protected:
  void commit_checkpoint(std::int64_t step, const std::string& run_id = "moby") {
    checkpoint::WriterOptions options;
    options.root = folder_;
    options.identity.run_id = run_id;
    options.identity.generation = checkpoint::allocate_generation(folder_, run_id).value();
    auto writer = checkpoint::Writer::create(options).value();
    const std::vector<std::byte> data(4096, std::byte{7});
    checkpoint::RankState state;
    state.tensors.push_back({"layers.0.weight", DType::kFloat32, {32, 32}, {32, 32}, {0, 0}, data});
    state.values["data_cursor"] = "12345";
    ASSERT_TRUE(writer->begin(1, StepIndex{step}, state).ok());
    ASSERT_TRUE(writer->wait(std::chrono::seconds{20}).ok());
    writer->commit(1, false);
    ASSERT_TRUE(writer->wait(std::chrono::seconds{20}).ok());
  }

  [[nodiscard]] std::string run_folder() const { return (folder_ / "moby").string(); }

  static void expect_part(const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << "no '" << part << "' in:\n" << text;
  }

  // One sentence on stderr, nothing on stdout.
  static void expect_refused(
      const std::vector<std::string>& arguments, int exit_code, const std::string& part) {
    const ProgramResult result = muster(arguments);
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    expect_part(result.err, part);
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_EQ(result.out, "");
  }

  test::ScratchFolder scratch_;
  fs::path folder_{scratch_.path()};
};

TEST_F(CommandLine, HelpListsSubcommandsAndVersionNamesOne) {
  const ProgramResult help = muster({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  for (const char* name : {"run", "collector", "status", "send", "ckpt"}) {
    expect_part(help.out, std::string{"\n  "} + name + " ");
    const ProgramResult own = muster({name, "--help"});
    EXPECT_EQ(own.exit_code, 0);
    expect_part(own.out, "Examples:");
  }
  expect_part(muster({"--version"}).out, "muster 0.");
}

TEST_F(CommandLine, UnknownFlagsAndSubcommandsAreRefusedByName) {
  expect_refused({"--frobnicate"}, 2, "unknown argument '--frobnicate'");
  expect_refused({"frobnicate"}, 2, "no subcommand 'frobnicate'");
  expect_refused({"run", "--frobnicate"}, 2, "unknown argument '--frobnicate'");
  expect_refused({"ckpt", "list", "--deep", "x"}, 2, "unknown argument '--deep'");
  expect_refused({"ckpt"}, 2, "'muster ckpt --help'");
  expect_refused({}, 2, "'muster --help'");
}

TEST_F(CommandLine, RunRefusesBadNumbersAndMissingPrograms) {
  expect_refused({"run", "--nproc-per-node", "0", "--", "true"}, 2, "at least 1");
  expect_refused({"run", "--nproc-per-node", "x", "--", "true"}, 2, "--nproc-per-node");
  expect_refused({"run", "--nproc-per-node", "1"}, 2, "behind '--'");
  expect_refused({"run", "--nproc-per-node", "1", "--grace", "-1", "--", "true"}, 2, "--grace");
  expect_refused(
      {"run", "--nproc-per-node", "1", "--collector", "here", "--", "true"}, 2, "HOST:PORT");
  expect_refused(
      {"run",
       "--nproc-per-node",
       "1",
       "--token-file",
       (folder_ / "no").string(),
       "--collector",
       "127.0.0.1:1",
       "--",
       "true"},
      1,
      "no such file");
  expect_refused(
      {"run", "--nproc-per-node", "1", "--checkpoint-root", folder_.string(), "--", "./nothing"},
      1,
      "there is no program ./nothing");
  expect_refused(
      {"run",
       "--nproc-per-node",
       "1",
       "--checkpoint-root",
       folder_.string(),
       "--run-id",
       "a/b",
       "--",
       "true"},
      2,
      "run id 'a/b'");
}

TEST_F(CommandLine, RunPointsToTheMarkBeforeTheProgram) {
  expect_refused(
      {"run", "--nproc-per-node", "2", "./train"}, 2, "the program of a rank stands behind '--'");
}

TEST_F(CommandLine, ADeletedWorkingFolderIsSaid) {
  const fs::path before = fs::current_path();
  fs::create_directories(folder_ / "gone");
  fs::current_path(folder_ / "gone");
  fs::remove(folder_ / "gone");
  const ProgramResult run = muster({"run", "--nproc-per-node", "1", "--", "true"});
  const ProgramResult status = muster({"status", "--db", "muster.db"});
  fs::current_path(before);
  for (const ProgramResult& result : {run, status}) {
    EXPECT_EQ(result.exit_code, 1);
    expect_part(result.err, "the working folder does not exist any more");
  }
}

TEST_F(CommandLine, RunRefusesMoreRanksThanAHostCanMean) {
  expect_refused(
      {"run", "--nproc-per-node", "99999999", "--", "true"}, 2, "--force starts them all the same");
}

TEST_F(CommandLine, DatabasesNeedTheNameOfAFile) {
  const std::string fifo = folder_ / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  for (const std::string command : {"collector", "status"}) {
    expect_refused({command, "--db", ":memory:"}, 2, "needs the name of a file");
    expect_refused({command, "--db", ""}, 2, "needs the name of a file");
    expect_refused({command, "--db", folder_.string()}, 2, "is a folder; give the name of a file");
    expect_refused({command, "--db", fifo}, 2, "is not a regular file");
  }
}

TEST_F(CommandLine, RunRefusesSeveralHosts) {
  expect_refused({"run", "--nproc-per-node", "1", "--nnodes", "2", "--", "true"}, 1, "one host");
  ::setenv("SLURM_NNODES", "4", 1);
  expect_refused({"run", "--nproc-per-node", "1", "--", "true"}, 1, "4 nodes");
  ::unsetenv("SLURM_NNODES");
}

TEST_F(CommandLine, RunHandsArgumentsToTheProgramUntouched) {
  const ProgramResult result = muster(
      {"run",
       "--nproc-per-node",
       "1",
       "--checkpoint-root",
       folder_.string(),
       "--",
       "/bin/sh",
       "-c",
       "printf '<%s>' \"$@\"",
       "sh",
       "--flag",
       "[1,2]",
       "--",
       "",
       "{}"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_part(result.out, "[0] <--flag><[1,2]><--><><{}>\n");
}

TEST_F(CommandLine, RunTakesASecondSigtermAsTheSameRequest) {
  Program program{
      {"run",
       "--nproc-per-node",
       "1",
       "--checkpoint-root",
       folder_.string(),
       "--",
       "/bin/sh",
       "-c",
       "trap 'echo saving; sleep 0.3; echo saved; exit 75' TERM; echo up; "
       "while :; do sleep 0.01; done"}};
  ASSERT_TRUE(program.wait_for_output("[0] up"));
  program.signal(SIGTERM);
  ASSERT_TRUE(program.wait_for_output("[0] saving"));
  program.signal(SIGTERM);
  const ProgramResult result = program.wait();
  EXPECT_EQ(result.exit_code, 75) << result.out;
  expect_part(result.out, "[0] saved\n");
}

TEST_F(CommandLine, RunTurnsSigtermIntoASaveAndEndsWith75) {
  Program program{
      {"run",
       "--nproc-per-node",
       "2",
       "--checkpoint-root",
       folder_.string(),
       "--",
       "/bin/sh",
       "-c",
       "trap 'echo saved; exit 75' TERM; echo up; while :; do sleep 0.01; done"}};
  ASSERT_TRUE(program.wait_for_output("[0] up"));
  ASSERT_TRUE(program.wait_for_output("[1] up"));
  program.signal(SIGTERM);
  const ProgramResult result = program.wait();
  EXPECT_EQ(result.exit_code, 75) << result.out;
  expect_part(result.out, "[0] saved\n");
  expect_part(result.out, "[1] saved\n");
}

TEST_F(CommandLine, RunKeepsIgnoringASignalThatWasIgnoredWhenItStarted) {
  const std::string go = (folder_ / "go").string();
  auto* const before = std::signal(SIGHUP, SIG_IGN);  // As nohup does.
  Program program{
      {"run",
       "--nproc-per-node",
       "1",
       "--checkpoint-root",
       folder_.string(),
       "--",
       "/bin/sh",
       "-c",
       "kill -HUP $$; echo up; while [ ! -e " + go + " ]; do sleep 0.01; done"}};
  std::signal(SIGHUP, before);
  ASSERT_TRUE(program.wait_for_output("[0] up"));
  program.signal(SIGHUP);
  std::ofstream{go} << "\n";
  const ProgramResult result = program.wait();
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
}

TEST_F(CommandLine, RunWaitsForASaveAsLongAsAnInfiniteGraceAllows) {
  for (const char* grace : {"inf", "1e10"}) {
    SCOPED_TRACE(grace);
    Program program{
        {"run",
         "--nproc-per-node",
         "1",
         "--grace",
         grace,
         "--checkpoint-root",
         folder_.string(),
         "--",
         "/bin/sh",
         "-c",
         "trap 'sleep 0.2; echo saved; exit 75' TERM; echo up; while :; do sleep 0.01; done"}};
    ASSERT_TRUE(program.wait_for_output("[0] up"));
    program.signal(SIGTERM);
    const ProgramResult result = program.wait();
    EXPECT_EQ(result.exit_code, 75) << result.out;
    expect_part(result.out, "[0] saved\n");
  }
}

TEST_F(CommandLine, RunSurvivesAClosedStdout) {
  const std::string command = std::string{MUSTER_EXECUTABLE} +
                              " run --nproc-per-node 1 --run-id moby --checkpoint-root " +
                              folder_.string() +
                              " -- /bin/sh -c 'i=0; while [ $i -lt 2000 ]; do echo line $i; "
                              "i=$((i+1)); done' | true";
  ASSERT_EQ(std::system(command.c_str()), 0);
  // The pipe's other end is gone at once; the launcher goes on until the ranks are done.
  const auto log = read_file(folder_ / "moby" / "logs" / "gen-1" / "rank-0.log");
  ASSERT_TRUE(log) << log.status().to_string();
  expect_part(*log, "line 1999\n");
}

TEST_F(CommandLine, CkptListTakesARootOfAnyNameAndReportsOlderDamage) {
  commit_checkpoint(10);
  commit_checkpoint(20);
  const fs::path root = folder_ / ".my ckpts";
  fs::create_directory(root);
  fs::rename(folder_ / "moby", root / "moby");
  fs::create_directory(root / "lost+found");
  const ProgramResult intact = muster({"ckpt", "list", root.string()});
  EXPECT_EQ(intact.exit_code, 0) << intact.err;
  expect_part(intact.out, "moby");
  fs::remove(root / "moby" / "step-10.gen-1" / "rank-0.safetensors");
  const ProgramResult damaged = muster({"ckpt", "list", root.string()});
  EXPECT_EQ(damaged.exit_code, 1) << damaged.out;
  expect_part(damaged.out, "1 older DAMAGED");
}

TEST_F(CommandLine, CkptListsShowsAndVerifiesARun) {
  commit_checkpoint(10);
  commit_checkpoint(20);
  const ProgramResult list = muster({"ckpt", "list", run_folder()});
  EXPECT_EQ(list.exit_code, 0) << list.err;
  expect_part(list.out, "STEP  GENERATION  RANKS");
  expect_part(list.out, "  20           2      1  ");
  expect_part(list.out, "complete");
  const ProgramResult show = muster({"ckpt", "show", run_folder() + "/step-10.gen-1/"});
  EXPECT_EQ(show.exit_code, 0) << show.err;
  expect_part(show.out, "run moby, step 10, generation 1, 1 ranks");
  expect_part(show.out, "layers.0.weight  F32    [32, 32]  [32, 32]      [0, 0]  4.0 KiB");
  expect_part(show.out, "data_cursor  12345");
  const ProgramResult verify = muster({"ckpt", "verify", run_folder()});
  EXPECT_EQ(verify.exit_code, 0) << verify.err;
  expect_part(verify.out, "step-20.gen-2: intact");
  expect_part(verify.err, "checking rank-0.safetensors");
}

TEST_F(CommandLine, CkptListOfARootListsItsRunsWithTheirNewestCheckpoint) {
  commit_checkpoint(10);
  commit_checkpoint(20);
  commit_checkpoint(7, "dick");
  ASSERT_TRUE(checkpoint::allocate_generation(folder_, "new"));
  fs::create_directories(folder_ / "notes");
  fs::create_directories(folder_ / "not a run");
  const ProgramResult list = muster({"ckpt", "list", folder_.string()});
  EXPECT_EQ(list.exit_code, 0) << list.err;
  expect_part(list.out, "RUN   CHECKPOINTS  NEWEST STEP  GENERATION  RANKS");
  expect_part(list.out, "\ndick            1            7           1      1  ");
  expect_part(list.out, "\nmoby            2           20           2      1  ");
  expect_part(list.out, "\nnew             0            -");
  EXPECT_EQ(list.out.find("notes"), std::string::npos) << list.out;
  EXPECT_LT(list.out.find("dick"), list.out.find("moby"));
}

TEST_F(CommandLine, CkptListOfARootFailsIfANewestCheckpointIsDamaged) {
  commit_checkpoint(10);
  fs::resize_file(folder_ / "moby" / "step-10.gen-1" / "rank-0.safetensors", 100);
  const ProgramResult list = muster({"ckpt", "list", folder_.string()});
  EXPECT_EQ(list.exit_code, 1);
  expect_part(list.out, "DAMAGED");
}

TEST_F(CommandLine, CkptVerifyNamesTheDamageAndFails) {
  commit_checkpoint(10);
  const fs::path data = folder_ / "moby" / "step-10.gen-1" / "rank-0.safetensors";
  std::fstream file{data, std::ios::in | std::ios::out | std::ios::binary};
  file.seekp(-100, std::ios::end);
  file.put('!');
  file.close();
  const ProgramResult verify = muster({"ckpt", "verify", run_folder()});
  EXPECT_EQ(verify.exit_code, 1);
  expect_part(verify.out, "DAMAGED");
  expect_part(verify.out, "tensor 'layers.0.weight' does not match its hash");
  fs::resize_file(data, 100);
  const ProgramResult list = muster({"ckpt", "list", run_folder()});
  EXPECT_EQ(list.exit_code, 1);
  expect_part(list.out, "DAMAGED");
}

TEST_F(CommandLine, CkptRefusesFoldersWithoutCheckpoints) {
  expect_refused({"ckpt", "list", (folder_ / "none").string()}, 1, "is not a folder");
  fs::create_directories(folder_ / "empty");
  expect_refused({"ckpt", "verify", (folder_ / "empty").string()}, 1, "has no checkpoints");
}

TEST_F(CommandLine, SendAndStatusTalkAboutARunOfTheCollector) {
  const SystemClock clock;
  collector::CollectorOptions options;
  options.database = folder_ / "muster.db";
  options.listen = "127.0.0.1:0";
  const auto service = collector::Collector::start(options, clock);
  ASSERT_TRUE(service) << service.status().to_string();
  const std::string address = (*service)->address();
  expect_refused(
      {"send", "--collector", address, "--run", "moby", "stop"}, 1, "run 'moby' is not known");
  // The launcher's events make the run known.
  const ProgramResult run = muster(
      {"run",
       "--nproc-per-node",
       "1",
       "--run-id",
       "moby",
       "--checkpoint-root",
       folder_.string(),
       "--collector",
       address,
       "--",
       "/bin/sh",
       "-c",
       "test $MUSTER_GENERATION = 2"});
  ASSERT_EQ(run.exit_code, 0) << run.out << run.err;
  const ProgramResult sent = muster(
      {"send", "--collector", address, "--run", "moby", "qk-clip", "100", "--reason", "test"});
  EXPECT_EQ(sent.exit_code, 0) << sent.err;
  EXPECT_EQ(sent.out, "command 1: qk-clip for run moby\n");
  const ProgramResult status =
      muster({"status", "--db", options.database.string(), "--run", "moby"});
  EXPECT_EQ(status.exit_code, 0) << status.err;
  for (const char* kind : {"run_started", "rank_lost", "restart", "run_ended"}) {
    expect_part(status.out, kind);
  }
  expect_part(status.out, "exited with code 1");
  (*service)->stop();
}

TEST_F(CommandLine, SendRefusesWhatCannotBeSent) {
  expect_refused({"send", "--run", "moby", "dance"}, 2, "dance");
  expect_refused({"send", "--run", "moby", "qk-clip"}, 2, "needs a threshold");
  expect_refused({"send", "--run", "moby", "stop", "4"}, 2, "takes no number");
  expect_refused({"send", "--collector", "nowhere", "--run", "moby", "stop"}, 2, "HOST:PORT");
  expect_refused(
      {"send", "--collector", "127.0.0.1:1", "--run", "moby", "stop"}, 1, "no collector answers");
}

TEST_F(CommandLine, StatusRefusesAMissingDatabase) {
  expect_refused({"status", "--db", (folder_ / "no.db").string()}, 1, "no.db");
}

TEST_F(CommandLine, CollectorPrintsItsAddressesAndEndsOnSigterm) {
  Program program{
      {"collector",
       "--db",
       (folder_ / "muster.db").string(),
       "--listen",
       "127.0.0.1:0",
       "--http",
       "127.0.0.1:0",
       "--log-level",
       "off"}};
  ASSERT_TRUE(program.wait_for_output("dashboard  http://127.0.0.1:"));
  program.signal(SIGTERM);
  const ProgramResult result = program.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_part(result.out, "collector  127.0.0.1:");
}

TEST_F(CommandLine, CollectorRefusesBadAddressesPoliciesAndTokens) {
  const std::string database = (folder_ / "muster.db").string();
  expect_refused({"collector", "--db", database, "--listen", "x"}, 2, "x");
  expect_refused(
      {"collector", "--db", database, "--policy", (folder_ / "no.yaml").string()}, 2, "no.yaml");
  std::ofstream{folder_ / "token"} << "\n";
  expect_refused(
      {"collector", "--db", database, "--token-file", (folder_ / "token").string()},
      2,
      "must be a token, got an empty line");
}

}  // namespace muster::cli::testing
