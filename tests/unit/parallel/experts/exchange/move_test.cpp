// SPDX-License-Identifier: Apache-2.0
// Rows to the ranks that compute them, and back.
#include "tests/unit/parallel/experts/exchange/case.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <numeric>

namespace muster::parallel::testing {

namespace {

std::string at(const Origin& origin) {
  return "rank " + std::to_string(origin.rank) + " token " + std::to_string(origin.token) +
         " choice " + std::to_string(origin.choice);
}

bool same_bits(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

std::size_t rows_on(const EpPlan& plan, int rank) {
  return static_cast<std::size_t>(ep_row_count(plan, rank));
}

// --- checks of one rank ---

void expect_rows(
    Findings& findings,
    const MoveCase& test,
    const EpPlan& plan,
    const EpRows& received,
    int rank,
    bool with_gates) {
  const std::vector<Origin> from = origins(test, plan, rank);
  const std::vector<float> rows = decode(test.type, received.rows);
  for (std::size_t i = 0; i < rows_on(plan, rank); ++i) {
    const bool is_row = from[i].rank >= 0;
    for (std::int64_t h = 0; h < test.hidden; ++h) {
      const float wanted = is_row ? input(test, from[i].rank, from[i].token, h) : 0;
      const float got =
          rows[i * static_cast<std::size_t>(test.hidden) + static_cast<std::size_t>(h)];
      findings.expect(same_bits(got, wanted), "row " + std::to_string(i) + " of " + at(from[i]));
    }
    if (with_gates) {
      const float wanted = is_row ? gate(test, from[i].rank, from[i].token, from[i].choice) : 0;
      findings.expect(
          same_bits(received.weights[i], wanted),
          "gate " + std::to_string(i) + " of " + at(from[i]));
    }
  }
}

// Outputs of this rank's experts for its rows.
std::vector<float> outputs_of(const MoveCase& test, const EpPlan& plan, int rank) {
  const auto hidden = static_cast<std::size_t>(test.hidden);
  const std::vector<Origin> from = origins(test, plan, rank);
  std::vector<float> values(from.size() * hidden, 0.0F);
  for (std::size_t i = 0; i < from.size(); ++i) {
    for (std::size_t h = 0; from[i].rank >= 0 && h < hidden; ++h) {
      values[i * hidden + h] =
          output(test, from[i].rank, from[i].token, from[i].choice, static_cast<std::int64_t>(h));
    }
  }
  return values;
}

void expect_sums(
    Findings& findings,
    const MoveCase& test,
    const EpPlan& plan,
    std::span<const std::byte> y,
    int rank) {
  const std::vector<float> sums = decode(test.type, y);
  const std::vector<int> where = computing_ranks(test, plan, rank);
  for (std::int64_t t = 0; t < test.tokens[static_cast<std::size_t>(rank)]; ++t) {
    const std::vector<float> wanted = expected_sum(test, where, rank, t);
    findings.expect(
        std::memcmp(wanted.data(), sums.data() + t * test.hidden, wanted.size() * sizeof(float)) ==
            0,
        "sum of token " + std::to_string(t));
  }
}

class Movement : public ::testing::TestWithParam<MoveCase> {};

INSTANTIATE_TEST_SUITE_P(
    Cases, Movement, ::testing::ValuesIn(move_cases()), [](const auto& chosen) {
      return chosen.param.name;
    });

TEST_P(Movement, PutsEveryRowAndGateWhereThePlanSaysAndZeroesPadding) {
  const MoveCase& test = GetParam();
  expect_members_succeed(
      RanksAre::kThreads, test.shape.ranks, heap_bytes(test), [&](Member& member) {
        Findings findings;
        Mover mover{member, test};
        findings.expect(mover.exchange != nullptr, mover.error);
        if (!mover.exchange) {
          return findings.text();
        }
        const int rank = member.rank();
        EpRows received;
        // Twice: the second finds what the first has left.
        for (int round = 0; round < 2; ++round) {
          findings.expect(
              mover.exchange->make_plan(choices_of(test, rank), mover.plan, soon()), "make_plan");
          findings.expect(check_plan(mover.plan, test.balance), "check_plan");
          findings.expect(
              mover.exchange->dispatch(
                  mover.plan, rows_of(test, rank), gates_of(test, rank), received, soon()),
              "dispatch");
          if (!findings.text().empty()) {
            return findings.text();
          }
          expect_rows(findings, test, mover.plan, received, rank, true);
          std::memset(received.rows.data(), 0x7F, received.rows.size());
        }
        return findings.text();
      });
}

TEST_P(Movement, SumsATokensRowsBitForBitInTheOrderOfItsChoices) {
  const MoveCase& test = GetParam();
  expect_members_succeed(
      RanksAre::kThreads, test.shape.ranks, heap_bytes(test), [&](Member& member) {
        Findings findings;
        Mover mover{member, test};
        const int rank = member.rank();
        findings.expect(
            mover.exchange->make_plan(choices_of(test, rank), mover.plan, soon()), "make_plan");
        std::vector<std::byte> rows = encode(test.type, outputs_of(test, mover.plan, rank));
        std::vector<std::byte> y(rows_of(test, rank).size());
        findings.expect(mover.exchange->combine(mover.plan, rows, {}, y, {}, soon()), "combine");
        expect_sums(findings, test, mover.plan, y, rank);
        return findings.text();
      });
}

TEST_P(Movement, ComesBackAsManyTimesAsItWasSent) {
  const MoveCase& test = GetParam();
  expect_members_succeed(
      RanksAre::kThreads, test.shape.ranks, heap_bytes(test), [&](Member& member) {
        Findings findings;
        Mover mover{member, test};
        const int rank = member.rank();
        const std::vector<std::byte> x = rows_of(test, rank);
        std::vector<std::byte> y(x.size());
        EpRows received;
        findings.expect(
            mover.exchange->make_plan(choices_of(test, rank), mover.plan, soon()), "make_plan");
        findings.expect(
            mover.exchange->dispatch(mover.plan, x, gates_of(test, rank), received, soon()),
            "dispatch");
        findings.expect(
            mover.exchange->combine(mover.plan, received.rows, {}, y, {}, soon()), "combine");
        std::vector<float> wanted = decode(test.type, x);
        for (float& value : wanted) {
          value *= static_cast<float>(test.shape.top_k);
        }
        findings.expect(decode(test.type, y) == wanted, "y is not top_k * x");
        return findings.text();
      });
}

TEST_P(Movement, BringsTheValueOfEveryRowHomeToItsChoice) {
  const MoveCase& test = GetParam();
  expect_members_succeed(
      RanksAre::kThreads, test.shape.ranks, heap_bytes(test), [&](Member& member) {
        Findings findings;
        Mover mover{member, test};
        const int rank = member.rank();
        findings.expect(
            mover.exchange->make_plan(choices_of(test, rank), mover.plan, soon()), "make_plan");
        const std::vector<Origin> from = origins(test, mover.plan, rank);
        std::vector<float> row_values(from.size());
        for (std::size_t i = 0; i < from.size(); ++i) {
          row_values[i] =
              from[i].rank < 0 ? -1 : gate(test, from[i].rank, from[i].token, from[i].choice);
        }
        std::vector<std::byte> rows = encode(test.type, outputs_of(test, mover.plan, rank));
        std::vector<std::byte> y(rows_of(test, rank).size());
        const std::vector<float> wanted = gates_of(test, rank);
        std::vector<float> values(wanted.size());
        findings.expect(
            mover.exchange->combine(mover.plan, rows, row_values, y, values, soon()), "combine");
        findings.expect(values == wanted, "values");
        expect_sums(findings, test, mover.plan, y, rank);
        return findings.text();
      });
}

TEST_P(Movement, GoesAgainByASavedPlanWithoutGates) {
  const MoveCase& test = GetParam();
  MoveCase other = test;
  other.seed += 1000;
  expect_members_succeed(
      RanksAre::kThreads, test.shape.ranks, heap_bytes(test), [&](Member& member) {
        Findings findings;
        Mover mover{member, test};
        EpPlan later{test.shape, test.balance};
        const int rank = member.rank();
        EpExchange& exchange = *mover.exchange;
        EpRows received;
        findings.expect(exchange.make_plan(choices_of(test, rank), mover.plan, soon()), "saved");
        findings.expect(exchange.make_plan(choices_of(other, rank), later, soon()), "later");
        findings.expect(
            exchange.dispatch(later, rows_of(other, rank), gates_of(other, rank), received, soon()),
            "dispatch of the later");
        expect_rows(findings, other, later, received, rank, true);
        const bool has_tokens = std::accumulate(test.tokens.begin(), test.tokens.end(), 0) > 0;
        findings.expect(
            exchange.dispatch(mover.plan, rows_of(test, rank), {}, received, soon()),
            "dispatch of the saved");
        expect_rows(findings, test, mover.plan, received, rank, false);
        findings.expect(received.weights.empty() == has_tokens, "weights without gates");
        return findings.text();
      });
}

// Room for half a million tokens per rank, of which few come: only their pages are taken.
TEST(LargeChunks, OffsetsBeyondTwoToThe32AreReached) {
  MoveCase test = move_cases().front();
  test.shape.tokens_max = std::int64_t{1} << 19;
  test.hidden = 1536;
  ASSERT_GT(heap_bytes(test), std::size_t{1} << 32);
  expect_members_succeed(RanksAre::kThreads, 2, heap_bytes(test), [&](Member& member) {
    Findings findings;
    Mover mover{member, test};
    findings.expect(mover.exchange != nullptr, mover.error);
    if (!mover.exchange) {
      return findings.text();
    }
    const int rank = member.rank();
    const std::vector<std::byte> x = rows_of(test, rank);
    std::vector<std::byte> y(x.size());
    EpRows received;
    findings.expect(mover.exchange->make_plan(choices_of(test, rank), mover.plan, soon()), "plan");
    findings.expect(
        mover.exchange->dispatch(mover.plan, x, gates_of(test, rank), received, soon()),
        "dispatch");
    const std::vector<Origin> from = origins(test, mover.plan, rank);
    for (std::size_t i = 0; i < rows_on(mover.plan, rank); ++i) {
      findings.expect(
          received.weights[i] == gate(test, from[i].rank, from[i].token, from[i].choice), "gates");
    }
    findings.expect(
        mover.exchange->combine(mover.plan, received.rows, {}, y, {}, soon()), "combine");
    std::vector<float> wanted = decode(test.type, x);
    for (float& value : wanted) {
      value *= static_cast<float>(test.shape.top_k);
    }
    findings.expect(decode(test.type, y) == wanted, "y is not top_k * x");
    return findings.text();
  });
}

}  // namespace

}  // namespace muster::parallel::testing
