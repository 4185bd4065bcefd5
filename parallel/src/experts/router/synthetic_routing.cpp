// SPDX-License-Identifier: Apache-2.0
#include <muster/common/random.h>
#include <muster/parallel/experts/synthetic_routing.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

namespace muster::parallel {
namespace {

// Number of tokens in the sample that estimates the expected load of a sigma.
constexpr std::int64_t kSample = 2048;
constexpr int kBisections = 30;
constexpr double kSigmaMax = 64;
// Streams of ranks are small numbers; the sample uses a separate one.
constexpr std::uint64_t kSampleStream = std::numeric_limits<std::uint64_t>::max();

}  // namespace

Expected<SyntheticRouting> SyntheticRouting::create(
    int experts, int top_k, double maxvio, std::uint64_t seed) {
  if (experts < 1 || top_k < 1 || top_k > experts) {
    return invalid_argument(
        "skewed routing of ",
        top_k,
        " of ",
        experts,
        " experts; top_k must be 1 to the number of experts");
  }
  const double most = static_cast<double>(experts) / top_k - 1;
  if (!(maxvio >= 0) || maxvio > most) {
    return invalid_argument(
        "maxvio must be between 0 and ",
        most,
        " with ",
        top_k,
        " of ",
        experts,
        " experts per token, got ",
        maxvio);
  }
  SyntheticRouting routing;
  routing.experts_ = experts;
  routing.top_k_ = top_k;
  routing.seed_ = seed;
  Random random{seed, 0};
  for (int expert = 0; expert < experts; ++expert) {
    routing.normal_.push_back(random.normal());
  }
  double low = 0;
  double high = kSigmaMax;
  for (int round = 0; round < kBisections && maxvio > 0; ++round) {
    const double middle = (low + high) / 2;
    (routing.maxvio_at(middle) < maxvio ? low : high) = middle;
  }
  routing.set_sigma(maxvio > 0 ? (low + high) / 2 : 0);
  return routing;
}

void SyntheticRouting::set_sigma(double sigma) {
  sigma_ = sigma;
  log_popularity_.resize(normal_.size());
  std::transform(normal_.begin(), normal_.end(), log_popularity_.begin(), [sigma](double z) {
    return sigma * z;
  });
}

double SyntheticRouting::maxvio_at(double sigma) const {
  SyntheticRouting candidate = *this;
  candidate.set_sigma(sigma);
  std::vector<std::int32_t> choices(static_cast<std::size_t>(kSample * top_k_));
  candidate.draw(kSampleStream, 0, choices);
  std::vector<std::int64_t> counts(static_cast<std::size_t>(experts_));
  for (const std::int32_t expert : choices) {
    ++counts[static_cast<std::size_t>(expert)];
  }
  const double mean = static_cast<double>(choices.size()) / experts_;
  return static_cast<double>(*std::max_element(counts.begin(), counts.end())) / mean - 1;
}

// The top_k of log popularity + Gumbel noise are draws without replacement in proportion to the
// popularities.
void SyntheticRouting::draw(
    std::uint64_t stream, std::uint64_t index, std::span<std::int32_t> choices) const {
  Random random{seed_ + 1 + index, stream};
  std::vector<std::pair<double, std::int32_t>> keys(static_cast<std::size_t>(experts_));
  const auto chosen = static_cast<std::size_t>(top_k_);
  for (std::size_t at = 0; at + chosen <= choices.size(); at += chosen) {
    for (std::size_t expert = 0; expert < keys.size(); ++expert) {
      const double uniform = std::max(random.uniform(), std::numeric_limits<double>::min());
      // Ascending order, so the noise and the popularity are taken negative.
      keys[expert] = {
          std::log(-std::log(uniform)) - log_popularity_[expert],
          static_cast<std::int32_t>(expert)};
    }
    std::partial_sort(keys.begin(), keys.begin() + top_k_, keys.end());
    for (std::size_t choice = 0; choice < chosen; ++choice) {
      choices[at + choice] = keys[choice].second;
    }
  }
}

void synthetic_gates(
    int top_k,
    std::span<const float> scores,
    std::span<const std::int32_t> choices,
    std::span<float> gates) {
  const auto chosen = static_cast<std::size_t>(top_k);
  const std::size_t tokens = choices.size() / chosen;
  const std::size_t experts = tokens == 0 ? 0 : scores.size() / tokens;
  for (std::size_t token = 0; token < tokens; ++token) {
    const std::span<float> own = gates.subspan(token * chosen, chosen);
    float sum = 0;
    for (std::size_t c = 0; c < chosen; ++c) {
      own[c] = scores[token * experts + static_cast<std::size_t>(choices[token * chosen + c])];
      sum += own[c];
    }
    for (float& gate : own) {
      gate = sum == 0 ? 1.0F / static_cast<float>(top_k) : gate / sum;
    }
  }
}

}  // namespace muster::parallel
