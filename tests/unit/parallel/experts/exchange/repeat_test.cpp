// SPDX-License-Identifier: Apache-2.0
// Whatever arrives when: the same bits. Ranks are late at random, within bounds and by a seed.
#include "tests/unit/parallel/experts/exchange/expert_case.h"

#include <muster/common/hash.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

namespace muster::parallel::testing {

namespace {

// Spins before each barrier for up to half a millisecond.
WatchedHeap::Hook random_delays(std::uint64_t seed, int rank) {
  return [seed, rank, calls = std::uint64_t{0}](std::string_view) mutable {
    const std::uint64_t random = mix(seed, static_cast<std::uint64_t>(rank), calls++);
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds{random % 500};
    while (random % 3 != 0 && std::chrono::steady_clock::now() < until) {
    }
  };
}

class Digest {
 public:
  template <typename T>
  void add(std::span<const T> values) {
    hasher_.update(std::as_bytes(values));
  }

  [[nodiscard]] std::string text() const { return to_hex(hasher_.digest()); }

 private:
  Hasher128 hasher_;
};

// Forward and backward of two micro-batches over one plan each; every row is scaled by what the
// weights of its group begin with, so that a wrong slot changes the result.
struct Pass {
  ExpertSetup& setup;
  Findings& findings;
  Digest digest;

  void scale_rows(const EpPlan& plan, std::span<std::byte> rows) const {
    const MoveCase& test = setup.test;
    std::vector<float> values = decode(test.type, rows);
    const auto groups = static_cast<std::size_t>(test.shape.group_count());
    const std::size_t base = static_cast<std::size_t>(setup.member.rank()) * groups;
    const auto hidden = static_cast<std::size_t>(test.hidden);
    for (std::size_t g = 0; g < groups; ++g) {
      const auto begin = static_cast<std::size_t>(plan.begins[base + g]);
      const auto count = static_cast<std::size_t>(plan.group_rows[base + g]);
      if (count == 0) {
        continue;
      }
      const float scale =
          decode(setup.weight_type, setup.weights_of_group(0, 0, static_cast<int>(g)).first(4))
              .front();
      for (std::size_t i = begin * hidden; i < (begin + count) * hidden; ++i) {
        values[i] *= scale;
      }
    }
    const std::vector<std::byte> bytes = encode(test.type, values);
    std::copy(bytes.begin(), bytes.end(), rows.begin());
  }

  void run(const MoveCase& micro_batch, EpPlan& plan) {
    EpExchange& exchange = *setup.exchange;
    const int rank = setup.member.rank();
    const std::vector<std::byte> x = rows_of(micro_batch, rank);
    std::vector<std::byte> y(x.size());
    const std::vector<float> gates = gates_of(micro_batch, rank);
    std::vector<float> values(gates.size());
    EpRows received;
    findings.expect(exchange.make_plan(choices_of(micro_batch, rank), plan, soon()), "plan");
    findings.expect(exchange.prefetch(plan, setup.layers[0], soon()), "prefetch");
    findings.expect(exchange.dispatch(plan, x, gates, received, soon()), "dispatch");
    scale_rows(plan, received.rows);
    findings.expect(exchange.combine(plan, received.rows, {}, y, {}, soon()), "combine");
    digest.add(std::span<const std::byte>{y});
    findings.expect(exchange.dispatch(plan, y, {}, received, soon()), "dispatch of gradients");
    scale_rows(plan, received.rows);
    std::vector<float> row_values(static_cast<std::size_t>(plan.receive_rows), 0.5F);
    for (std::size_t i = 0; i < row_values.size(); ++i) {
      row_values[i] += static_cast<float>(i);
    }
    findings.expect(
        exchange.combine(plan, received.rows, row_values, y, values, soon()), "combine gradients");
    setup.add_slot_gradients(0, plan);
    findings.expect(exchange.reduce_gradients(plan, setup.layers[0], soon()), "reduce");
    digest.add(std::span<const std::byte>{y});
    digest.add(std::span<const float>{values});
    digest.add(std::span<const float>{setup.home_gradients(0, 0)});
    digest.add(std::span<const float>{setup.home_gradients(0, 1)});
  }
};

struct Repeated {
  std::string name;
  RanksAre kind;
  int ranks;
  DType type;
  EpNumerics numerics;
};

class Repeats : public ::testing::TestWithParam<Repeated> {};

INSTANTIATE_TEST_SUITE_P(
    Cases,
    Repeats,
    ::testing::Values(
        Repeated{"Threads", RanksAre::kThreads, 3, DType::kFloat32, EpNumerics::kPlain},
        Repeated{"ThreadsBf16", RanksAre::kThreads, 4, DType::kBFloat16, EpNumerics::kPlain},
        Repeated{"Forked", RanksAre::kProcesses, 4, DType::kFloat32, EpNumerics::kPlain},
        Repeated{
            "ForkedWireExact", RanksAre::kProcesses, 8, DType::kBFloat16, EpNumerics::kWireExact}),
    [](const auto& each) { return each.param.name; });

TEST_P(Repeats, GiveTheSameBitsWhateverArrivesWhen) {
  const Repeated& chosen = GetParam();
  MoveCase test = expert_case(chosen.ranks, Spread::kDuplicates, 21);
  test.type = chosen.type;
  test.numerics = chosen.numerics;
  test.shape.top_k = 4;
  MoveCase second = test;
  second.seed = 22;
  second.spread = Spread::kSkewed;
  second.tokens[0] = 0;
  std::vector<std::set<std::string>> seen(static_cast<std::size_t>(chosen.ranks));
  for (std::uint64_t delays = 0; delays < 4; ++delays) {
    const std::vector<std::string> reports = run_members(
        chosen.kind,
        chosen.ranks,
        expert_heap_bytes(test, DType::kBFloat16, 1),
        [&](Member& member) {
          Findings findings;
          ExpertSetup setup{member, test, DType::kBFloat16, 1};
          findings.expect(setup.error.empty(), setup.error);
          if (delays > 0) {
            member.heap.before_barrier(random_delays(delays, member.rank()));
          }
          setup.fill_home_gradients(0);
          Pass pass{setup, findings, {}};
          EpPlan later{test.shape, test.balance};
          for (int round = 0; round < 3; ++round) {
            pass.run(test, setup.plan);
            pass.run(second, later);
          }
          return findings.text().empty() ? "digest " + pass.digest.text() : findings.text();
        });
    for (std::size_t r = 0; r < reports.size(); ++r) {
      EXPECT_EQ(reports[r].rfind("digest ", 0), 0U) << "rank " << r << ": " << reports[r];
      seen[r].insert(reports[r]);
    }
  }
  for (std::size_t r = 0; r < seen.size(); ++r) {
    EXPECT_EQ(seen[r].size(), 1U) << "rank " << r << " ended differently under other delays";
  }
}

class LateRanks : public ::testing::TestWithParam<RanksAre> {};

INSTANTIATE_TEST_SUITE_P(
    Kinds,
    LateRanks,
    ::testing::Values(RanksAre::kThreads, RanksAre::kProcesses),
    [](const auto& each) { return each.param == RanksAre::kThreads ? "Threads" : "Forked"; });

// No barrier between a combine and the next operation but the operations' own.
TEST_P(LateRanks, MayStillPullWhenTheirPeersGoOn) {
  MoveCase test = expert_case(3, Spread::kUniform, 31);
  expect_members_succeed(GetParam(), 3, heap_bytes(test), [&](Member& member) {
    Findings findings;
    Mover mover{member, test};
    const int rank = member.rank();
    member.heap.before_barrier(random_delays(5, rank));
    findings.expect(mover.exchange->make_plan(choices_of(test, rank), mover.plan, soon()), "plan");
    const std::vector<std::byte> x = rows_of(test, rank);
    std::vector<std::byte> y(x.size());
    std::vector<float> twice = decode(test.type, x);
    std::for_each(twice.begin(), twice.end(), [](float& value) { value *= 2; });
    EpRows received;
    for (int round = 0; round < 20; ++round) {
      findings.expect(mover.exchange->dispatch(mover.plan, x, {}, received, soon()), "dispatch");
      std::vector<std::byte> kept(received.rows.begin(), received.rows.end());
      for (int repeat = 0; repeat < 2; ++repeat) {
        std::vector<std::byte> rows = kept;
        findings.expect(mover.exchange->combine(mover.plan, rows, {}, y, {}, soon()), "combine");
        findings.expect(decode(test.type, y) == twice, "round " + std::to_string(round));
        // The next one hands over zeros: who pulled them too early would see.
        std::vector<std::byte> zeros(kept.size());
        findings.expect(mover.exchange->combine(mover.plan, zeros, {}, y, {}, soon()), "zeros");
        const std::vector<float> sums = decode(test.type, y);
        findings.expect(
            std::all_of(sums.begin(), sums.end(), [](float value) { return value == 0; }), "zeros");
      }
    }
    return findings.text();
  });
}

TEST(ZeroCopy, ReceivedRowsAreTheChunkAndCombineCopiesNothingFirst) {
  const MoveCase test = expert_case(2, Spread::kUniform, 41);
  expect_members_succeed(RanksAre::kThreads, 2, heap_bytes(test), [&](Member& member) {
    Findings findings;
    Mover mover{member, test};
    const int rank = member.rank();
    findings.expect(mover.exchange->make_plan(choices_of(test, rank), mover.plan, soon()), "plan");
    const std::vector<std::byte> x = rows_of(test, rank);
    std::vector<std::byte> y(x.size());
    std::vector<std::byte> other_y(x.size());
    EpRows received;
    findings.expect(mover.exchange->dispatch(mover.plan, x, {}, received, soon()), "dispatch");
    const std::byte* chunk = member.heap.pointer(rank, 0);
    findings.expect(
        received.rows.data() >= chunk &&
            received.rows.data() + received.rows.size() <= chunk + member.heap.stride(),
        "rows lie outside the chunk");
    std::vector<std::byte> own(received.rows.begin(), received.rows.end());
    static_cast<void>(mover.exchange->take_event(mover.plan));
    findings.expect(mover.exchange->combine(mover.plan, received.rows, {}, y, {}, soon()), "zero");
    const std::int64_t without = mover.exchange->take_event(mover.plan).bytes_local;
    findings.expect(mover.exchange->combine(mover.plan, own, {}, other_y, {}, soon()), "copy");
    const std::int64_t with = mover.exchange->take_event(mover.plan).bytes_local;
    findings.expect(y == other_y, "the copy gives other sums");
    const std::int64_t row_bytes = test.hidden * 4;
    findings.expect(
        with - without == ep_row_count(mover.plan, rank) * row_bytes, "bytes of the copy");
    // In place: the experts' writes are what peers pull.
    findings.expect(mover.exchange->dispatch(mover.plan, x, {}, received, soon()), "again");
    auto* values = reinterpret_cast<float*>(received.rows.data());  // NOLINT
    std::fill_n(values, ep_row_count(mover.plan, rank) * test.hidden, 1.5F);
    findings.expect(mover.exchange->combine(mover.plan, received.rows, {}, y, {}, soon()), "place");
    const std::vector<float> sums = decode(test.type, y);
    findings.expect(
        std::all_of(sums.begin(), sums.end(), [](float value) { return value == 3; }), "in place");
    // A part of it is neither.
    const Status overlapping = mover.exchange->combine(
        mover.plan, {received.rows.data() + row_bytes, received.rows.size()}, {}, y, {}, soon());
    findings.expect(
        overlapping.message().find("overlap") != std::string::npos, overlapping.to_string());
    return findings.text();
  });
}

// Infinities and NaNs are values like others, and stay in their own tokens.
TEST(SpecialValues, TravelAndStayInTheirTokens) {
  MoveCase test = expert_case(2, Spread::kUniform, 43);
  test.type = DType::kBFloat16;
  test.numerics = EpNumerics::kWireExact;
  expect_members_succeed(RanksAre::kThreads, 2, heap_bytes(test), [&](Member& member) {
    Findings findings;
    Mover mover{member, test};
    const int rank = member.rank();
    findings.expect(mover.exchange->make_plan(choices_of(test, rank), mover.plan, soon()), "plan");
    std::vector<float> x(static_cast<std::size_t>(24 * test.hidden), 1.0F);
    const auto hidden = static_cast<std::size_t>(test.hidden);
    x[3 * hidden] = std::numeric_limits<float>::quiet_NaN();
    x[5 * hidden + 1] = std::numeric_limits<float>::infinity();
    x[6 * hidden] = 3.0e38F;  // twice it overflows
    const std::vector<std::byte> rows = encode(test.type, x);
    std::vector<std::byte> y(rows.size());
    EpRows received;
    findings.expect(mover.exchange->dispatch(mover.plan, rows, {}, received, soon()), "dispatch");
    findings.expect(mover.exchange->combine(mover.plan, received.rows, {}, y, {}, soon()), "sum");
    std::vector<float> sums = decode(test.type, y);
    findings.expect(std::isnan(sums[3 * hidden]), "NaN");
    findings.expect(std::isinf(sums[5 * hidden + 1]), "infinity");
    findings.expect(std::isinf(sums[6 * hidden]), "overflow");
    for (const std::size_t special : {3 * hidden, 5 * hidden + 1, 6 * hidden}) {
      sums[special] = 2;
    }
    findings.expect(
        std::all_of(sums.begin(), sums.end(), [](float value) { return value == 2; }), "others");
    return findings.text();
  });
}

}  // namespace

}  // namespace muster::parallel::testing
