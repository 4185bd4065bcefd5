// SPDX-License-Identifier: Apache-2.0
// Results that every backend must compute, for 1 to 4 ranks, small and large, in any memory.
#include "tests/contract/comm/samples.h"
#include "tests/contract/comm/world.h"

#include <gtest/gtest.h>

#include <limits>
#include <sstream>

namespace muster::comm {

namespace {

// 0 and 1, primes, on both sides of the limit for small calls, and longer than a staging window.
constexpr std::size_t kCounts[] = {0, 1, 7, 509, 4099, 400009};
constexpr Home kHomes[] = {Home::kPrivate, Home::kHeap, Home::kMixed};

class CommunicatorContract : public testing::TestWithParam<World> {};

INSTANTIATE_TEST_SUITE_P(
    AllBackends, CommunicatorContract, testing::ValuesIn(all_worlds()), world_name);

template <typename T>
std::string check_all_reduce(Communicator& c, std::size_t count, ReduceOp op, Home home) {
  const std::string what = "all_reduce of " + std::to_string(count) + " in home " +
                           std::to_string(static_cast<int>(home));
  Buffer<T> buffer{c, sample<T>(c.rank(), count, 1), home, soon()};
  if (!buffer.error().empty()) {
    return buffer.error();
  }
  if (const Status status = c.all_reduce(buffer.data(), op, soon()); !status.ok()) {
    return what + ": " + status.to_string();
  }
  const std::vector<T> wanted = reduced<T>(c.size(), count, 1, op);
  return difference<T>(buffer.data(), wanted, what);
}

TEST_P(CommunicatorContract, AllReduceSumsInRankOrder) {
  expect_success(GetParam(), [](Communicator& c) {
    for (const std::size_t count : kCounts) {
      for (const Home home : kHomes) {
        const std::string error = check_all_reduce<float>(c, count, ReduceOp::kSum, home);
        if (!error.empty()) {
          return error;
        }
      }
    }
    return std::string{};
  });
}

TEST_P(CommunicatorContract, AllReduceKnowsEveryElementType) {
  expect_success(GetParam(), [](Communicator& c) {
    std::string errors;
    for (const std::size_t count : {std::size_t{37}, std::size_t{9973}}) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
        errors += check_all_reduce<float>(c, count, op, Home::kPrivate);
        errors += check_all_reduce<double>(c, count, op, Home::kPrivate);
        errors += check_all_reduce<std::int32_t>(c, count, op, Home::kPrivate);
        errors += check_all_reduce<std::int64_t>(c, count, op, Home::kPrivate);
        errors += check_all_reduce<std::uint8_t>(c, count, op, Home::kPrivate);
      }
    }
    return errors;
  });
}

TEST_P(CommunicatorContract, AllReduceMaxIgnoresNanBesideValues) {
  expect_success(GetParam(), [](Communicator& c) {
    std::string errors;
    for (const std::size_t count : {std::size_t{8}, std::size_t{5003}}) {
      std::vector<float> data(count, static_cast<float>(c.rank()));
      if (c.size() > 1 && c.rank() == 0) {
        std::fill(data.begin(), data.end(), std::numeric_limits<float>::quiet_NaN());
      }
      const Status status = c.all_reduce(std::span{data}, ReduceOp::kMax, soon());
      const std::vector<float> wanted(count, static_cast<float>(c.size() - 1));
      errors += status.ok() ? difference<float>(data, wanted, "max") : status.to_string();
    }
    return errors;
  });
}

TEST_P(CommunicatorContract, AllReduceGivesTheSameBitsOnAllRanksAndInRepeats) {
  const auto reports = run_world(GetParam(), [](Communicator& c) {
    std::ostringstream bits;
    for (int repeat = 0; repeat < 2; ++repeat) {
      std::vector<float> data = sample<float>(c.rank(), 20011, 5);
      if (const Status status = c.all_reduce(std::span{data}, ReduceOp::kSum, soon());
          !status.ok()) {
        return status.to_string();
      }
      std::uint64_t digest = 14695981039346656037ULL;
      for (const float value : data) {
        std::uint32_t word = 0;
        std::memcpy(&word, &value, sizeof word);
        digest = (digest ^ word) * 1099511628211ULL;
      }
      bits << digest << (repeat == 0 ? " " : "");
    }
    return bits.str();
  });
  const std::string& first = reports.at(0);
  EXPECT_EQ(first.substr(0, first.find(' ')), first.substr(first.find(' ') + 1));
  for (const std::string& report : reports) {
    EXPECT_EQ(report, first);
  }
}

std::string check_reduce_scatter(Communicator& c, std::size_t base, Home home) {
  const std::vector<std::size_t> counts = uneven_counts(c.size(), base);
  const std::size_t total = sum_of(counts);
  Buffer<double> buffer{c, sample<double>(c.rank(), total, 2), home, soon()};
  const Status status = c.reduce_scatter(buffer.data(), counts, ReduceOp::kSum, soon());
  if (!status.ok() || !buffer.error().empty()) {
    return buffer.error() + status.to_string();
  }
  const auto self = static_cast<std::size_t>(c.rank());
  const std::size_t begin = sum_of(std::span{counts}.first(self));
  const std::vector<double> wanted = reduced<double>(c.size(), total, 2, ReduceOp::kSum);
  return difference<double>(
      buffer.data().subspan(begin, counts[self]),
      std::span{wanted}.subspan(begin, counts[self]),
      "reduce_scatter with base " + std::to_string(base));
}

TEST_P(CommunicatorContract, ReduceScatterReducesUnevenPartsInRankOrder) {
  expect_success(GetParam(), [](Communicator& c) {
    std::string errors;
    for (const std::size_t base : {0UL, 5UL, 1009UL, 100003UL}) {
      for (const Home home : kHomes) {
        errors += check_reduce_scatter(c, base, home);
      }
    }
    return errors;
  });
}

std::string check_all_gather(Communicator& c, std::size_t base, Home home) {
  const std::vector<std::size_t> counts = uneven_counts(c.size(), base);
  std::vector<std::int64_t> wanted;
  std::vector<std::int64_t> input(sum_of(counts), -1);
  for (int r = 0; r < c.size(); ++r) {
    const auto part = sample<std::int64_t>(r, counts[static_cast<std::size_t>(r)], 3);
    if (r == c.rank()) {
      std::copy(part.begin(), part.end(), input.begin() + std::ssize(wanted));
    }
    wanted.insert(wanted.end(), part.begin(), part.end());
  }
  Buffer<std::int64_t> buffer{c, input, home, soon()};
  const Status status = c.all_gather(buffer.data(), counts, soon());
  if (!status.ok() || !buffer.error().empty()) {
    return buffer.error() + status.to_string();
  }
  return difference<std::int64_t>(
      buffer.data(), wanted, "all_gather with base " + std::to_string(base));
}

TEST_P(CommunicatorContract, AllGatherCollectsUnevenParts) {
  expect_success(GetParam(), [](Communicator& c) {
    std::string errors;
    for (const std::size_t base : {0UL, 5UL, 600UL, 300007UL}) {
      for (const Home home : kHomes) {
        errors += check_all_gather(c, base, home);
      }
    }
    return errors;
  });
}

// Rank `from` sends this many elements to rank `to`; some pairs exchange nothing.
std::size_t routed(int from, int to, std::size_t base) {
  const auto mix = static_cast<std::size_t>((from * 7 + to * 3) % 5);
  return mix == 0 ? 0 : base * mix + static_cast<std::size_t>(from);
}

std::string check_all_to_all(Communicator& c, std::size_t base, Home home) {
  std::vector<std::size_t> send_counts;
  std::vector<std::size_t> receive_counts;
  std::vector<std::int32_t> input;
  std::vector<std::int32_t> wanted;
  for (int r = 0; r < c.size(); ++r) {
    send_counts.push_back(routed(c.rank(), r, base));
    receive_counts.push_back(routed(r, c.rank(), base));
    const auto value = [](int from, int to) { return 1000 * from + to; };
    input.insert(input.end(), send_counts.back(), value(c.rank(), r));
    wanted.insert(wanted.end(), receive_counts.back(), value(r, c.rank()));
  }
  Buffer<std::int32_t> send{c, input, home, soon()};
  std::vector<std::int32_t> received(wanted.size());
  const Status status = c.all_to_all<std::int32_t>(
      send.data(), send_counts, std::span{received}, receive_counts, soon());
  if (!status.ok() || !send.error().empty()) {
    return send.error() + status.to_string();
  }
  return difference<std::int32_t>(received, wanted, "all_to_all with base " + std::to_string(base));
}

TEST_P(CommunicatorContract, AllToAllRoutesUnevenParts) {
  expect_success(GetParam(), [](Communicator& c) {
    std::string errors;
    for (const std::size_t base : {0UL, 3UL, 1013UL, 90001UL}) {
      for (const Home home : kHomes) {
        errors += check_all_to_all(c, base, home);
      }
    }
    return errors;
  });
}

TEST_P(CommunicatorContract, BroadcastCopiesFromAnyRoot) {
  expect_success(GetParam(), [](Communicator& c) {
    std::string errors;
    for (const std::size_t count : kCounts) {
      for (int root = 0; root < c.size(); ++root) {
        std::vector<float> data = sample<float>(c.rank(), count, 4);
        const Status status = c.broadcast(std::span{data}, root, soon());
        errors += status.ok() ? difference<float>(data, sample<float>(root, count, 4), "broadcast")
                              : status.to_string();
      }
    }
    return errors;
  });
}

TEST_P(CommunicatorContract, AllocatedMemoryIsZeroedAlignedAndOfOwnSize) {
  expect_success(GetParam(), [](Communicator& c) {
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{100000}}) {
      const std::size_t own = size * static_cast<std::size_t>(c.rank() + 1);
      const auto memory = c.allocate_bytes(own, soon());
      if (!memory) {
        return memory.status().to_string();
      }
      const bool zero = std::all_of(
          memory->begin(), memory->end(), [](std::byte byte) { return byte == std::byte{0}; });
      if (!zero || memory->size() != own ||
          reinterpret_cast<std::uintptr_t>(memory->data()) % 64 != 0) {
        return std::string{"memory is dirty, misaligned or of another size"};
      }
      std::fill(memory->begin(), memory->end(), std::byte{1});
    }
    return std::string{};
  });
}

// A long mixture of calls finds what single calls do not: state left behind by the one before.
TEST_P(CommunicatorContract, MixedStreamsOfCallsStayCorrect) {
  constexpr std::uint64_t kSeed = 20261;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  expect_success(GetParam(), [](Communicator& c) {
    Random random{kSeed};  // Identical on every rank.
    std::string errors;
    for (int call = 0; call < 60 && errors.empty(); ++call) {
      const Home home = kHomes[random.below(3)];
      const std::size_t count = random.below(2) == 0 ? random.below(300) : random.below(30000);
      switch (random.below(6)) {
        case 0:
          errors = check_all_reduce<float>(c, count, ReduceOp::kMax, home);
          break;
        case 1:
          errors = check_reduce_scatter(c, count, home);
          break;
        case 2:
          errors = check_all_gather(c, count, home);
          break;
        case 3:
          errors = check_all_to_all(c, count, home);
          break;
        case 4:
          errors = check_all_reduce<float>(c, count, ReduceOp::kSum, home);
          break;
        default:
          if (const Status status = c.barrier(soon()); !status.ok()) {
            errors = status.to_string();
          }
          break;
      }
    }
    return errors;
  });
}

}  // namespace

}  // namespace muster::comm
