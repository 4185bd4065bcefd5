// SPDX-License-Identifier: Apache-2.0
// Joining by the environment that the launcher sets.
#include "tests/contract/comm/world.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

namespace muster::comm {

namespace {

using Environment = std::map<std::string, std::string>;

constexpr const char* kNames[] = {
    "RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_PORT",
    "MUSTER_RUN_ID",
    "MUSTER_GENERATION",
    "MUSTER_COMM",
    "MUSTER_GLOO_STORE"};

// Returns the answer of connect_from_environment under exactly this environment.
std::vector<std::string> connect_under(const std::vector<Environment>& of_rank) {
  return test::run_ranks(static_cast<int>(of_rank.size()), [&](int rank) {
    for (const char* name : kNames) {
      ::unsetenv(name);
    }
    for (const auto& [name, value] : of_rank[static_cast<std::size_t>(rank)]) {
      ::setenv(name.c_str(), value.c_str(), 1);
    }
    const auto c = connect_from_environment(soon());
    return c ? std::string{(*c)->backend()} + " " + std::to_string((*c)->rank()) + " of " +
                   std::to_string((*c)->size())
             : c.status().to_string();
  });
}

Environment usual(int rank, int size, const Rendezvous& rendezvous) {
  return {
      {"RANK", std::to_string(rank)},
      {"WORLD_SIZE", std::to_string(size)},
      {"LOCAL_WORLD_SIZE", std::to_string(size)},
      {"MASTER_PORT", "29500"},
      {"MUSTER_RUN_ID", rendezvous.folder().filename().string()},
      {"MUSTER_GENERATION", "3"}};
}

TEST(ConnectFromEnvironment, WithoutRankItIsAWorldOfOne) {
  EXPECT_EQ(connect_under({Environment{}}).at(0), "local 0 of 1");
}

TEST(ConnectFromEnvironment, RanksOfOneHostMeetOverSharedMemory) {
  const Rendezvous rendezvous;
  const auto reports = connect_under({usual(0, 2, rendezvous), usual(1, 2, rendezvous)});
  EXPECT_EQ(reports, (std::vector<std::string>{"shm 0 of 2", "shm 1 of 2"}));
}

TEST(ConnectFromEnvironment, MissingVariablesAreNamed) {
  for (const char* name :
       {"WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_PORT", "MUSTER_RUN_ID", "MUSTER_GENERATION"}) {
    const Rendezvous rendezvous;
    Environment environment = usual(0, 1, rendezvous);
    environment.erase(name);
    const std::string report = connect_under({environment}).at(0);
    EXPECT_EQ(report.rfind("invalid argument: environment variable " + std::string{name}, 0), 0U)
        << report;
  }
}

TEST(ConnectFromEnvironment, UnusableValuesAreNamed) {
  const std::vector<std::pair<std::string, std::string>> bad{
      {"WORLD_SIZE", "four"}, {"RANK", "-1"}, {"RANK", "7"}, {"MUSTER_COMM", "carrier-pigeon"}};
  for (const auto& [name, value] : bad) {
    const Rendezvous rendezvous;
    Environment environment = usual(0, 1, rendezvous);
    environment[name] = value;
    const std::string report = connect_under({environment}).at(0);
    EXPECT_EQ(report.rfind("invalid argument: ", 0), 0U) << report;
    EXPECT_NE(report.find(name), std::string::npos) << report;
  }
}

TEST(ConnectFromEnvironment, SharedMemoryAcrossHostsIsRefused) {
  const Rendezvous rendezvous;
  Environment environment = usual(0, 4, rendezvous);
  environment["LOCAL_WORLD_SIZE"] = "2";
  environment["MUSTER_COMM"] = "shm";
  EXPECT_NE(connect_under({environment}).at(0).find("MUSTER_COMM=gloo"), std::string::npos);
}

TEST(ConnectFromEnvironment, SeveralHostsMeetOverGloo) {
  if (!gloo_is_available()) {
    GTEST_SKIP() << "this build has no Gloo";
  }
  const Rendezvous rendezvous;
  std::vector<Environment> environments{usual(0, 2, rendezvous), usual(1, 2, rendezvous)};
  for (Environment& environment : environments) {
    environment["LOCAL_WORLD_SIZE"] = "1";
    environment["MUSTER_GLOO_STORE"] = rendezvous.folder().string();
  }
  EXPECT_EQ(connect_under(environments), (std::vector<std::string>{"gloo 0 of 2", "gloo 1 of 2"}));
  environments[0].erase("MUSTER_GLOO_STORE");
  EXPECT_NE(connect_under({environments[0]}).at(0).find("MUSTER_GLOO_STORE"), std::string::npos);
}

TEST(Backends, NcclSeamAnswersNo) {
  EXPECT_FALSE(nccl_is_available());
}

}  // namespace

}  // namespace muster::comm
