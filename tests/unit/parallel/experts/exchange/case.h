// SPDX-License-Identifier: Apache-2.0
// Inputs of the movement's tests, and the expected results from first principles: every rank can
// compute the choices and rows of all ranks, so the expectation needs no communication.
#pragma once

#include "tests/unit/parallel/experts/exchange/ranks.h"

#include <muster/parallel/experts/exchange.h>

#include <cstdint>
#include <string>
#include <vector>

namespace muster::parallel::testing {

enum class Spread {
  kUniform,     // distinct experts
  kSkewed,      // distinct experts, low ids more often
  kOneExpert,   // every choice of every token
  kAtHome,      // experts of the token's own rank, repeated where there are too few
  kAway,        // experts of the next rank, likewise
  kDuplicates,  // any expert any number of times
};

struct MoveCase {
  std::string name;
  EpShape shape;
  EpBalance balance;
  std::int64_t hidden{8};
  DType type{DType::kFloat32};
  EpNumerics numerics{EpNumerics::kPlain};
  std::vector<int> tokens;  // [ranks]
  Spread spread{Spread::kUniform};
  std::uint64_t seed{1};

  [[nodiscard]] EpExchangeOptions options() const;
};

void PrintTo(const MoveCase& test, std::ostream* out);

// A hash of its arguments, uniform in [0, 2^64).
[[nodiscard]] std::uint64_t mix(std::uint64_t a, std::uint64_t b, std::uint64_t c = 0);

[[nodiscard]] std::vector<std::int32_t> choices_of(const MoveCase& test, int rank);

// Element h of token t's row on `rank`: a small integer, exact in every type and in sums.
[[nodiscard]] float input(const MoveCase& test, int rank, std::int64_t token, std::int64_t h);
[[nodiscard]] float gate(const MoveCase& test, int rank, std::int64_t token, int choice);
// Output of an "expert" for the row: any value of the type.
[[nodiscard]] float output(
    const MoveCase& test, int rank, std::int64_t token, int choice, std::int64_t h);

// Origin of a row of a rank; rank -1 for padding or rows beyond the last group.
struct Origin {
  int rank{-1};
  std::int64_t token{0};
  int choice{0};
  int expert{0};
};

// [receive_rows] of rank `destination`, from the replicated tables and all ranks' choices alone.
[[nodiscard]] std::vector<Origin> origins(
    const MoveCase& test, const EpPlan& plan, int destination);

// Values as rows of the case's type, and back.
[[nodiscard]] std::vector<std::byte> encode(DType type, const std::vector<float>& values);
[[nodiscard]] std::vector<float> decode(DType type, std::span<const std::byte> bytes);
// Through bf16 and back, element by element in plain words.
[[nodiscard]] float through_bfloat16(float value);

[[nodiscard]] std::vector<std::byte> rows_of(const MoveCase& test, int rank);
[[nodiscard]] std::vector<float> gates_of(const MoveCase& test, int rank);

// y of token `token` of `rank`, of `output`s, in the order of the contract, bit by bit.
[[nodiscard]] std::vector<float> expected_sum(
    const MoveCase& test, const std::vector<int>& ranks_of_choices, int rank, std::int64_t token);

// The rank that computes each choice of `rank`'s tokens.
[[nodiscard]] std::vector<int> computing_ranks(const MoveCase& test, const EpPlan& plan, int rank);

[[nodiscard]] std::size_t heap_bytes(const MoveCase& test);

// A member's exchange without a pool and an empty plan for it.
struct Mover {
  Mover(Member& member, const MoveCase& test);

  std::unique_ptr<EpExchange> exchange;
  EpPlan plan;
  std::string error;
};

// The usual cases: all spreads, types, balance modes, paddings, layouts, empty ranks.
[[nodiscard]] std::vector<MoveCase> move_cases();

}  // namespace muster::parallel::testing
