// SPDX-License-Identifier: Apache-2.0
// Choice of experts, gates, and their gradients.

#include <muster/common/check.h>
#include <muster/common/text.h>
#include <muster/kernels/row_ops.h>
#include <muster/parallel/experts/router.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

namespace muster::parallel {

namespace {

template <typename T>
T sigmoid(T x) {
  // In both branches the argument of exp is at most 0.
  return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x));
}

template <typename T>
void score(const RouterOptions& options, std::int64_t tokens, const T* logits, T* scores) {
  if (options.score == RouterScore::kSoftmax) {
    kernels::softmax(logits, scores, tokens, options.experts);
  } else {
    std::transform(logits, logits + tokens * options.experts, scores, sigmoid<T>);
  }
}

// Orders NaN before all numbers, so that it is chosen and visible.
template <typename T>
bool precedes(T a, T b) {
  return a > b || (std::isnan(a) && !std::isnan(b));
}

// The ids of the top_k first scores + bias in order, the lower id first among equals. `keys` is
// room for top_k numbers.
template <typename T>
void choose(
    const RouterOptions& options, const T* scores, const T* bias, std::int32_t* chosen, T* keys) {
  std::int64_t held = 0;
  for (std::int64_t e = 0; e < options.experts; ++e) {
    const T key = bias == nullptr ? scores[e] : scores[e] + bias[e];
    if (held == options.top_k && !precedes(key, keys[held - 1])) {
      continue;
    }
    std::int64_t place = held == options.top_k ? held - 1 : held++;
    for (; place > 0 && precedes(key, keys[place - 1]); --place) {
      keys[place] = keys[place - 1];
      chosen[place] = chosen[place - 1];
    }
    keys[place] = key;
    chosen[place] = static_cast<std::int32_t>(e);
  }
}

// log sigmoid(x) without underflow.
template <typename T>
T log_sigmoid(T x) {
  return std::min(x, T{0}) - std::log1p(std::exp(-std::abs(x)));
}

// Normalises to sum 1 from the logarithms of the scores up to a constant, so that it works if the
// scores have underflowed to 0.
template <typename T, typename Logarithm>
void softmax_of_chosen(
    const std::int32_t* chosen, std::int64_t top_k, const Logarithm& logarithm, T* gates) {
  T largest = logarithm(chosen[0]);
  for (std::int64_t c = 1; c < top_k; ++c) {
    largest = std::max(largest, logarithm(chosen[c]));
  }
  T total{};
  for (std::int64_t c = 0; c < top_k; ++c) {
    gates[c] = std::exp(logarithm(chosen[c]) - largest);
    total += gates[c];
  }
  for (std::int64_t c = 0; c < top_k; ++c) {
    gates[c] /= total;
  }
}

template <typename T>
void renormalised_gates(
    const RouterOptions& options,
    const T* logits,
    const T* scores,
    const std::int32_t* chosen,
    T* gates) {
  if (options.score == RouterScore::kSoftmax) {
    softmax_of_chosen(
        chosen, options.top_k, [&](std::int32_t e) { return logits[e]; }, gates);
    return;
  }
  T total{};
  for (std::int64_t c = 0; c < options.top_k; ++c) {
    gates[c] = scores[chosen[c]];
    total += gates[c];
  }
  if (total < std::numeric_limits<T>::min() / std::numeric_limits<T>::epsilon()) {
    const auto logarithm = [&](std::int32_t e) { return log_sigmoid(logits[e]); };
    softmax_of_chosen(chosen, options.top_k, logarithm, gates);
    return;
  }
  for (std::int64_t c = 0; c < options.top_k; ++c) {
    gates[c] /= total;
  }
}

template <typename T>
void gate(
    const RouterOptions& options,
    const T* logits,
    const T* scores,
    const std::int32_t* chosen,
    T* gates) {
  // Softmax: one NaN logit is in all scores. Sigmoid: a NaN score is among the chosen, as first.
  if (std::isnan(scores[chosen[0]])) {
    std::fill_n(gates, options.top_k, std::numeric_limits<T>::quiet_NaN());
    return;
  }
  if (options.renormalise) {
    renormalised_gates(options, logits, scores, chosen, gates);
  } else {
    std::transform(
        chosen, chosen + options.top_k, gates, [&](std::int32_t e) { return scores[e]; });
  }
  const T scale = static_cast<T>(options.gate_scale);
  std::for_each(gates, gates + options.top_k, [&](T& value) { value *= scale; });
}

// Every gate depends on the chosen logits alone: the terms of the other experts in a softmax
// cancel.
template <typename T>
void renormalised_backward(
    const RouterOptions& options,
    const T* scores,
    const std::int32_t* chosen,
    const T* gates,
    const T* dgates,
    T* dlogits) {
  T mean{};
  for (std::int64_t c = 0; c < options.top_k; ++c) {
    mean += dgates[c] * gates[c];
  }
  mean /= static_cast<T>(options.gate_scale);
  for (std::int64_t c = 0; c < options.top_k; ++c) {
    const std::int32_t e = chosen[c];
    const T slope = options.score == RouterScore::kSoftmax ? T{1} : 1 - scores[e];
    dlogits[e] = gates[c] * (dgates[c] - mean) * slope;
  }
}

template <typename T>
void plain_backward(
    const RouterOptions& options,
    const T* scores,
    const std::int32_t* chosen,
    const T* dgates,
    T* dlogits) {
  const T scale = static_cast<T>(options.gate_scale);
  if (options.score == RouterScore::kSigmoid) {
    for (std::int64_t c = 0; c < options.top_k; ++c) {
      const std::int32_t e = chosen[c];
      dlogits[e] = scale * dgates[c] * scores[e] * (1 - scores[e]);
    }
    return;
  }
  T mean{};
  for (std::int64_t c = 0; c < options.top_k; ++c) {
    dlogits[chosen[c]] = scale * dgates[c];
    mean += scale * dgates[c] * scores[chosen[c]];
  }
  for (std::int64_t e = 0; e < options.experts; ++e) {
    dlogits[e] = scores[e] * (dlogits[e] - mean);
  }
}

template <typename T>
void check_sizes(
    const RouterOptions& options,
    std::int64_t tokens,
    std::span<const T> scores,
    std::size_t choices,
    std::size_t gates) {
  const Status valid = check(options);
  MUSTER_CHECK(valid.ok(), "router options must pass check() first");
  MUSTER_CHECK(
      std::ssize(scores) == tokens * options.experts &&
          choices == static_cast<std::size_t>(tokens * options.top_k) && gates == choices,
      "a router's tensors must have the sizes of its options");
}

}  // namespace

Status check(const RouterOptions& options) {
  if (options.experts <= 0) {
    return {
        StatusCode::kInvalidArgument,
        "a router needs at least one expert, not " + std::to_string(options.experts)};
  }
  if (options.top_k <= 0 || options.top_k > options.experts) {
    return {
        StatusCode::kInvalidArgument,
        "a router cannot choose " + std::to_string(options.top_k) + " of " +
            std::to_string(options.experts) + " experts: top_k must be 1 to the number of experts"};
  }
  if (!std::isfinite(options.gate_scale) || options.gate_scale <= 0) {
    return {
        StatusCode::kInvalidArgument,
        "a router's gate_scale must be above 0, not " + fixed(options.gate_scale, 6)};
  }
  return {};
}

template <typename T>
void route(
    const RouterOptions& options,
    std::int64_t tokens,
    std::span<const T> logits,
    std::span<const T> bias,
    std::span<T> scores,
    std::span<std::int32_t> choices,
    std::span<T> gates,
    std::span<std::int32_t> counts) {
  check_sizes<T>(options, tokens, scores, choices.size(), gates.size());
  MUSTER_CHECK(
      logits.size() == scores.size() && std::ssize(counts) == options.experts &&
          (bias.empty() || std::ssize(bias) == options.experts),
      "a router's tensors must have the sizes of its options");
  score(options, tokens, logits.data(), scores.data());
  for (std::int64_t t = 0; t < tokens; ++t) {
    const T* token_scores = scores.data() + t * options.experts;
    std::int32_t* chosen = choices.data() + t * options.top_k;
    T* token_gates = gates.data() + t * options.top_k;
    choose(options, token_scores, bias.empty() ? nullptr : bias.data(), chosen, token_gates);
    gate(options, logits.data() + t * options.experts, token_scores, chosen, token_gates);
  }
  for (const std::int32_t expert : choices) {
    ++counts[static_cast<std::size_t>(expert)];
  }
}

template <typename T>
void route_backward(
    const RouterOptions& options,
    std::int64_t tokens,
    std::span<const T> scores,
    std::span<const std::int32_t> choices,
    std::span<const T> gates,
    std::span<const T> dgates,
    std::span<T> dlogits) {
  check_sizes(options, tokens, scores, choices.size(), gates.size());
  MUSTER_CHECK(
      dgates.size() == gates.size() && dlogits.size() == scores.size(),
      "a router's gradients must have the sizes of its options");
  std::fill(dlogits.begin(), dlogits.end(), T{0});
  for (std::int64_t t = 0; t < tokens; ++t) {
    const T* token_scores = scores.data() + t * options.experts;
    T* token_dlogits = dlogits.data() + t * options.experts;
    const std::int64_t first = t * options.top_k;
    const std::int32_t* chosen = choices.data() + first;
    const T* token_dgates = dgates.data() + first;
    if (options.renormalise) {
      renormalised_backward(
          options, token_scores, chosen, gates.data() + first, token_dgates, token_dlogits);
    } else {
      plain_backward(options, token_scores, chosen, token_dgates, token_dlogits);
    }
  }
}

#define MUSTER_INSTANTIATE(T)        \
  template void route(               \
      const RouterOptions&,          \
      std::int64_t,                  \
      std::span<const T>,            \
      std::span<const T>,            \
      std::span<T>,                  \
      std::span<std::int32_t>,       \
      std::span<T>,                  \
      std::span<std::int32_t>);      \
  template void route_backward(      \
      const RouterOptions&,          \
      std::int64_t,                  \
      std::span<const T>,            \
      std::span<const std::int32_t>, \
      std::span<const T>,            \
      std::span<const T>,            \
      std::span<T>);
MUSTER_INSTANTIATE(float)
MUSTER_INSTANTIATE(double)
#undef MUSTER_INSTANTIATE

}  // namespace muster::parallel
