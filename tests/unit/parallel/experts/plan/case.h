// SPDX-License-Identifier: Apache-2.0
// Routings for the planner's tests, and the plan as docs/concepts/experts.md words it: slow, with
// every table written out, sharing no code with the planner.
#pragma once

#include <muster/parallel/experts/plan.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace muster::parallel::testing {

constexpr std::size_t at(std::int64_t index) {
  return static_cast<std::size_t>(index);
}

// xorshift64*: fuzzing draws hundreds of millions of numbers.
class FastRandom {
 public:
  explicit FastRandom(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ULL + 0x5851F42DULL) {}

  std::uint64_t next() {
    state_ ^= state_ >> 12U;
    state_ ^= state_ << 25U;
    state_ ^= state_ >> 27U;
    return state_ * 0x2545F4914F6CDD1DULL;
  }

  // Uniform in [0, bound).
  int below(int bound) {
    return static_cast<int>(((next() >> 32U) * static_cast<std::uint64_t>(bound)) >> 32U);
  }

  // Uniform in [first, last].
  int between(int first, int last) { return first + below(last - first + 1); }

  double uniform() { return static_cast<double>(next() >> 11U) * 0x1.0p-53; }

 private:
  std::uint64_t state_;
};

enum class Routing { kUniform, kSkewed, kOneExpert, kOneHome, kFewExperts };

inline constexpr Routing kRoutings[]{
    Routing::kUniform,
    Routing::kSkewed,
    Routing::kOneExpert,
    Routing::kOneHome,
    Routing::kFewExperts};

// Choices of every rank: [rank][token * top_k].
using Choices = std::vector<std::vector<std::int32_t>>;

// `tokens` [rank]. Without `repeats` a token's experts differ, unless the routing has fewer than
// top_k.
[[nodiscard]] Choices draw_choices(
    const EpShape& shape, const std::vector<int>& tokens, Routing routing, FastRandom& random);

// [R, E].
[[nodiscard]] std::vector<std::int32_t> count(const EpShape& shape, const Choices& choices);

// The exact plan of docs/concepts/experts.md for equal capacities.
struct ReferencePlan {
  int steps{0};
  std::vector<std::vector<std::int64_t>> rows;    // [R][E] computed by the rank
  std::vector<std::vector<int>> slots;            // [R] experts in slots, ascending
  std::vector<std::vector<int>> overflow;         // [R] experts without, ascending
  std::vector<std::vector<std::int64_t>> ends;    // [R][groups]
  std::vector<std::vector<std::int64_t>> places;  // [R][tokens * top_k], as `destinations`
};

[[nodiscard]] ReferencePlan reference_plan(
    const EpShape& shape, const Choices& choices, std::int64_t receive_rows);

// "R 4, E 8, ...", for messages.
[[nodiscard]] std::string describe(const EpShape& shape);

// A new planner's plan of these choices, placed for `rank`. Fails the test where that fails.
[[nodiscard]] EpPlan plan_of(
    const EpShape& shape, const EpBalance& balance, const Choices& choices, int rank = 0);

}  // namespace muster::parallel::testing
