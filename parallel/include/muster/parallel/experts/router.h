// SPDX-License-Identifier: Apache-2.0
// Routers of mixture-of-experts layers and the losses that balance them.
//
// Shapes: logits [tokens, experts]; choices and gates [tokens, top_k]. fp32 and fp64 (for gradient
// tests). All losses are means over tokens or sequences, with natural logarithms. Losses are
// returned unscaled; their gradients times `scale` are added to dlogits unless it is empty. A token
// whose sigmoids have all underflowed has no probabilities and contributes nothing. Sources: Switch
// (arXiv 2101.03961), ST-MoE (2202.08906), aux-loss-free balancing (2408.15664), DeepSeek-V3
// (2412.19437). Thread-safety: pure functions. NaN logits give NaN gates, with distinct experts in
// range. Sizes that contradict the options, and options that check() refuses, fail a MUSTER_CHECK.
#pragma once

#include <muster/common/status.h>

#include <cstdint>
#include <span>

namespace muster::parallel {

enum class RouterScore : std::uint8_t { kSoftmax, kSigmoid };

struct RouterOptions {
  std::int64_t experts{0};
  std::int64_t top_k{0};
  RouterScore score{RouterScore::kSoftmax};
  bool renormalise{true};  // gates of a token sum to 1 before `gate_scale`
  double gate_scale{1.0};  // DeepSeek-V3: routed scaling factor
};

// Returns kInvalidArgument with the numbers.
[[nodiscard]] Status check(const RouterOptions& options);

// Chooses the top_k experts by scores + bias (ties: lower id), in descending order, with bias
// [experts] or empty. Gates are made of the unbiased scores [tokens, experts]. Adds to counts
// [experts].
template <typename T>
void route(
    const RouterOptions& options,
    std::int64_t tokens,
    std::span<const T> logits,
    std::span<const T> bias,
    std::span<T> scores,
    std::span<std::int32_t> choices,
    std::span<T> gates,
    std::span<std::int32_t> counts);

// Overwrites dlogits with the gradient from dgates. The choice itself has no gradient.
template <typename T>
void route_backward(
    const RouterOptions& options,
    std::int64_t tokens,
    std::span<const T> scores,
    std::span<const std::int32_t> choices,
    std::span<const T> gates,
    std::span<const T> dgates,
    std::span<T> dlogits);

// Switch: experts * sum_e f_e P_e, f_e = count_e / (tokens * top_k), P_e the mean softmax
// probability (kSigmoid: the mean of scores normalised to sum 1). f is a constant. `counts`
// [experts] and `count_tokens` cover the group of ranks that balances together, or this rank alone.
template <typename T>
[[nodiscard]] double switch_loss(
    const RouterOptions& options,
    std::int64_t tokens,
    std::span<const T> scores,
    std::span<const double> counts,
    double count_tokens,
    double scale,
    std::span<T> dlogits);

// DeepSeek-V3: mean over sequences of `sequence` tokens of sum_e f_e P_e with
// f_e = experts / (top_k * sequence) * count_e, P_e the mean of normalised scores. `tokens` must be
// a multiple of `sequence`.
template <typename T>
[[nodiscard]] double sequence_loss(
    const RouterOptions& options,
    std::int64_t tokens,
    std::int64_t sequence,
    std::span<const T> scores,
    std::span<const std::int32_t> choices,
    double scale,
    std::span<T> dlogits);

// ST-MoE: mean over tokens of logsumexp(logits)^2.
template <typename T>
[[nodiscard]] double router_z_loss(
    std::int64_t tokens,
    std::int64_t experts,
    std::span<const T> logits,
    double scale,
    std::span<T> dlogits);

// bias_e += rate * sign(mean count - count_e), then recentred to mean 0 if `recentre`. `counts` are
// summed over all ranks; call it once per step.
void update_router_bias(
    std::span<float> bias, std::span<const double> counts, double rate, bool recentre);

// Load of the experts in one pass; entropies in nats.
struct RouterStatistics {
  double max_violation{0};   // max_e T_e / mean T - 1
  double min_violation{0};   // 1 - min_e T_e / mean T
  double dead_share{0};      // experts without a token
  double load_entropy{0};    // entropy of T_e / sum T
  double router_entropy{0};  // mean over tokens of the scores' entropy, normalised to sum 1
  double coefficient_of_variation{0};  // standard deviation over mean of T_e
};

template <typename T>
[[nodiscard]] RouterStatistics router_statistics(
    std::int64_t tokens,
    std::int64_t experts,
    std::span<const T> scores,
    std::span<const double> counts);

}  // namespace muster::parallel
