// SPDX-License-Identifier: Apache-2.0
// Mistakes of users: the program fails at once with one clear sentence that names the thing and the
// remedy.
#include "tests/integration/support/job.h"

#include <muster/common/file.h>

#include <gtest/gtest.h>
#include <sqlite3.h>

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace muster::test {
namespace {

// A refusal comes at once on a quiet machine; this only keeps a hang from lasting.
constexpr auto kPatience = std::chrono::seconds{100};

struct Outcome {
  int code{-1};
  std::string output;
};

Outcome run(std::vector<std::string> argv) {
  Process process(std::move(argv));
  const auto code = process.wait(Deadline::after(kPatience));
  return {code.value_or(-1), process.output()};
}

// Every needle must be in the text.
void expect_refused(const Outcome& outcome, const std::vector<std::string>& needles) {
  EXPECT_GT(outcome.code, 0) << outcome.output;
  for (const std::string& needle : needles) {
    EXPECT_NE(outcome.output.find(needle), std::string::npos) << "'" << needle << "' is not in:\n"
                                                              << outcome.output;
  }
}

class BadInput : public ::testing::Test {
 protected:
  ScratchFolder folder_;
};

TEST_F(BadInput, UnknownFlagIsNamed) {
  expect_refused(run({muster_program(), "run", "--frobnicate"}), {"--frobnicate"});
}

TEST_F(BadInput, UnknownSubcommandIsNamed) {
  expect_refused(run({muster_program(), "trian"}), {"trian"});
}

TEST_F(BadInput, MissingProgramIsNamed) {
  expect_refused(
      run(
          {muster_program(),
           "run",
           "--nproc-per-node",
           "2",
           "--checkpoint-root",
           folder_ / "c",
           "--",
           folder_ / "no-such-program"}),
      {"no-such-program"});
}

TEST_F(BadInput, MissingDataFileIsNamed) {
  expect_refused(run({moe_lm_program(), "--data", folder_ / "no-such-text"}), {"no-such-text"});
}

TEST_F(BadInput, UnreadablePolicyIsNamedWithItsLine) {
  std::ofstream(folder_ / "policy.yaml")
      << "version: 1\nrules:\n  - name: r\n    finding: nonfinite\n    actions: [explode]\n";
  expect_refused(
      run(
          {muster_program(),
           "collector",
           "--db",
           folder_ / "m.db",
           "--listen",
           "127.0.0.1:0",
           "--http",
           "127.0.0.1:0",
           "--policy",
           folder_ / "policy.yaml"}),
      {"policy.yaml:5", "explode"});
}

TEST_F(BadInput, PortInUseIsNamed) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(fd, 1), 0);
  ASSERT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const std::string port = std::to_string(ntohs(address.sin_port));
  expect_refused(
      run(
          {muster_program(),
           "collector",
           "--db",
           folder_ / "m.db",
           "--listen",
           "127.0.0.1:" + port,
           "--http",
           "127.0.0.1:0"}),
      {port, "in use"});
  expect_refused(
      run(
          {muster_program(),
           "collector",
           "--db",
           folder_ / "n.db",
           "--listen",
           "127.0.0.1:0",
           "--http",
           "127.0.0.1:" + port}),
      {port, "in use"});
  ::close(fd);
}

TEST_F(BadInput, DatabaseOfANewerVersionIsRefusedAndUntouched) {
  const std::string path = folder_ / "newer.db";
  sqlite3* database = nullptr;
  { CollectorProcess made_by_us(path); }
  ASSERT_EQ(sqlite3_open(path.c_str(), &database), SQLITE_OK);
  ASSERT_EQ(
      sqlite3_exec(database, "PRAGMA user_version = 9999;", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(database);
  const std::string before = read_file(path).value_or("");
  expect_refused(
      run(
          {muster_program(),
           "collector",
           "--db",
           path,
           "--listen",
           "127.0.0.1:0",
           "--http",
           "127.0.0.1:0"}),
      {"newer.db", "9999"});
  EXPECT_EQ(read_file(path).value_or(""), before);
}

TEST_F(BadInput, SecondCollectorOnOneDatabaseIsRefused) {
  const CollectorProcess first(folder_ / "m.db");
  expect_refused(
      run(
          {muster_program(),
           "collector",
           "--db",
           folder_ / "m.db",
           "--listen",
           "127.0.0.1:0",
           "--http",
           "127.0.0.1:0"}),
      {"m.db", "lock"});
}

TEST_F(BadInput, WorldSizeThatDoesNotFitTheModelIsExplained) {
  JobOptions options;
  options.folder = folder_ / "job";
  options.ranks = 3;  // a batch of 8 cannot be shared by 3
  options.launcher = {"--max-restarts", "0"};
  Process job(command_line(options));
  EXPECT_NE(job.wait(Deadline::after(kPatience)).value_or(0), 0);
  EXPECT_NE(job.output().find("--batch"), std::string::npos) << job.output();
}

TEST_F(BadInput, CheckpointOfAnotherUpdateRuleEndsAtOnceAndIsUntouched) {
  JobOptions options;
  options.folder = folder_ / "job";
  options.steps = 6;
  ASSERT_EQ(run_to_end(options), 0);
  options.steps = 12;
  options.trainer = {"--optimizer", "sgd"};
  const Outcome outcome = run(command_line(options));
  EXPECT_EQ(outcome.code, 93) << "no restart can help\n" << outcome.output;
  expect_refused(outcome, {"under the rule", "keep the route"});
  EXPECT_EQ(outcome.output.find("generation 3"), std::string::npos) << outcome.output;
  options.trainer.clear();
  EXPECT_EQ(run_to_end(options), 0) << "the checkpoint must still be good";
}

TEST_F(BadInput, CorruptCheckpointIsNamedByVerify) {
  std::filesystem::create_directories(folder_ / "run/step-6.gen-1");
  std::ofstream(folder_ / "run/step-6.gen-1/MANIFEST.json") << "{ not json";
  expect_refused(
      run({muster_program(), "ckpt", "verify", folder_ / "run/step-6.gen-1"}), {"MANIFEST.json"});
}

TEST_F(BadInput, SendWithoutACollectorSaysWhereItTried) {
  expect_refused(
      run({muster_program(), "send", "--collector", "127.0.0.1:1", "--run", "x", "stop"}),
      {"127.0.0.1:1"});
}

}  // namespace
}  // namespace muster::test
