// SPDX-License-Identifier: Apache-2.0
// What keeps a collector from starting is said at once and in one sentence.
#include "tests/unit/collector/running_collector.h"

#include <gtest/gtest.h>

#include <string>

namespace muster::collector {
namespace {

class Start : public ::testing::Test {
 protected:
  Expected<std::unique_ptr<Collector>> start(const std::string& listen, const char* database) {
    CollectorOptions options;
    options.listen = listen;
    options.database = folder_ / database;
    return Collector::start(options, clock_);
  }

  ScratchFolder folder_;
  SystemClock clock_;
};

TEST_F(Start, NamesAPortInUseAndTheRemedyAndLeavesTheDatabaseAlone) {
  const auto first = start("127.0.0.1:0", "first.db");
  ASSERT_TRUE(first.ok()) << first.status().to_string();
  const std::string address = (*first)->address();
  const auto second = start(address, "second.db");
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::kAlreadyExists);
  EXPECT_NE(second.status().message().find(address), std::string::npos);
  EXPECT_NE(second.status().message().find("--listen"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "second.db"));
}

TEST_F(Start, NamesADatabaseThatAnotherCollectorHolds) {
  const auto first = start("127.0.0.1:0", "one.db");
  ASSERT_TRUE(first.ok()) << first.status().to_string();
  const auto second = start("127.0.0.1:0", "one.db");
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::kAlreadyExists);
  EXPECT_NE(second.status().message().find("one.db"), std::string::npos);
}

TEST_F(Start, PassesOnThatTheDatabaseIsNewer) {
  CollectorOptions options;
  options.listen = "127.0.0.1:0";
  const auto refused = start_service(
      options,
      ServiceOptions{},
      policy::default_policy(),
      clock_,
      []() -> Expected<std::unique_ptr<store::Store>> { return version_mismatch("newer muster"); },
      [](const std::string&) { return History{}; });
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kVersionMismatch);
  EXPECT_EQ(refused.status().message(), "newer muster");
}

TEST_F(Start, NamesAPolicyThatIsMissing) {
  CollectorOptions options;
  options.listen = "127.0.0.1:0";
  options.database = folder_ / "muster.db";
  options.policy = folder_ / "none.yaml";
  const auto refused = Collector::start(options, clock_);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("none.yaml"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(options.database));
}

TEST_F(Start, RefusesAnAddressThatIsNone) {
  const auto refused = start("somewhere", "muster.db");
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
}

TEST_F(Start, RefusesToListenToOtherMachinesWithoutAToken) {
  const auto refused = start("0.0.0.0:0", "muster.db");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.status().message().find("token"), std::string::npos);
}

}  // namespace
}  // namespace muster::collector
