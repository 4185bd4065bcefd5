// SPDX-License-Identifier: Apache-2.0
// Losses that balance a router, summed in double.

#include <muster/common/check.h>
#include <muster/kernels/row_ops.h>
#include <muster/parallel/experts/router.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace muster::parallel {

namespace {

// Buffer of one number per expert, kept per thread.
template <typename Number>
std::vector<Number>& expert_room(std::int64_t experts) {
  thread_local std::vector<Number> room;
  room.resize(static_cast<std::size_t>(experts));
  return room;
}

// Sum over tokens and experts of weights[e] * p[t, e], p the scores normalised to sum 1, and
// dlogits += scale * its gradient. A token whose scores have all underflowed contributes nothing.
template <typename T>
double weighted_probabilities(
    const RouterOptions& options,
    std::int64_t tokens,
    const T* scores,
    const std::vector<double>& weights,
    double scale,
    T* dlogits) {
  const bool softmax = options.score == RouterScore::kSoftmax;
  double sum = 0;
  for (std::int64_t t = 0; t < tokens; ++t, scores += options.experts) {
    double total = 0;
    double weighted = 0;
    for (std::int64_t e = 0; e < options.experts; ++e) {
      const auto value = static_cast<double>(scores[e]);
      total += value;
      weighted += weights[static_cast<std::size_t>(e)] * value;
    }
    if (total == 0) {
      continue;
    }
    total = softmax ? 1 : total;  // up to rounding, which has no gradient
    weighted /= total;
    sum += weighted;
    for (std::int64_t e = 0; dlogits != nullptr && e < options.experts; ++e) {
      const auto value = static_cast<double>(scores[e]);
      const double slope = softmax ? value : value / total * (1 - value);
      dlogits[t * options.experts + e] +=
          static_cast<T>(scale * slope * (weights[static_cast<std::size_t>(e)] - weighted));
    }
  }
  return sum;
}

template <typename T>
void check_gradient(std::span<const T> of, std::span<T> dlogits) {
  MUSTER_CHECK(
      dlogits.empty() || dlogits.size() == of.size(),
      "the gradient of a router's loss has the size of its logits, or none");
}

}  // namespace

template <typename T>
double switch_loss(
    const RouterOptions& options,
    std::int64_t tokens,
    std::span<const T> scores,
    std::span<const double> counts,
    double count_tokens,
    double scale,
    std::span<T> dlogits) {
  MUSTER_CHECK(
      std::ssize(scores) == tokens * options.experts && std::ssize(counts) == options.experts,
      "a router's scores and counts must have the sizes of its options");
  check_gradient(scores, dlogits);
  if (tokens == 0 || count_tokens <= 0) {
    return 0;
  }
  std::vector<double>& weights = expert_room<double>(options.experts);
  const auto experts = static_cast<double>(options.experts);
  const double share = count_tokens * static_cast<double>(options.top_k);
  std::transform(counts.begin(), counts.end(), weights.begin(), [&](double count) {
    return experts * (count / share) / static_cast<double>(tokens);
  });
  T* gradient = dlogits.empty() ? nullptr : dlogits.data();
  return weighted_probabilities(options, tokens, scores.data(), weights, scale, gradient);
}

template <typename T>
double sequence_loss(
    const RouterOptions& options,
    std::int64_t tokens,
    std::int64_t sequence,
    std::span<const T> scores,
    std::span<const std::int32_t> choices,
    double scale,
    std::span<T> dlogits) {
  MUSTER_CHECK(
      sequence > 0 && tokens % sequence == 0,
      "the tokens of a router's sequence loss must be whole sequences");
  MUSTER_CHECK(
      std::ssize(scores) == tokens * options.experts &&
          std::ssize(choices) == tokens * options.top_k,
      "a router's scores and choices must have the sizes of its options");
  check_gradient(scores, dlogits);
  std::vector<double>& weights = expert_room<double>(options.experts);
  // Weight of one choice in the loss: f_e, with the means over tokens and over sequences.
  const double weight = static_cast<double>(options.experts) /
                        static_cast<double>(options.top_k * sequence) / static_cast<double>(tokens);
  double loss = 0;
  for (std::int64_t begin = 0; begin < tokens; begin += sequence) {
    std::fill(weights.begin(), weights.end(), 0);
    for (std::int64_t i = begin * options.top_k; i < (begin + sequence) * options.top_k; ++i) {
      weights[static_cast<std::size_t>(choices[static_cast<std::size_t>(i)])] += weight;
    }
    const std::int64_t first = begin * options.experts;
    T* gradient = dlogits.empty() ? nullptr : dlogits.data() + first;
    loss +=
        weighted_probabilities(options, sequence, scores.data() + first, weights, scale, gradient);
  }
  return loss;
}

template <typename T>
double router_z_loss(
    std::int64_t tokens,
    std::int64_t experts,
    std::span<const T> logits,
    double scale,
    std::span<T> dlogits) {
  MUSTER_CHECK(
      experts > 0 && std::ssize(logits) == tokens * experts,
      "a router's logits must be [tokens, experts]");
  check_gradient(logits, dlogits);
  std::vector<T>& probabilities = expert_room<T>(experts);
  double sum = 0;
  for (std::int64_t t = 0; t < tokens; ++t) {
    const T* row = logits.data() + t * experts;
    kernels::softmax(row, probabilities.data(), 1, experts);
    // The largest probability is exp(its logit - logsumexp), and not small.
    const std::int64_t top = std::max_element(row, row + experts) - row;
    const auto probability = static_cast<double>(probabilities[static_cast<std::size_t>(top)]);
    const double logsumexp = static_cast<double>(row[top]) - std::log(probability);
    sum += logsumexp * logsumexp;
    const double slope = scale * 2 * logsumexp / static_cast<double>(tokens);
    for (std::int64_t e = 0; !dlogits.empty() && e < experts; ++e) {
      dlogits[static_cast<std::size_t>(t * experts + e)] +=
          static_cast<T>(slope * static_cast<double>(probabilities[static_cast<std::size_t>(e)]));
    }
  }
  return tokens == 0 ? 0 : sum / static_cast<double>(tokens);
}

#define MUSTER_INSTANTIATE(T)        \
  template double switch_loss(       \
      const RouterOptions&,          \
      std::int64_t,                  \
      std::span<const T>,            \
      std::span<const double>,       \
      double,                        \
      double,                        \
      std::span<T>);                 \
  template double sequence_loss(     \
      const RouterOptions&,          \
      std::int64_t,                  \
      std::int64_t,                  \
      std::span<const T>,            \
      std::span<const std::int32_t>, \
      double,                        \
      std::span<T>);                 \
  template double router_z_loss(     \
      std::int64_t, std::int64_t, std::span<const T>, double, std::span<T>);
MUSTER_INSTANTIATE(float)
MUSTER_INSTANTIATE(double)
#undef MUSTER_INSTANTIATE

}  // namespace muster::parallel
