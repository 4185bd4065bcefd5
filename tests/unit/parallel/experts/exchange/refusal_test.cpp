// SPDX-License-Identifier: Apache-2.0
// Refusals, their messages and the ranks that return them, before any data moves.
#include "tests/unit/parallel/experts/exchange/expert_case.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace muster::parallel::testing {

namespace {

bool holds(const Status& status, const std::string& part) {
  return status.message().find(part) != std::string::npos;
}

void expect_refusal(
    Findings& findings, const Status& status, StatusCode code, const std::string& part) {
  findings.expect(
      status.code() == code && holds(status, part),
      "wanted \"" + part + "\", got " + status.to_string());
}

MoveCase plain_case() {
  MoveCase test = expert_case(3, Spread::kUniform, 61);
  test.tokens = {24, 24, 9};
  return test;
}

using MoverWork = std::function<void(Mover&, int rank, Findings&)>;

void expect_each(const MoveCase& test, const MoverWork& work) {
  expect_members_succeed(
      RanksAre::kThreads, test.shape.ranks, heap_bytes(test), [&](Member& member) {
        Findings findings;
        Mover mover{member, test};
        findings.expect(mover.exchange != nullptr, mover.error);
        if (mover.exchange) {
          work(mover, member.rank(), findings);
        }
        return findings.text();
      });
}

// After a refusal all ranks are where they were.
void expect_goes_on(Findings& findings, const MoveCase& test, Mover& mover, int rank) {
  const std::vector<std::byte> x = rows_of(test, rank);
  std::vector<std::byte> y(x.size());
  EpRows received;
  findings.expect(mover.exchange->make_plan(choices_of(test, rank), mover.plan, soon()), "plan");
  findings.expect(mover.exchange->dispatch(mover.plan, x, {}, received, soon()), "dispatch");
  findings.expect(mover.exchange->combine(mover.plan, received.rows, {}, y, {}, soon()), "combine");
  std::vector<float> wanted = decode(test.type, x);
  std::for_each(wanted.begin(), wanted.end(), [](float& value) { value *= 2; });
  findings.expect(decode(test.type, y) == wanted, "does not go on");
}

// --- choices ---

TEST(RefusedChoices, OfOneRankAreEveryRanksStatusAndNameItTokenAndExpert) {
  const MoveCase test = plain_case();
  for (const std::int32_t expert : {-1, 6, 1 << 30}) {
    expect_each(test, [&](Mover& mover, int rank, Findings& findings) {
      std::vector<std::int32_t> choices = choices_of(test, rank);
      if (rank == 1) {
        choices[7] = expert;
      }
      for (int repeat = 0; repeat < 3; ++repeat) {
        const Status status = mover.exchange->make_plan(choices, mover.plan, soon());
        expect_refusal(
            findings,
            status,
            StatusCode::kInvalidArgument,
            "rank 1, make_plan: choice 1 of token 3 is expert " + std::to_string(expert) +
                ", there are 6");
      }
      expect_goes_on(findings, test, mover, rank);
    });
  }
}

TEST(RefusedChoices, MoreTokensThanTheExchangeHasRoomFor) {
  const MoveCase test = plain_case();
  expect_each(test, [&](Mover& mover, int rank, Findings& findings) {
    const std::vector<std::int32_t> many(rank == 2 ? 50 : 48, 0);
    expect_refusal(
        findings,
        mover.exchange->make_plan(many, mover.plan, soon()),
        StatusCode::kInvalidArgument,
        "rank 2, make_plan: 50 choices are not [tokens, 2] with at most 24 tokens");
    const std::vector<std::int32_t> odd(rank == 0 ? 7 : 8, 0);
    expect_refusal(
        findings,
        mover.exchange->make_plan(odd, mover.plan, soon()),
        StatusCode::kInvalidArgument,
        "rank 0, make_plan: 7 choices");
    expect_goes_on(findings, test, mover, rank);
  });
}

// Choices that change between their count and their use.
TEST(RefusedChoices, ThatDisagreeWithTheirCounts) {
  const MoveCase test = plain_case();
  expect_members_succeed(RanksAre::kThreads, 3, heap_bytes(test), [&](Member& member) {
    Findings findings;
    Mover mover{member, test};
    std::vector<std::int32_t> choices = choices_of(test, member.rank());
    if (member.rank() == 1) {
      member.heap.before_barrier([&](std::string_view) { choices[0] = choices[0] == 0 ? 1 : 0; });
    }
    const Status status = mover.exchange->make_plan(choices, mover.plan, soon());
    expect_refusal(findings, status, StatusCode::kInvalidArgument, "rank 1, make_plan: ");
    member.heap.before_barrier({});
    expect_goes_on(findings, test, mover, member.rank());
    return findings.text();
  });
}

TEST(RefusedPlans, ThatRanksMadeDifferentlyNameTheRanks) {
  MoveCase test = plain_case();
  test.balance.capacity_max = 1.5;
  expect_each(test, [&](Mover& mover, int rank, Findings& findings) {
    const std::vector<double> equal{1, 1, 1};
    const std::vector<double> slow{1, 1, 0.9};
    if (rank == 2) {
      findings.expect(mover.exchange->planner().set_speeds(slow), "set_speeds");
    }
    expect_refusal(
        findings,
        mover.exchange->make_plan(choices_of(test, rank), mover.plan, soon()),
        StatusCode::kDataLoss,
        "plans made of the same counts differ: that of rank 2 (");
    findings.expect(mover.exchange->planner().set_speeds(equal), "set_speeds");
    expect_goes_on(findings, test, mover, rank);
  });
}

// --- plans of something else ---

TEST(RefusedPlans, OfAnotherHistogramMoveNothing) {
  const MoveCase test = plain_case();
  MoveCase other = test;
  other.seed += 1;
  expect_each(test, [&](Mover& mover, int rank, Findings& findings) {
    EpPlan second{test.shape, test.balance};
    EpRows received;
    const std::vector<std::byte> x = rows_of(test, rank);
    std::vector<std::byte> y(x.size());
    findings.expect(mover.exchange->make_plan(choices_of(test, rank), mover.plan, soon()), "one");
    findings.expect(mover.exchange->dispatch(mover.plan, x, {}, received, soon()), "dispatch");
    findings.expect(mover.exchange->make_plan(choices_of(other, rank), second, soon()), "two");
    const std::vector<std::byte> before(received.rows.begin(), received.rows.end());
    const EpPlan& mine = rank == 1 ? second : mover.plan;
    expect_refusal(
        findings,
        mover.exchange->dispatch(mine, x, {}, received, soon()),
        StatusCode::kInvalidArgument,
        "dispatch got different plans or layers: that of rank 1 (");
    findings.expect(
        std::equal(before.begin(), before.end(), received.rows.begin()), "rows have moved");
    expect_refusal(
        findings,
        mover.exchange->combine(mine, received.rows, {}, y, {}, soon()),
        StatusCode::kInvalidArgument,
        "combine got different plans");
    findings.expect(
        std::all_of(y.begin(), y.end(), [](std::byte each) { return each == std::byte{0}; }),
        "sums have moved");
    expect_goes_on(findings, test, mover, rank);
  });
}

TEST(RefusedPlans, OfAnotherShapeBalanceOrRankOrOfAPlannerAlone) {
  const MoveCase test = plain_case();
  expect_each(test, [&](Mover& mover, int rank, Findings& findings) {
    EpRows received;
    const std::vector<std::byte> x = rows_of(test, rank);
    const auto dispatched = [&](const EpPlan& plan) {
      return mover.exchange->dispatch(plan, x, {}, received, soon());
    };
    findings.expect(mover.exchange->make_plan(choices_of(test, rank), mover.plan, soon()), "plan");

    EpShape more = test.shape;
    more.experts = 9;
    const EpPlan other_shape{more, test.balance};
    expect_refusal(
        findings, dispatched(other_shape), StatusCode::kInvalidArgument, "3 ranks, 9 experts");
    EpPlan to_fill{more, test.balance};
    expect_refusal(
        findings,
        mover.exchange->make_plan(choices_of(test, rank), to_fill, soon()),
        StatusCode::kInvalidArgument,
        "the plan to fill has another shape");

    EpBalance ordinary;
    ordinary.mode = EpBalanceMode::kNone;
    const EpPlan other_balance{test.shape, ordinary};
    expect_refusal(
        findings, dispatched(other_balance), StatusCode::kInvalidArgument, "their balance differs");

    EpPlan of_planner{test.shape, test.balance};
    findings.expect(mover.exchange->planner().plan(mover.plan.counts, of_planner), "plan");
    expect_refusal(
        findings, dispatched(of_planner), StatusCode::kInvalidArgument, "one of make_plan can");

    EpPlan of_another = mover.plan;
    of_another.rank = (rank + 1) % 3;
    expect_refusal(
        findings, dispatched(of_another), StatusCode::kInvalidArgument, "each rank keeps its own");
    expect_goes_on(findings, test, mover, rank);
  });
}

// --- sizes ---

TEST(RefusedSizes, AreNamedByTheRankThatGaveThem) {
  const MoveCase test = plain_case();
  expect_each(test, [&](Mover& mover, int rank, Findings& findings) {
    EpExchange& exchange = *mover.exchange;
    EpRows got;
    const std::vector<std::byte> x = rows_of(test, rank);
    const std::vector<float> gates = gates_of(test, rank);
    findings.expect(exchange.make_plan(choices_of(test, rank), mover.plan, soon()), "plan");
    const auto cut = [&](auto values) {  // one short on rank 1 only
      if (rank == 1) {
        values.pop_back();
      }
      return values;
    };
    const auto refused = [&](const Status& status, const std::string& part) {
      expect_refusal(findings, status, StatusCode::kInvalidArgument, part);
    };
    refused(
        exchange.dispatch(mover.plan, cut(x), {}, got, soon()),
        "rank 1, dispatch: x has 767 bytes; the plan is of 24 tokens of 32 bytes");
    refused(
        exchange.dispatch(mover.plan, x, cut(gates), got, soon()), "rank 1, dispatch: 47 gates");
    refused(
        exchange.dispatch(
            mover.plan, x, rank == 2 ? std::span<const float>{} : std::span{gates}, got, soon()),
        "rank 0 sends gates, rank 2 does not");
    findings.expect(exchange.dispatch(mover.plan, x, gates, got, soon()), "dispatch");
    const std::vector<std::byte> rows(got.rows.begin(), got.rows.end());
    std::vector<std::byte> y(x.size());
    std::vector<float> values(gates.size());
    std::vector<float> row_values(rows.size() / 32);
    std::vector<std::byte> short_rows = cut(rows);
    refused(
        exchange.combine(mover.plan, short_rows, {}, y, {}, soon()),
        "rank 1, combine: rows must be");
    std::vector<std::byte> own = rows;
    std::vector<std::byte> short_y = cut(y);
    refused(exchange.combine(mover.plan, own, {}, short_y, {}, soon()), "combine: y has 767 bytes");
    std::vector<float> few = cut(row_values);
    refused(exchange.combine(mover.plan, own, few, y, values, soon()), "row values: ");
    expect_goes_on(findings, test, mover, rank);
  });
}

// --- orders ---

// There is no way back from this one: who knows which call is missing?
TEST(RefusedOrders, RanksThatCallDifferentOperationsLearnIt) {
  const MoveCase test = plain_case();
  const auto reports =
      run_members(RanksAre::kThreads, 3, heap_bytes(test), [&](Member& member) -> std::string {
        Mover mover{member, test};
        const int rank = member.rank();
        const std::vector<std::byte> x = rows_of(test, rank);
        std::vector<std::byte> y(x.size());
        EpRows received;
        MUSTER_CHECK(
            mover.exchange->make_plan(choices_of(test, rank), mover.plan, soon()).ok() &&
                mover.exchange->dispatch(mover.plan, x, {}, received, soon()).ok(),
            "until then all is well");
        return (rank == 1 ? mover.exchange->dispatch(mover.plan, x, {}, received, soon())
                          : mover.exchange->combine(mover.plan, received.rows, {}, y, {}, soon()))
            .to_string();
      });
  for (const std::string& report : reports) {
    EXPECT_NE(report.find("rank 1 at that of 'dispatch, entry'"), std::string::npos) << report;
    EXPECT_NE(report.find("'combine'"), std::string::npos) << report;
  }
}

TEST(RefusedOrders, ValuesGoHomeFromAllRanksOrNone) {
  const MoveCase test = plain_case();
  expect_each(test, [&](Mover& mover, int rank, Findings& findings) {
    const std::vector<std::byte> x = rows_of(test, rank);
    std::vector<std::byte> y(x.size());
    EpRows received;
    findings.expect(mover.exchange->make_plan(choices_of(test, rank), mover.plan, soon()), "plan");
    findings.expect(mover.exchange->dispatch(mover.plan, x, {}, received, soon()), "dispatch");
    std::vector<float> row_values;
    std::vector<float> values;
    if (rank == 1) {
      row_values.resize(static_cast<std::size_t>(mover.plan.receive_rows));
      values.resize(gates_of(test, rank).size());
    }
    expect_refusal(
        findings,
        mover.exchange->combine(mover.plan, received.rows, row_values, y, values, soon()),
        StatusCode::kInvalidArgument,
        "rank 1 calls combine with row values where rank 0 calls combine");
    expect_goes_on(findings, test, mover, rank);
  });
}

TEST(RefusedLayers, DifferentOnesAndTooFewProjections) {
  const MoveCase test = expert_case(3, Spread::kOneExpert, 62);
  const std::size_t bytes = expert_heap_bytes(test, DType::kFloat32, 2);
  expect_members_succeed(RanksAre::kThreads, 3, bytes, [&](Member& member) {
    Findings findings;
    ExpertSetup setup{member, test, DType::kFloat32, 2};
    findings.expect(setup.error.empty(), setup.error);
    const std::size_t mine = member.rank() == 2 ? 1 : 0;
    setup.fill_slots(0x33);
    expect_refusal(
        findings,
        setup.exchange->prefetch(setup.plan, setup.layers[mine], soon()),
        StatusCode::kInvalidArgument,
        "prefetch got different plans or layers: that of rank 2");
    const auto slot = setup.weights_of_group(0, 0, setup.group_of_slot(0));
    findings.expect(slot[0] == std::byte{0x33}, "weights have moved");
    expect_refusal(
        findings,
        setup.exchange->reduce_gradients(setup.plan, setup.layers[mine], soon()),
        StatusCode::kInvalidArgument,
        "reduce_gradients got different plans or layers");
    EpLayerMemory partial = setup.layers[0];
    partial.projections.pop_back();
    expect_refusal(
        findings,
        setup.exchange->prefetch(setup.plan, partial, soon()),
        StatusCode::kInvalidArgument,
        "layer 0 has 1 projections, the pool 2");
    findings.expect(setup.exchange->prefetch(setup.plan, setup.layers[1], soon()), "prefetch");
    setup.expect_slots_hold(findings, setup.plan, 1);
    return findings.text();
  });
}

TEST(RefusedLayers, WithoutAPool) {
  const MoveCase test = plain_case();
  expect_each(test, [&](Mover& mover, int rank, Findings& findings) {
    findings.expect(mover.exchange->make_plan(choices_of(test, rank), mover.plan, soon()), "plan");
    expect_refusal(
        findings,
        mover.exchange->prefetch(mover.plan, {}, soon()),
        StatusCode::kFailedPrecondition,
        "create it with an EpPool");
  });
}

}  // namespace

}  // namespace muster::parallel::testing
