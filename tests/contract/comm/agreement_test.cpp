// SPDX-License-Identifier: Apache-2.0
// Ranks that do not make the same call all learn it, in the same words.
#include "tests/contract/comm/world.h"

#include <gtest/gtest.h>

#include <sstream>

namespace muster::comm {

namespace {

class AgreementContract : public testing::TestWithParam<World> {};

INSTANTIATE_TEST_SUITE_P(
    AllBackends, AgreementContract, testing::ValuesIn(worlds_of(3)), world_name);

// Every rank reports kInvalidArgument, and the report has every one of `parts`.
void expect_refusal(
    const World& world,
    const std::vector<std::string>& parts,
    const std::function<Status(Communicator&)>& call) {
  const auto reports = run_world(world, [&](Communicator& c) { return call(c).to_string(); });
  for (const std::string& report : reports) {
    EXPECT_EQ(report.rfind("invalid argument: ", 0), 0U) << report;
    for (const std::string& part : parts) {
      EXPECT_NE(report.find(part), std::string::npos) << "no \"" << part << "\" in " << report;
    }
  }
}

TEST_P(AgreementContract, DifferentCountsNameBothRanks) {
  expect_refusal(
      GetParam(),
      {"rank 0", "all_reduce(sum) of 10 float32", "rank 2", "of 11 float32"},
      [](Communicator& c) {
        std::vector<float> data(c.rank() == 2 ? 11 : 10);
        return c.all_reduce(std::span{data}, ReduceOp::kSum, soon());
      });
}

TEST_P(AgreementContract, DifferentCollectivesNameBoth) {
  expect_refusal(GetParam(), {"all_reduce(max) of 3 int64", "barrier"}, [](Communicator& c) {
    std::vector<std::int64_t> data(3);
    return c.rank() == 1 ? c.barrier(soon())
                         : c.all_reduce(std::span{data}, ReduceOp::kMax, soon());
  });
}

TEST_P(AgreementContract, DifferentElementTypesAreRefused) {
  expect_refusal(GetParam(), {"4 float32", "4 int32"}, [](Communicator& c) {
    std::vector<float> floats(4);
    std::vector<std::int32_t> integers(4);
    return c.rank() == 1 ? c.broadcast(std::span{integers}, 0, soon())
                         : c.broadcast(std::span{floats}, 0, soon());
  });
}

TEST_P(AgreementContract, ReductionsRefuseTypesThatTheyCannotAdd) {
  expect_refusal(GetParam(), {"all_reduce: cannot reduce bfloat16"}, [](Communicator& c) {
    std::vector<std::uint16_t> data(4);
    return c.all_reduce_bytes(data.data(), 4, DType::kBFloat16, ReduceOp::kSum, soon());
  });
  expect_refusal(GetParam(), {"reduce_scatter: cannot reduce uint16"}, [](Communicator& c) {
    std::vector<std::uint16_t> data(3);
    const std::vector<std::size_t> counts(3, 1);
    return c.reduce_scatter(std::span{data}, counts, ReduceOp::kMax, soon());
  });
}

TEST_P(AgreementContract, CollectivesThatOnlyMoveTakeEveryType) {
  expect_success(GetParam(), [](Communicator& c) {
    std::vector<std::uint16_t> data(3);
    data[static_cast<std::size_t>(c.rank())] = static_cast<std::uint16_t>(0x3f80 + c.rank());
    const std::vector<std::size_t> counts(3, 1);
    const Status status = c.all_gather_bytes(data.data(), counts, DType::kBFloat16, soon());
    return status.ok() && data == std::vector<std::uint16_t>{0x3f80, 0x3f81, 0x3f82}
               ? std::string{}
               : "other bits, or " + status.to_string();
  });
}

TEST_P(AgreementContract, DifferentPartsOfLargeGathersAreRefused) {
  expect_refusal(
      GetParam(),
      {"all_gather of (5000, 6000, 7000)", "all_gather of (5000, 6000, 7001)"},
      [](Communicator& c) {
        const std::vector<std::size_t> counts{5000, 6000, c.rank() == 1 ? 7001U : 7000U};
        std::vector<double> data(18001);
        return c.all_gather(std::span{data}, counts, soon());
      });
}

TEST_P(AgreementContract, DifferentExchangesNameTheSenderAndTheReceiver) {
  expect_refusal(
      GetParam(), {"rank 1", "sends 2 elements to rank 2", "expects 1"}, [](Communicator& c) {
        std::vector<std::size_t> send_counts{1, 1, 1};
        const std::vector<std::size_t> receive_counts{1, 1, 1};
        if (c.rank() == 1) {
          send_counts[2] = 2;
        }
        const std::vector<float> send(4);
        std::vector<float> receive(3);
        return c.all_to_all<float>(send, send_counts, std::span{receive}, receive_counts, soon());
      });
}

TEST_P(AgreementContract, ArgumentsThatCannotWorkEndTheOthersToo) {
  const auto reports = run_world(GetParam(), [](Communicator& c) {
    std::vector<float> data(3);
    const std::vector<std::size_t> counts(c.rank() == 0 ? 2 : 3, 1);
    const Status status = c.reduce_scatter(std::span{data}, counts, ReduceOp::kSum, soon());
    return std::string{status.ok() ? "ok" : ""} + status.message();
  });
  EXPECT_NE(reports.at(0).find("needs one count per rank"), std::string::npos) << reports.at(0);
  for (const std::string& report : reports) {
    EXPECT_NE(report, "ok");
  }
}

TEST_P(AgreementContract, CallsAfterAFailureReturnAbortedWithTheFirstReason) {
  expect_success(GetParam(), [](Communicator& c) {
    std::vector<float> data(c.rank() == 2 ? 11 : 10);
    const Status first = c.all_reduce(std::span{data}, ReduceOp::kSum, soon());
    for (int repeat = 0; repeat < 3; ++repeat) {
      const Status later = c.barrier(soon());
      if (later.code() != StatusCode::kAborted || later.message() != first.message()) {
        return later.to_string();
      }
    }
    const auto memory = c.allocate_bytes(10, soon());
    return memory.status().code() == StatusCode::kAborted ? std::string{}
                                                          : memory.status().to_string();
  });
}

}  // namespace

}  // namespace muster::comm
