// SPDX-License-Identifier: Apache-2.0
// Checks a planner's options and derives the sizes of buffers.
#include "parallel/src/experts/plan/work.h"

#include <algorithm>
#include <cmath>

namespace muster::parallel {

namespace {

constexpr int kExpertsMax = 1 << 20;

// "expert parallelism: <name> must be <rule>, got <value>".
template <typename Value, typename... Rule>
Status refuse(std::string_view name, const Value& value, const Rule&... rule) {
  return invalid_argument("expert parallelism: ", name, " must be ", rule..., ", got ", value);
}

Status check_sizes(const EpShape& shape) {
  if (shape.ranks < 1 || shape.ranks > kEpRanksMax) {
    return refuse("ranks", shape.ranks, "1..", kEpRanksMax);
  }
  if (shape.experts < 1 || shape.experts > kExpertsMax || shape.experts % shape.ranks != 0) {
    return refuse(
        "experts",
        shape.experts,
        "a multiple of the ",
        shape.ranks,
        " ranks, at most ",
        kExpertsMax);
  }
  if (shape.top_k < 1 || shape.top_k > std::min(shape.experts, kEpTopKMax)) {
    return refuse(
        "top_k",
        shape.top_k,
        "1..",
        std::min(shape.experts, kEpTopKMax),
        " with ",
        shape.experts,
        " experts");
  }
  const std::int64_t tokens_most = INT32_MAX / shape.top_k;
  if (shape.tokens_max < 1 || shape.tokens_max > tokens_most) {
    return refuse(
        "tokens_max",
        shape.tokens_max,
        "1..",
        tokens_most,
        " with top_k ",
        shape.top_k,
        " (rows of a rank are counted in 32 bits)");
  }
  if (shape.padding < 1 || shape.padding > kEpPaddingMax) {
    return refuse("padding", shape.padding, "1..", kEpPaddingMax);
  }
  return {};
}

// Number of homes that a rank can receive from.
int homes_of(const EpShape& shape, const EpBalance& balance) {
  return balance.mode == EpBalanceMode::kNone ? 0 : std::min(balance.homes_max, shape.ranks - 1);
}

Status check_slots(const EpShape& shape, const EpBalance& balance) {
  const int m = shape.local_experts();
  const int needed = homes_of(shape, balance) * m;
  const int most = std::max(m, needed);
  if (shape.slots < -1 || shape.slots > most) {
    return refuse(
        "slots",
        shape.slots,
        "0..",
        most,
        " (a rank is never given more experts than its homes have), or -1 for one per local "
        "expert");
  }
  if (shape.compact && shape.slot_count() < needed) {
    return refuse(
        "slots",
        shape.slot_count(),
        "at least ",
        needed,
        " in the compact layout, which has no rows for experts without a slot (the full one has)");
  }
  return {};
}

std::int64_t capacity_of_speeds(const EpShape& shape, std::span<const double> speeds) {
  std::vector<std::int64_t> weights(static_cast<std::size_t>(shape.ranks));
  const std::int64_t sum = ep_weights(shape.ranks, speeds, weights);
  return ep_capacity_of(shape, weights, sum);
}

Status check_capacities(const EpShape& shape, const EpBalance& balance) {
  MUSTER_RETURN_IF_ERROR(check_speeds(shape.ranks, balance.speeds));
  const double most = balance.capacity_max;
  if (!(most == 0 || (most >= 1 && most <= shape.ranks))) {
    return refuse(
        "capacity_max",
        most,
        "0 (that of the speeds) or 1..",
        shape.ranks,
        " times the mean of the ranks");
  }
  const std::int64_t needed = capacity_of_speeds(shape, balance.speeds);
  if (needed > ep_exact_capacity_max(shape, balance)) {
    return refuse(
        "capacity_max",
        most,
        "at least ",
        static_cast<double>(needed) / static_cast<double>(shape.tokens_max * shape.top_k),
        " for these speeds");
  }
  return {};
}

}  // namespace

Status check_speeds(int ranks, std::span<const double> speeds) {
  if (speeds.empty()) {
    return {};
  }
  if (speeds.size() != static_cast<std::size_t>(ranks)) {
    return refuse(
        "speeds", speeds.size(), "one for each of the ", ranks, " ranks, or empty for equal ones");
  }
  for (std::size_t rank = 0; rank < speeds.size(); ++rank) {
    if (!std::isfinite(speeds[rank]) || speeds[rank] < 0) {
      return refuse(concat("speeds[", rank, "]"), speeds[rank], "finite and not negative");
    }
  }
  if (std::all_of(speeds.begin(), speeds.end(), [](double speed) { return speed == 0; })) {
    return refuse("speeds", "all 0", "one rank at least must compute");
  }
  return {};
}

std::int64_t ep_weights(
    int ranks, std::span<const double> speeds, std::span<std::int64_t> weights) {
  if (speeds.empty()) {
    std::fill(weights.begin(), weights.end(), 1);
    return ranks;
  }
  const double most = *std::max_element(speeds.begin(), speeds.end());
  std::int64_t sum = 0;
  for (std::size_t rank = 0; rank < speeds.size(); ++rank) {
    weights[rank] = std::llround(speeds[rank] / most * static_cast<double>(kEpWeightOne));
    sum += weights[rank];
  }
  return sum;
}

std::int64_t ep_capacity_of(
    const EpShape& shape, std::span<const std::int64_t> weights, std::int64_t weight_sum) {
  const std::int64_t rows = shape.tokens_max * shape.top_k * shape.ranks;
  const std::int64_t heaviest = *std::max_element(weights.begin(), weights.end());
  return (rows * heaviest + weight_sum - 1) / weight_sum;
}

std::int64_t ep_exact_capacity_max(const EpShape& shape, const EpBalance& balance) {
  const std::int64_t mean = shape.tokens_max * shape.top_k;
  if (balance.capacity_max == 0) {
    return capacity_of_speeds(shape, balance.speeds);
  }
  // Weights are rounded: speeds of exactly this capacity may come out larger by half a unit per
  // rank.
  const double slack = 1 + static_cast<double>(shape.ranks) / static_cast<double>(kEpWeightOne);
  const double most = std::ceil(balance.capacity_max * slack * static_cast<double>(mean));
  return std::min(static_cast<std::int64_t>(most), mean * shape.ranks);
}

std::int64_t ep_capacity_max(const EpShape& shape, const EpBalance& balance) {
  const std::int64_t all = shape.tokens_max * shape.top_k * shape.ranks;
  if (balance.mode == EpBalanceMode::kNone) {
    return all;
  }
  const std::int64_t exact = ep_exact_capacity_max(shape, balance);
  if (balance.mode == EpBalanceMode::kExact) {
    return exact;
  }
  return std::min(exact + exact * ep_tolerance_ppm(balance) / kEpToleranceOne, all);
}

std::int64_t ep_tolerance_ppm(const EpBalance& balance) {
  return std::llround(balance.tolerance * static_cast<double>(kEpToleranceOne));
}

Status check(const EpShape& shape, const EpBalance& balance) {
  MUSTER_RETURN_IF_ERROR(check_sizes(shape));
  if (balance.homes_max < 1 || balance.homes_max > kEpRanksMax) {
    return refuse("homes_max", balance.homes_max, "1..", kEpRanksMax);
  }
  if (!(balance.tolerance >= 0 && balance.tolerance <= 1)) {
    return refuse("tolerance", balance.tolerance, "0..1 (0.05 is 5 % over capacity)");
  }
  MUSTER_RETURN_IF_ERROR(check_slots(shape, balance));
  return check_capacities(shape, balance);
}

std::int64_t ep_receive_rows(const EpShape& shape, const EpBalance& balance) {
  const std::int64_t capacity = ep_capacity_max(shape, balance);
  const std::int64_t m = shape.local_experts();
  // Groups that can have rows: those of home, and those of the homes it receives from.
  const std::int64_t groups =
      std::min({m + homes_of(shape, balance) * m, std::int64_t{shape.experts}, capacity});
  return (capacity + groups * (shape.padding - 1)) / shape.padding * shape.padding;
}

}  // namespace muster::parallel
