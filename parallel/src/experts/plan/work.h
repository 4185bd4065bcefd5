// SPDX-License-Identifier: Apache-2.0
// Scratch memory of the planner and its parts, in order of execution. The constructor allocates all
// of it; the parts only write to it.
//
// Letters as in docs/concepts/experts.md: A quotas between ranks, B experts of a quota, C tables, D
// destinations.
#pragma once

#include <muster/parallel/experts/plan.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace muster::parallel {

// Speeds are compared as integers: a speed over the largest one, in 2^-24. Times all rows, at most
// 2^38, that fits 64 bits.
inline constexpr std::int64_t kEpWeightOne = std::int64_t{1} << 24;
// EpBalance::tolerance in parts per million.
inline constexpr std::int64_t kEpToleranceOne = 1'000'000;
inline constexpr int kEpPaddingMax = 1 << 20;

[[nodiscard]] constexpr std::size_t at(std::int64_t index) {
  return static_cast<std::size_t>(index);
}

// `home` sends `rows` rows to `rank`.
struct EpQuota {
  int home{0};
  int rank{0};
  std::int64_t rows{0};
};

// `rank` computes `rows` rows of `expert`, whose home is another rank. A (rank, expert) pair occurs
// once.
struct EpMove {
  int rank{0};
  int expert{0};
  std::int64_t rows{0};
  int next{-1};  // next move of the same rank, or -1
};

// Destination of the next row of an expert.
struct EpCursor {
  std::int64_t place{0};
  std::int64_t left{0};  // rows that still fit at `rank`
  int rank{0};
};

// Rounds up to multiples of a fixed number without a division: with 2^64 / d rounded up as
// reciprocal, the quotient of a numerator below 2^64 / d is exact (here below 2^40, by at most
// 2^20).
class FixedDivisor {
 public:
  explicit FixedDivisor(std::int64_t divisor)
      : divisor_(static_cast<std::uint64_t>(divisor)),
        reciprocal_(~std::uint64_t{0} / divisor_ + 1) {}

  [[nodiscard]] std::int64_t ceil_multiple(std::int64_t number) const {
    if (divisor_ == 1) {
      return number;
    }
    const std::uint64_t numerator = static_cast<std::uint64_t>(number) + divisor_ - 1;
    const auto quotient = static_cast<std::uint64_t>((Wide{numerator} * reciprocal_) >> 64U);
    return static_cast<std::int64_t>(quotient * divisor_);
  }

 private:
  __extension__ using Wide = unsigned __int128;

  std::uint64_t divisor_;
  std::uint64_t reciprocal_;
};

struct EpPlanWork {
  EpPlanWork(const EpShape& shape, const EpBalance& balance);

  EpShape shape;
  EpBalance balance;
  int local_experts{0};
  int slots{0};
  int groups{0};
  std::int64_t receive_rows{0};
  std::int64_t exact_capacity_max{0};  // limit of set_speeds
  std::int64_t tolerance_ppm{0};
  FixedDivisor padding{1};

  std::vector<std::int64_t> weights;  // [R] in units of 1 / kEpWeightOne
  std::int64_t weight_sum{0};

  // A
  std::vector<std::int64_t> totals;      // [E] rows of an expert
  std::vector<std::int64_t> loads;       // [R] rows of a home before balancing
  std::vector<std::int64_t> capacities;  // [R]
  std::vector<std::int64_t> excess;      // [R] above capacity
  std::vector<std::int64_t> own;         // [R] rows of a home's experts that it keeps so far
  std::vector<int> homes;                // [R] number that a rank receives from
  std::vector<EpQuota> quotas;
  std::int64_t rows{0};  // of all ranks
  std::int64_t quota_steps{0};
  // B
  std::vector<std::int64_t> retained;  // [E] rows that stay at home
  std::vector<EpQuota> exports;        // of one home
  std::vector<EpMove> moves;
  std::vector<int> first_move;  // [R]
  // C
  std::vector<EpMove> remote;          // of one rank
  std::vector<std::int64_t> sent_to;   // [R] copies that leave a home
  std::vector<std::int64_t> exported;  // [R] rows
  std::vector<std::int64_t> received;  // [R] rows
  // D
  std::vector<std::int32_t> histogram;  // [E]
  std::vector<EpCursor> cursors;        // [E]
};

// Relative speeds as weights; all equal without speeds. Returns their sum.
std::int64_t ep_weights(int ranks, std::span<const double> speeds, std::span<std::int64_t> weights);

// kInvalidArgument unless `speeds` are [ranks] finite numbers, none negative and one positive.
[[nodiscard]] Status check_speeds(int ranks, std::span<const double> speeds);

// Returns the most rows that any rank computes under `balance` if all have tokens_max, unpadded.
[[nodiscard]] std::int64_t ep_capacity_max(const EpShape& shape, const EpBalance& balance);

// The same without the tolerance, for every mode.
[[nodiscard]] std::int64_t ep_exact_capacity_max(const EpShape& shape, const EpBalance& balance);

// Returns the most rows that any rank computes with these weights if all have tokens_max.
[[nodiscard]] std::int64_t ep_capacity_of(
    const EpShape& shape, std::span<const std::int64_t> weights, std::int64_t weight_sum);

[[nodiscard]] std::int64_t ep_tolerance_ppm(const EpBalance& balance);

// Reads counts [R, E] into totals, loads and rows. kInvalidArgument if they are inconsistent.
[[nodiscard]] Status sum_counts(EpPlanWork& work, std::span<const std::int32_t> counts);

// A: capacities, then quotas. kFailedPrecondition if unequal capacities need more homes than
// allowed.
[[nodiscard]] Status find_quotas(EpPlanWork& work);

// B: quotas into moves.
void split_quotas(EpPlanWork& work);

// C: everything replicated in `plan` but its hash.
void write_tables(EpPlanWork& work, std::span<const std::int32_t> counts, EpPlan& plan);

// D.
[[nodiscard]] Status place_choices(
    EpPlanWork& work, int rank, std::span<const std::int32_t> choices, EpPlan& plan);

[[nodiscard]] std::uint64_t ep_plan_hash(const EpPlan& plan);

}  // namespace muster::parallel
