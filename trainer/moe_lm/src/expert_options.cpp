// SPDX-License-Identifier: Apache-2.0
#include "trainer/moe_lm/src/expert_options.h"

#include <muster/parallel/experts/synthetic_routing.h>

#include <array>
#include <cmath>
#include <utility>

namespace muster::moe_lm {
namespace {

constexpr std::array<std::pair<const char*, ExpertExchange>, 2> kExchanges{
    {{"alltoall", ExpertExchange::kAllToAll}, {"muster", ExpertExchange::kMuster}}};
constexpr std::array<std::pair<const char*, parallel::RouterScore>, 2> kScores{
    {{"softmax", parallel::RouterScore::kSoftmax}, {"sigmoid", parallel::RouterScore::kSigmoid}}};

template <typename T, std::size_t N>
const char* name_of(T value, const std::array<std::pair<const char*, T>, N>& known) {
  for (const auto& [name, one] : known) {
    if (one == value) {
      return name;
    }
  }
  return "?";
}

template <typename T, std::size_t N>
Expected<T> find(const std::string& name, const std::array<std::pair<const char*, T>, N>& known) {
  std::string all;
  for (const auto& [one, value] : known) {
    if (name == one) {
      return value;
    }
    all += (all.empty() ? "" : ", ") + std::string{one};
  }
  return invalid_argument("'", name, "' is not one of ", all);
}

}  // namespace

const char* to_string(ExpertExchange exchange) {
  return name_of(exchange, kExchanges);
}

Expected<ExpertExchange> parse_expert_exchange(const std::string& name) {
  return find(name, kExchanges);
}

const char* to_string(parallel::RouterScore score) {
  return name_of(score, kScores);
}

Expected<parallel::RouterScore> parse_router_score(const std::string& name) {
  return find(name, kScores);
}

Status validate(const ExpertOptions& options, std::int64_t experts, std::int64_t top_k) {
  const std::array<std::pair<const char*, double>, 4> numbers{
      {{"--ep-tolerance", options.tolerance},
       {"--switch-loss", options.switch_loss},
       {"--sequence-loss", options.sequence_loss},
       {"--z-loss", options.z_loss}}};
  for (const auto& [flag, value] : numbers) {
    if (!std::isfinite(value) || value < 0) {
      return invalid_argument(flag, " must be 0 (off) or more");
    }
  }
  const bool balanced = options.exchange == ExpertExchange::kMuster;
  if (options.tolerance > 0 && !balanced) {
    return invalid_argument("--ep-tolerance needs --ep muster");
  }
  if (!options.trace.empty() && !balanced) {
    return invalid_argument("--ep-trace needs --ep muster, whose plans it records");
  }
  if (options.skew) {
    return parallel::SyntheticRouting::create(
               static_cast<int>(experts), static_cast<int>(top_k), *options.skew, 0)
        .status()
        .context("--skew");
  }
  return {};
}

}  // namespace muster::moe_lm
