// SPDX-License-Identifier: Apache-2.0
// comm::agree on every backend, and the choice of the ranks that it names.
#include "tests/contract/comm/world.h"

#include <muster/comm/agree.h>

#include <gtest/gtest.h>

#include <array>
#include <sstream>

namespace muster::comm {

namespace {

class AgreeContract : public testing::TestWithParam<World> {};

std::string name_of(const testing::TestParamInfo<World>& info) {
  std::ostringstream name;
  name << info.param;
  return name.str();
}

INSTANTIATE_TEST_SUITE_P(AllBackends, AgreeContract, testing::ValuesIn(worlds_of(3)), name_of);

TEST_P(AgreeContract, SucceedsWhereAllRanksHoldTheSame) {
  for (const std::uint64_t fingerprint : {std::uint64_t{0}, UINT64_MAX}) {
    expect_success(GetParam(), [&](Communicator& c) {
      return agree(c, fingerprint, "settings", soon()).message();
    });
  }
}

TEST_P(AgreeContract, NamesTheRankThatDiffersOnEveryRank) {
  const auto reports = run_world(GetParam(), [](Communicator& c) {
    return agree(c, c.rank() == 1 ? 0x1f : 0x2a, "settings", soon()).to_string();
  });
  for (const std::string& report : reports) {
    EXPECT_EQ(
        report,
        "invalid argument: settings must be the same on all ranks, but differ: rank 1 "
        "(000000000000001f) from the other 2 (000000000000002a)");
  }
}

TEST_P(AgreeContract, ARankWithoutAFingerprintDoesNotKeepTheOthersWaiting) {
  const auto reports = run_world(GetParam(), [](Communicator& c) {
    const auto own = c.rank() == 2 ? std::nullopt : std::optional<std::uint64_t>{7};
    return agree(c, own, "plans", soon(), StatusCode::kFailedPrecondition).to_string();
  });
  for (const std::string& report : reports) {
    EXPECT_EQ(report.rfind("failed precondition: plans must", 0), 0U) << report;
    EXPECT_NE(report.find("rank 2 (refused its own)"), std::string::npos) << report;
  }
}

TEST_P(AgreeContract, AnErrorOfTheCommunicatorNamesTheComparison) {
  const auto reports = run_world(GetParam(), [](Communicator& c) {
    c.abort("enough");
    return agree(c, 1, "plans", soon()).message();
  });
  for (const std::string& report : reports) {
    EXPECT_EQ(report.rfind("comparing plans: ", 0), 0U) << report;
  }
}

TEST(Dissent, IsEmptyWhereAllAgree) {
  const std::array<std::uint64_t, 3> same{5, 5, 5};
  EXPECT_TRUE(find_dissent(same).ranks.empty());
  EXPECT_TRUE(find_dissent(std::span{same}.first(1)).ranks.empty());
}

TEST(Dissent, TheMostCommonFingerprintIsTheModel) {
  const std::array<std::uint64_t, 5> fingerprints{1, 2, 3, 2, 2};
  const Dissent dissent = find_dissent(fingerprints);
  EXPECT_EQ(dissent.model, 1U);
  EXPECT_EQ(dissent.ranks, (std::vector<std::size_t>{0, 2}));
  EXPECT_EQ(
      describe(dissent, fingerprints),
      "rank 0 (0000000000000001), rank 2 (0000000000000003) from the other 3 (0000000000000002)");
}

TEST(Dissent, TheLowestRankDecidesATie) {
  const std::array<std::uint64_t, 4> fingerprints{9, 4, 4, 9};
  EXPECT_EQ(find_dissent(fingerprints).model, 0U);
  EXPECT_EQ(find_dissent(fingerprints).ranks, (std::vector<std::size_t>{1, 2}));
}

}  // namespace

}  // namespace muster::comm
