// SPDX-License-Identifier: Apache-2.0
// Who is let in.
#include "collector/src/handshake.h"

#include "tests/unit/collector/scripted_client.h"

#include <gtest/gtest.h>

#include <string>

namespace muster::collector {
namespace {

std::string refusal(const wire::Hello& hello, const std::string& token = "") {
  const auto admission = admit(hello, token);
  const auto* goodbye = std::get_if<wire::Goodbye>(&admission);
  if (goodbye == nullptr) {
    return "";
  }
  EXPECT_FALSE(goodbye->retry);
  return goodbye->reason;
}

TEST(Handshake, AgreesOnTheLowerVersion) {
  wire::Hello hello = agent_hello();
  hello.version = wire::kProtocolVersion + 5;
  const auto admission = admit(hello, "");
  ASSERT_TRUE(std::holds_alternative<std::uint32_t>(admission));
  EXPECT_EQ(std::get<std::uint32_t>(admission), wire::kProtocolVersion);
}

TEST(Handshake, NamesTheSideToUpgrade) {
  wire::Hello newer = agent_hello();
  newer.version = newer.version_min = wire::kProtocolVersion + 1;
  EXPECT_NE(refusal(newer).find("of the collector"), std::string::npos);
  wire::Hello older = agent_hello();
  older.version = older.version_min = 0;
  EXPECT_NE(refusal(older).find("in the training job"), std::string::npos);
}

TEST(Handshake, ChecksTheVersionBeforeTheToken) {
  wire::Hello hello = agent_hello();
  hello.version = hello.version_min = wire::kProtocolVersion + 1;
  EXPECT_NE(refusal(hello, "secret").find("upgrade"), std::string::npos);
}

TEST(Handshake, RefusesIdentitiesThatMakeNoSense) {
  wire::Hello hello = agent_hello();
  hello.identity.run_id.clear();
  EXPECT_NE(refusal(hello).find("MUSTER_RUN_ID"), std::string::npos);
  hello = agent_hello();
  hello.identity.run_id.assign(257, 'r');
  EXPECT_NE(refusal(hello).find("run id"), std::string::npos);
  hello = agent_hello();
  hello.identity.incarnation.clear();
  EXPECT_NE(refusal(hello).find("incarnation"), std::string::npos);
  EXPECT_NE(refusal(agent_hello(0, 0)).find("generation 0"), std::string::npos);
  EXPECT_NE(refusal(agent_hello(4)).find("rank 4"), std::string::npos);
  EXPECT_NE(refusal(agent_hello(-1)).find("rank -1"), std::string::npos);
}

TEST(Handshake, LetsLaunchersAndOperatorsInWithoutARank) {
  EXPECT_EQ(refusal(launcher_hello()), "");
  EXPECT_EQ(refusal(operator_hello()), "");
}

}  // namespace
}  // namespace muster::collector
