// SPDX-License-Identifier: Apache-2.0
// A router's tensors, and all kinds of options.
#pragma once

#include "tests/unit/kernels/numbers.h"

#include <muster/parallel/experts/router.h>

#include <cstdint>
#include <string>
#include <vector>

namespace muster::parallel::test {

using namespace kernels::test;  // Numbers and memory, as the tests of the kernels have them.

template <typename T>
struct Routed {
  std::vector<T> scores;
  std::vector<std::int32_t> choices;
  std::vector<T> gates;
  std::vector<std::int32_t> counts;
};

template <typename T>
Routed<T> routed(
    const RouterOptions& options, const std::vector<T>& logits, const std::vector<T>& bias = {}) {
  const std::int64_t tokens = std::ssize(logits) / options.experts;
  const auto chosen = static_cast<std::size_t>(tokens * options.top_k);
  Routed<T> result{
      std::vector<T>(logits.size()),
      std::vector<std::int32_t>(chosen),
      std::vector<T>(chosen),
      std::vector<std::int32_t>(static_cast<std::size_t>(options.experts))};
  route<T>(
      options, tokens, logits, bias, result.scores, result.choices, result.gates, result.counts);
  return result;
}

template <typename T>
std::vector<T> backward(
    const RouterOptions& options, const Routed<T>& result, const std::vector<T>& dgates) {
  std::vector<T> dlogits(result.scores.size(), T{99});
  route_backward<T>(
      options,
      std::ssize(result.scores) / options.experts,
      result.scores,
      result.choices,
      result.gates,
      dgates,
      dlogits);
  return dlogits;
}

inline std::string named(const RouterOptions& options) {
  return std::string(options.score == RouterScore::kSoftmax ? "softmax" : "sigmoid") +
         (options.renormalise ? ", renormalised, " : ", plain, ") + std::to_string(options.top_k) +
         " of " + std::to_string(options.experts) + ", times " + std::to_string(options.gate_scale);
}

// Every kind of score and gate for 1, 2 and all of the experts.
inline std::vector<RouterOptions> all_options(std::int64_t experts) {
  std::vector<RouterOptions> all;
  for (const RouterScore score : {RouterScore::kSoftmax, RouterScore::kSigmoid}) {
    for (const bool renormalise : {true, false}) {
      for (const std::int64_t top_k : {std::int64_t{1}, std::int64_t{2}, experts}) {
        for (const double scale : {1.0, 2.5}) {
          all.push_back({experts, top_k, score, renormalise, scale});
        }
      }
    }
  }
  return all;
}

}  // namespace muster::parallel::test
