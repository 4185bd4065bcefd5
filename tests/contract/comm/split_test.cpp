// SPDX-License-Identifier: Apache-2.0
// Sub-groups: who is in them, memory shared with the parent, alternation with the parent.
#include "tests/contract/comm/samples.h"
#include "tests/contract/comm/world.h"

#include <gtest/gtest.h>

#include <sstream>

namespace muster::comm {

namespace {

class SplitContract : public testing::TestWithParam<World> {};

std::string name_of(const testing::TestParamInfo<World>& info) {
  std::ostringstream name;
  name << info.param;
  return name.str();
}

INSTANTIATE_TEST_SUITE_P(AllBackends, SplitContract, testing::ValuesIn(worlds_of(4)), name_of);

TEST_P(SplitContract, OrdersTheMembersOfEachColorByKeyThenRank) {
  const auto reports = run_world(GetParam(), [](Communicator& c) {
    // Colors {0, 1, 3} and {2}; keys reverse rank 0 and 3, rank 1 and 3 tie.
    const int color = c.rank() == 2 ? 9 : -4;
    const int key = c.rank() == 0 ? 5 : 1;
    const auto child = c.split(color, key, soon());
    return child ? std::to_string((*child)->rank()) + " of " + std::to_string((*child)->size())
                 : child.status().to_string();
  });
  EXPECT_EQ(reports, (std::vector<std::string>{"2 of 3", "0 of 3", "0 of 1", "1 of 3"}));
}

// Gradients are allocated once through the parent and reduced over sub-groups.
TEST_P(SplitContract, ChildAndParentReduceTheSameMemoryAlternately) {
  expect_success(GetParam(), [](Communicator& c) {
    auto child = c.split(c.rank() / 2, 0, soon());
    if (!child) {
      return child.status().to_string();
    }
    constexpr std::size_t kCount = 50021;
    const auto memory = c.allocate<std::int64_t>(kCount, soon());
    for (int round = 0; round < 5; ++round) {
      std::fill(memory->begin(), memory->end(), c.rank() + 1);
      Status status = (*child)->all_reduce(*memory, ReduceOp::kSum, soon());
      if (status.ok()) {
        status = c.all_reduce(*memory, ReduceOp::kSum, soon());
      }
      if (!status.ok()) {
        return status.to_string();
      }
      // (1 + 2) and (3 + 4), each counted by both of its ranks.
      const std::vector<std::int64_t> wanted(kCount, 2 * (3 + 7));
      const std::string error = difference<std::int64_t>(*memory, wanted, "round");
      if (!error.empty()) {
        return error;
      }
    }
    return std::string{};
  });
}

TEST_P(SplitContract, SubGroupsOfSubGroupsWork) {
  expect_success(GetParam(), [](Communicator& c) {
    auto child = c.split(c.rank() % 2, c.rank(), soon());
    auto grandchild = child ? (*child)->split((*child)->rank(), 0, soon()) : child.status();
    if (!grandchild) {
      return grandchild.status().to_string();
    }
    std::vector<double> value{static_cast<double>(c.rank())};
    const Status alone = (*grandchild)->all_reduce(std::span{value}, ReduceOp::kSum, soon());
    const Status pair = (*child)->all_reduce(std::span{value}, ReduceOp::kSum, soon());
    const double wanted = c.rank() % 2 == 0 ? 0.0 + 2.0 : 1.0 + 3.0;
    return alone.ok() && pair.ok() && value[0] == wanted ? std::string{}
                                                         : alone.to_string() + pair.to_string();
  });
}

TEST_P(SplitContract, GroupsCanBeMadeAndDroppedWithoutEnd) {
  expect_success(GetParam(), [](Communicator& c) {
    const int rounds = c.backend() == "gloo" ? 3 : 200;  // More than can live at one time.
    for (int round = 0; round < rounds; ++round) {
      const auto child = c.split(c.rank() % 2, 0, soon());
      if (!child) {
        return child.status().to_string();
      }
      if (const Status status = (*child)->barrier(soon()); !status.ok()) {
        return status.to_string();
      }
    }
    return std::string{};
  });
}

TEST_P(SplitContract, AbortOfAChildAbortsTheParent) {
  expect_success(GetParam(), [](Communicator& c) {
    auto child = c.split(c.rank() / 2, 0, soon());
    if (!child) {
      return child.status().to_string();
    }
    if (c.rank() == 3) {
      (*child)->abort("expert group gave up");
    }
    const Status status = c.barrier(soon());
    if (c.rank() != 3 && c.backend() == "gloo") {  // Sockets report the end, not the reason.
      return status.ok() ? std::string{"barrier succeeded"} : std::string{};
    }
    return status.code() == StatusCode::kAborted &&
                   status.message().find("expert group gave up") != std::string::npos
               ? std::string{}
               : status.to_string();
  });
}

}  // namespace

}  // namespace muster::comm
