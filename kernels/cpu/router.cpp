#include "cpu/simd/table.h"

#include <muster/kernels/moe.h>

#include <algorithm>
#include <cmath>

namespace muster::kernels {

namespace {

// Writes the ids of the top_k largest scores + bias, largest first, lower id first among equals.
// With NaN scores the ids are still distinct and in range.
template <typename T>
void choose(
    const T* scores,
    const T* bias,
    std::int64_t experts,
    std::int64_t top_k,
    std::int32_t* chosen) {
  for (std::int64_t c = 0; c < top_k; ++c) {
    std::int64_t best = -1;
    T best_score{};
    for (std::int64_t e = 0; e < experts; ++e) {
      if (std::find(chosen, chosen + c, static_cast<std::int32_t>(e)) != chosen + c) {
        continue;
      }
      const T score = bias == nullptr ? scores[e] : scores[e] + bias[e];
      if (best < 0 || score > best_score) {
        best = e;
        best_score = score;
      }
    }
    chosen[c] = static_cast<std::int32_t>(best);
  }
}

// Renormalised scores, computed as the softmax of the chosen logits: the same number, but safe
// where the scores themselves have underflowed to zero.
template <typename T>
void gate(const T* logits, const std::int32_t* chosen, std::int64_t top_k, T* gates) {
  T largest = logits[chosen[0]];
  for (std::int64_t c = 1; c < top_k; ++c) {
    largest = std::max(largest, logits[chosen[c]]);
  }
  T total{};
  for (std::int64_t c = 0; c < top_k; ++c) {
    gates[c] = std::exp(logits[chosen[c]] - largest);
    total += gates[c];
  }
  for (std::int64_t c = 0; c < top_k; ++c) {
    gates[c] /= total;
  }
}

}  // namespace

template <typename T>
void router_forward(
    const T* logits,
    const T* bias,
    std::int64_t tokens,
    std::int64_t experts,
    std::int64_t top_k,
    T* scores,
    T* gates,
    Routing& routing) {
  routing.tokens = tokens;
  routing.experts = experts;
  routing.top_k = top_k;
  routing.expert.resize(static_cast<std::size_t>(tokens * top_k));
  routing.counts.assign(static_cast<std::size_t>(experts), 0);
  if (top_k == 0) {
    return;
  }
  kernel_table<T>().softmax(logits, scores, tokens, experts);
  for (std::int64_t t = 0; t < tokens; ++t) {
    std::int32_t* chosen = routing.expert.data() + t * top_k;
    choose(scores + t * experts, bias, experts, top_k, chosen);
    gate(logits + t * experts, chosen, top_k, gates + t * top_k);
    for (std::int64_t c = 0; c < top_k; ++c) {
      ++routing.counts[static_cast<std::size_t>(chosen[c])];
    }
  }
}

template <typename T>
void router_backward(
    const Routing& routing, const T* /*scores*/, const T* gates, const T* dgates, T* dlogits) {
  // Renormalising cancels what the other experts put into the softmax: a gate depends on the chosen
  // logits alone, and its gradient is that of a softmax over them.
  std::fill_n(dlogits, routing.tokens * routing.experts, T{0});
  for (std::int64_t t = 0; t < routing.tokens; ++t) {
    const std::int64_t first = t * routing.top_k;
    T mean{};
    for (std::int64_t c = 0; c < routing.top_k; ++c) {
      mean += dgates[first + c] * gates[first + c];
    }
    for (std::int64_t c = 0; c < routing.top_k; ++c) {
      const auto expert = routing.expert[static_cast<std::size_t>(first + c)];
      dlogits[t * routing.experts + expert] = gates[first + c] * (dgates[first + c] - mean);
    }
  }
}

#define MUSTER_INSTANTIATE(T)                                                          \
  template void router_forward(                                                        \
      const T*, const T*, std::int64_t, std::int64_t, std::int64_t, T*, T*, Routing&); \
  template void router_backward(const Routing&, const T*, const T*, const T*, T*);
MUSTER_INSTANTIATE(float)
MUSTER_INSTANTIATE(double)

}  // namespace muster::kernels
