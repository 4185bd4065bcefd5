// SPDX-License-Identifier: Apache-2.0
// Statistics of an update, and the table that declares how each of them combines.
//
// A record of statistics is a struct of doubles and 64-bit counts plus one constexpr table with a
// row per member. Adding two records, and moving a record through reduced lanes, iterates over the
// table, so a new statistic is one member and one row.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace muster::kernels {

// Combination of a statistic over parts of a tensor and over ranks.
enum class Fold : std::uint8_t { kSum, kMax, kMin };

// Meaning of a value that is not finite. kStrict: the step must not be applied. kLenient: the value
// describes the training and may overflow in a healthy step; no statistic of this library is
// strict.
enum class Tolerance : std::uint8_t { kStrict, kLenient };

// A row of a table. Exactly one of `value` and `count` is set; a count is a sum and always finite.
template <typename Record>
struct Statistic {
  double Record::*value{nullptr};
  std::int64_t Record::*count{nullptr};
  Fold fold{Fold::kSum};
  Tolerance tolerance{Tolerance::kStrict};
  std::int64_t Record::*terms{nullptr};  // kMin only: 0 in a record without a minimum
};

template <typename Record>
[[nodiscard]] constexpr Statistic<Record> count_of(std::int64_t Record::*member) {
  return {nullptr, member, Fold::kSum, Tolerance::kStrict, nullptr};
}

template <typename Record>
[[nodiscard]] constexpr Statistic<Record> sum_of(double Record::*member, Tolerance tolerance) {
  return {member, nullptr, Fold::kSum, tolerance, nullptr};
}

template <typename Record>
[[nodiscard]] constexpr Statistic<Record> max_of(double Record::*member, Tolerance tolerance) {
  return {member, nullptr, Fold::kMax, tolerance, nullptr};
}

template <typename Record>
[[nodiscard]] constexpr Statistic<Record> min_of(
    double Record::*member, std::int64_t Record::*terms, Tolerance tolerance) {
  return {member, nullptr, Fold::kMin, tolerance, terms};
}

// True if the table has as many rows as the record has members.
template <typename Record, std::size_t kRows>
[[nodiscard]] constexpr bool covers(const std::array<Statistic<Record>, kRows>& /*table*/) {
  return sizeof(Record) == kRows * sizeof(double);
}

// Larger or smaller of two values, NaN if either is NaN; std::max and std::min may drop it.
[[nodiscard, gnu::always_inline]] inline double max_keeping_nan(double a, double b) {
  return b > a || std::isnan(b) ? b : a;
}

[[nodiscard, gnu::always_inline]] inline double min_keeping_nan(double a, double b) {
  return b < a || std::isnan(b) ? b : a;
}

// Adds `part` to `total`: sums and counts add, maxima and minima combine and keep a NaN.
template <typename Record, std::size_t kRows>
void combine(const std::array<Statistic<Record>, kRows>& table, Record& total, const Record& part) {
  const Record before = total;
  for (const Statistic<Record>& row : table) {
    if (row.count != nullptr) {
      total.*row.count += part.*row.count;
      continue;
    }
    double& value = total.*row.value;
    const double other = part.*row.value;
    if (row.fold == Fold::kSum) {
      value += other;
    } else if (row.fold == Fold::kMax) {
      value = max_keeping_nan(value, other);
    } else if (part.*row.terms != 0) {
      value = before.*row.terms == 0 ? other : min_keeping_nan(value, other);
    }
  }
}

// Statistics of one shard. "g" is the gradient after gradient_scale.
struct UpdateStatistics {
  double update_squared_sum{0};  // of the applied delta without decay, learning rate included
  double update_abs_max{0};
  double parameter_squared_sum{0};  // after the update
  double parameter_abs_max{0};
  double gradient_squared_sum{0};  // of the gradient the rule saw, scaled and clipped
  double momentum_squared_sum{0};  // Adam's m, Muon's momentum
  double momentum_sum{0};
  double momentum_abs_max{0};
  double momentum_gradient_sum{0};  // m g: cosine of m and g
  double second_moment_sum{0};      // v after the update; 0 for rules without one
  double second_moment_squared_sum{0};
  double second_moment_abs_max{0};
  double second_moment_before_sum{0};  // v before the update: decay saturation
  // g^2 / max(v, epsilon^2), v bias-corrected: RMS_t^2 of StableAdamW (arXiv 2304.13013) is its
  // mean.
  double staleness_sum{0};
  std::int64_t second_moment_tiny_count{0};  // sqrt(v / (1 - beta2^t)) < 10 epsilon
  // Of 8-bit states, over every eighth block, in steps from a code to the next: the sizes of the
  // changes that the rule made, and the part of them that the codes took over. Equal on average
  // unless rounding swallows changes.
  double momentum_code_change_sum{0};
  double momentum_code_motion_sum{0};
  double second_moment_code_change_sum{0};
  double second_moment_code_motion_sum{0};
  // Elements that kept parameter and states because a new value would not have been finite, and
  // those among them whose old values were not finite either. Counted without statistics, too.
  std::int64_t withheld_count{0};
  std::int64_t lost_count{0};

  void add(const UpdateStatistics& other);
};

// The order is that of the lanes (agent): sums first, then maxima. All are lenient: the states are
// guarded where they are computed, and what is measured of them decides nothing.
inline constexpr std::array kUpdateStatistics{
    sum_of(&UpdateStatistics::update_squared_sum, Tolerance::kLenient),
    sum_of(&UpdateStatistics::parameter_squared_sum, Tolerance::kLenient),
    sum_of(&UpdateStatistics::momentum_squared_sum, Tolerance::kLenient),
    sum_of(&UpdateStatistics::momentum_sum, Tolerance::kLenient),
    sum_of(&UpdateStatistics::second_moment_sum, Tolerance::kLenient),
    sum_of(&UpdateStatistics::second_moment_squared_sum, Tolerance::kLenient),
    sum_of(&UpdateStatistics::gradient_squared_sum, Tolerance::kLenient),
    sum_of(&UpdateStatistics::momentum_gradient_sum, Tolerance::kLenient),
    sum_of(&UpdateStatistics::second_moment_before_sum, Tolerance::kLenient),
    sum_of(&UpdateStatistics::staleness_sum, Tolerance::kLenient),
    sum_of(&UpdateStatistics::momentum_code_change_sum, Tolerance::kLenient),
    sum_of(&UpdateStatistics::momentum_code_motion_sum, Tolerance::kLenient),
    sum_of(&UpdateStatistics::second_moment_code_change_sum, Tolerance::kLenient),
    sum_of(&UpdateStatistics::second_moment_code_motion_sum, Tolerance::kLenient),
    count_of(&UpdateStatistics::second_moment_tiny_count),
    count_of(&UpdateStatistics::withheld_count),
    count_of(&UpdateStatistics::lost_count),
    max_of(&UpdateStatistics::parameter_abs_max, Tolerance::kLenient),
    max_of(&UpdateStatistics::momentum_abs_max, Tolerance::kLenient),
    max_of(&UpdateStatistics::second_moment_abs_max, Tolerance::kLenient),
    max_of(&UpdateStatistics::update_abs_max, Tolerance::kLenient)};
static_assert(covers(kUpdateStatistics), "every statistic has a row");

}  // namespace muster::kernels
