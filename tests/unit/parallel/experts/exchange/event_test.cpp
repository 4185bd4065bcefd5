// SPDX-License-Identifier: Apache-2.0
// Events, compared with counts recomputed from choices and tables.
#include "tests/unit/parallel/experts/exchange/expert_case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <numeric>

namespace muster::parallel::testing {

namespace {

constexpr std::int64_t kGate = 4;  // bytes of a weight or value

// Rows and bytes of the movement, by docs/concepts/experts.md: for a token, once per rank that
// computes it.
struct Traffic {
  std::int64_t firsts_out{0};  // rows to other ranks
  std::int64_t firsts_in{0};
  std::int64_t firsts_here{0};
  std::int64_t choices_out{0};
  std::int64_t choices_in{0};
  std::int64_t choices_here{0};
  std::int64_t repeats{0};       // choices of this rank's tokens that were not sent
  std::int64_t repeats_here{0};  // rows that this rank copied for itself
};

Traffic traffic_of(const MoveCase& test, const EpPlan& plan, int rank) {
  Traffic traffic;
  const auto top_k = static_cast<std::size_t>(test.shape.top_k);
  for (int home = 0; home < test.shape.ranks; ++home) {
    const std::vector<int> where = computing_ranks(test, plan, home);
    for (std::size_t i = 0; i < where.size(); ++i) {
      const auto token = where.begin() + static_cast<std::ptrdiff_t>(i / top_k * top_k);
      const auto self = where.begin() + static_cast<std::ptrdiff_t>(i);
      const bool is_first = std::find(token, self, where[i]) == self;
      const bool here = where[i] == rank;
      if (home == rank) {
        traffic.repeats += is_first ? 0 : 1;
        (here ? traffic.choices_here : traffic.choices_out) += 1;
        (here ? traffic.firsts_here : traffic.firsts_out) += is_first ? 1 : 0;
      } else if (here) {
        ++traffic.choices_in;
        traffic.firsts_in += is_first ? 1 : 0;
      }
      traffic.repeats_here += here && !is_first ? 1 : 0;
    }
  }
  return traffic;
}

void expect_number(
    Findings& findings, std::int64_t got, std::int64_t wanted, const std::string& what) {
  findings.expect(
      got == wanted, what + " is " + std::to_string(got) + ", not " + std::to_string(wanted));
}

// Fields that are the plan's.
void expect_plan_fields(
    Findings& findings, const MoveCase& test, const EpPlan& plan, const EpEvent& event) {
  const int ranks = test.shape.ranks;
  const int local = test.shape.local_experts();
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(test.shape.experts), 0);
  std::vector<std::int64_t> loads(static_cast<std::size_t>(ranks), 0);
  for (int r = 0; r < ranks; ++r) {
    for (const std::int32_t expert : choices_of(test, r)) {
      ++tokens[static_cast<std::size_t>(expert)];
      ++loads[static_cast<std::size_t>(expert / local)];
    }
  }
  const auto total = std::accumulate(tokens.begin(), tokens.end(), std::int64_t{0});
  const auto most = static_cast<double>(*std::max_element(tokens.begin(), tokens.end()));
  const auto heaviest = static_cast<double>(*std::max_element(loads.begin(), loads.end()));
  const auto rows = static_cast<double>(total);
  findings.expect(
      std::abs(event.max_violation - (most * test.shape.experts / rows - 1)) < 1e-12, "maxvio");
  findings.expect(std::abs(event.rank_imbalance - heaviest * ranks / rows) < 1e-12, "imbalance");
  std::int64_t copies = 0;
  std::int64_t moved = 0;
  std::int64_t padding = -total;
  std::vector<std::int64_t> in(loads.size(), 0);
  std::vector<std::int64_t> out(loads.size(), 0);
  for (int d = 0; d < ranks; ++d) {
    padding += ep_row_count(plan, d);
    for (int e = 0; e < test.shape.experts; ++e) {
      const auto at = plan.rows[static_cast<std::size_t>(std::int64_t{d} * test.shape.experts + e)];
      if (at > 0 && e / local != d) {
        moved += at;
        ++copies;
        ++in[static_cast<std::size_t>(d)];
        ++out[static_cast<std::size_t>(e / local)];
      }
    }
  }
  expect_number(findings, event.ranks, ranks, "ranks");
  expect_number(findings, event.rows, total, "rows");
  expect_number(findings, event.copies, copies, "copies");
  expect_number(findings, event.copies_in_max, *std::max_element(in.begin(), in.end()), "in");
  expect_number(findings, event.copies_out_max, *std::max_element(out.begin(), out.end()), "out");
  expect_number(findings, event.rows_moved, moved, "rows_moved");
  expect_number(findings, event.pad_rows, padding, "pad_rows");
  findings.expect(event.plan_hash == plan.hash, "plan_hash");
}

struct Bytes {
  std::int64_t out{0};
  std::int64_t in{0};
  std::int64_t local{0};
};

void expect_bytes(
    Findings& findings, const EpEvent& event, const Bytes& wanted, const std::string& what) {
  expect_number(findings, event.bytes_out, wanted.out, what + ": bytes_out");
  expect_number(findings, event.bytes_in, wanted.in, what + ": bytes_in");
  expect_number(findings, event.bytes_local, wanted.local, what + ": bytes_local");
}

std::vector<MoveCase> event_cases() {
  std::vector<MoveCase> cases = move_cases();
  std::erase_if(cases, [](const MoveCase& test) {
    return test.name == "AllRanksEmpty" || test.name == "FewSlots";  // no ratios; overflow
  });
  return cases;
}

class Event : public ::testing::TestWithParam<MoveCase> {};

INSTANTIATE_TEST_SUITE_P(Cases, Event, ::testing::ValuesIn(event_cases()), [](const auto& each) {
  return each.param.name;
});

TEST_P(Event, CountsRowsAndBytesOfDispatchAndCombineByTheFormulas) {
  const MoveCase& test = GetParam();
  expect_members_succeed(
      RanksAre::kThreads, test.shape.ranks, heap_bytes(test), [&](Member& member) {
        Findings findings;
        Mover mover{member, test};
        EpExchange& exchange = *mover.exchange;
        const int rank = member.rank();
        findings.expect(exchange.make_plan(choices_of(test, rank), mover.plan, soon()), "plan");
        const Traffic traffic = traffic_of(test, mover.plan, rank);
        const std::int64_t row = size_bytes(test.type, test.hidden);
        const std::vector<std::byte> x = rows_of(test, rank);
        std::vector<std::byte> y(x.size());
        EpRows received;
        EpEvent event = exchange.take_event(mover.plan);
        expect_plan_fields(findings, test, mover.plan, event);
        expect_bytes(findings, event, {}, "make_plan");

        findings.expect(
            exchange.dispatch(mover.plan, x, gates_of(test, rank), received, soon()), "dispatch");
        event = exchange.take_event(mover.plan);
        expect_number(findings, event.rows_out, traffic.firsts_out, "rows_out");
        expect_number(findings, event.dedup_rows, traffic.repeats, "dedup_rows");
        expect_bytes(
            findings,
            event,
            {traffic.firsts_out * row + traffic.choices_out * kGate,
             traffic.firsts_in * row + traffic.choices_in * kGate,
             (traffic.firsts_here + traffic.repeats_here) * row + traffic.choices_here * kGate},
            "dispatch");

        // Backward: no gates; values of rows return to their tokens.
        findings.expect(exchange.dispatch(mover.plan, x, {}, received, soon()), "again");
        event = exchange.take_event(mover.plan);
        expect_bytes(
            findings,
            event,
            {traffic.firsts_out * row,
             traffic.firsts_in * row,
             (traffic.firsts_here + traffic.repeats_here) * row},
            "dispatch without gates");

        const std::vector<float> row_values(static_cast<std::size_t>(mover.plan.receive_rows), 1);
        std::vector<float> values(gates_of(test, rank).size());
        findings.expect(
            exchange.combine(mover.plan, received.rows, row_values, y, values, soon()), "combine");
        event = exchange.take_event(mover.plan);
        // bf16 rows without intermediate rounding are sent one by one.
        const bool apart = test.type == DType::kBFloat16 && test.numerics == EpNumerics::kPlain;
        const std::int64_t staged = ep_row_count(mover.plan, rank) * kGate;
        const std::int64_t pulled = apart ? traffic.choices_out : traffic.firsts_out;
        const std::int64_t given = apart ? traffic.choices_in : traffic.firsts_in;
        const std::int64_t here =
            apart ? traffic.choices_here : traffic.firsts_here + traffic.repeats_here;
        expect_bytes(
            findings,
            event,
            {given * row + traffic.choices_in * kGate,
             pulled * row + traffic.choices_out * kGate,
             here * row + traffic.choices_here * kGate + staged},
            "combine");
        return findings.text();
      });
}

TEST(ExpertEvent, CountsExpertsAwayAndGradientsHome) {
  const MoveCase test = expert_case(4, Spread::kSkewed, 51);
  expect_members_succeed(
      RanksAre::kThreads, 4, expert_heap_bytes(test, DType::kBFloat16, 1), [&](Member& member) {
        Findings findings;
        ExpertSetup setup{member, test, DType::kBFloat16, 1};
        findings.expect(setup.error.empty(), setup.error);
        std::int64_t elements = 0;
        for (const EpProjection& projection : two_projections()) {
          elements += projection.rows * projection.cols;
        }
        std::int64_t sent = 0;
        std::int64_t got = 0;
        for (int peer = 0; peer < 4; ++peer) {
          for (int slot = 0; slot < test.shape.slot_count(); ++slot) {
            const int expert = setup.slot_expert(setup.plan, peer, slot);
            sent += expert >= 0 && expert / test.shape.local_experts() == member.rank() ? 1 : 0;
            got += expert >= 0 && peer == member.rank() ? 1 : 0;
          }
        }
        static_cast<void>(setup.exchange->take_event(setup.plan));
        findings.expect(setup.exchange->prefetch(setup.plan, setup.layers[0], soon()), "prefetch");
        expect_bytes(
            findings,
            setup.exchange->take_event(setup.plan),
            {sent * elements * 2, got * elements * 2, 0},
            "prefetch");
        findings.expect(
            setup.exchange->reduce_gradients(setup.plan, setup.layers[0], soon()), "reduce");
        expect_bytes(
            findings,
            setup.exchange->take_event(setup.plan),
            {got * elements * 4, sent * elements * 4, 0},
            "reduce");
        return findings.text();
      });
}

TEST(EventTimes, AreThoseOfBarriersAndOperationsAndStartAgain) {
  const MoveCase test = expert_case(3, Spread::kUniform, 52);
  expect_members_succeed(RanksAre::kThreads, 3, heap_bytes(test), [&](Member& member) {
    Findings findings;
    Mover mover{member, test};
    const int rank = member.rank();
    static_cast<void>(mover.exchange->take_event(mover.plan));
    const std::vector<std::int64_t> before = member.heap.waited();
    const auto start = std::chrono::steady_clock::now();
    findings.expect(mover.exchange->make_plan(choices_of(test, rank), mover.plan, soon()), "plan");
    EpRows received;
    findings.expect(
        mover.exchange->dispatch(mover.plan, rows_of(test, rank), {}, received, soon()),
        "dispatch");
    const std::int64_t elapsed =
        std::chrono::nanoseconds{std::chrono::steady_clock::now() - start}.count();
    const EpEvent event = mover.exchange->take_event(mover.plan);
    for (std::size_t peer = 0; peer < 3; ++peer) {
      expect_number(
          findings, event.wait_ns[peer], member.heap.waited()[peer] - before[peer], "waited");
    }
    expect_number(findings, event.wait_ns[static_cast<std::size_t>(rank)], 0, "waited for itself");
    findings.expect(event.plan_ns > 0 && event.move_ns > 0, "no time passed");
    findings.expect(event.plan_ns + event.move_ns <= elapsed, "more time than there was");
    const EpEvent next = mover.exchange->take_event(mover.plan);
    findings.expect(
        next.plan_ns == 0 && next.move_ns == 0 && next.rows_out == 0 && next.bytes_local == 0 &&
            next.wait_ns == std::array<std::int64_t, kEpEventRanksMax>{},
        "an event was not taken");
    return findings.text();
  });
}

}  // namespace

}  // namespace muster::parallel::testing
