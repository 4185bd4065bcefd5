// SPDX-License-Identifier: Apache-2.0
// Statistics of the load of experts, and the bias that evens it out.
#include <muster/common/check.h>
#include <muster/parallel/experts/router.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace muster::parallel {

namespace {

double mean_of(std::span<const double> values) {
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

// Entropy of the scores of one token, normalised to sum 1: log S - (sum s log s) / S.
template <typename T>
double entropy_of(const T* scores, std::int64_t experts) {
  double total = 0;
  double logs = 0;
  for (std::int64_t e = 0; e < experts; ++e) {
    total += static_cast<double>(scores[e]);
    logs += scores[e] == 0 ? 0 : static_cast<double>(scores[e] * std::log(scores[e]));
  }
  return total == 0 ? 0 : std::log(total) - logs / total;
}

}  // namespace

void update_router_bias(
    std::span<float> bias, std::span<const double> counts, double rate, bool recentre) {
  MUSTER_CHECK(bias.size() == counts.size(), "a router's bias has one number for each expert");
  const double mean = mean_of(counts);
  for (std::size_t e = 0; e < bias.size(); ++e) {
    const double sign = counts[e] < mean ? 1 : counts[e] > mean ? -1 : 0;
    bias[e] = static_cast<float>(static_cast<double>(bias[e]) + rate * sign);
  }
  if (recentre && !bias.empty()) {
    const double sum = std::accumulate(bias.begin(), bias.end(), 0.0);
    const double centre = sum / static_cast<double>(bias.size());
    for (float& value : bias) {
      value = static_cast<float>(static_cast<double>(value) - centre);
    }
  }
}

template <typename T>
RouterStatistics router_statistics(
    std::int64_t tokens,
    std::int64_t experts,
    std::span<const T> scores,
    std::span<const double> counts) {
  MUSTER_CHECK(
      experts > 0 && std::ssize(scores) == tokens * experts && std::ssize(counts) == experts,
      "a router's scores and counts must be [tokens, experts] and [experts]");
  RouterStatistics statistics;
  double entropy = 0;
  for (std::int64_t t = 0; t < tokens; ++t) {
    entropy += entropy_of(scores.data() + t * experts, experts);
  }
  statistics.router_entropy = tokens == 0 ? 0 : entropy / static_cast<double>(tokens);
  const auto dead = std::count(counts.begin(), counts.end(), 0.0);
  statistics.dead_share = static_cast<double>(dead) / static_cast<double>(experts);
  const double mean = mean_of(counts);
  if (mean == 0) {
    return statistics;
  }
  const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
  statistics.max_violation = *most / mean - 1;
  statistics.min_violation = 1 - *least / mean;
  double squares = 0;
  for (const double count : counts) {
    squares += (count - mean) * (count - mean);
    const double share = count / (mean * static_cast<double>(experts));
    statistics.load_entropy -= share == 0 ? 0 : share * std::log(share);
  }
  statistics.coefficient_of_variation = std::sqrt(squares / static_cast<double>(experts)) / mean;
  return statistics;
}

template RouterStatistics router_statistics(
    std::int64_t, std::int64_t, std::span<const float>, std::span<const double>);
template RouterStatistics router_statistics(
    std::int64_t, std::int64_t, std::span<const double>, std::span<const double>);

}  // namespace muster::parallel
