// SPDX-License-Identifier: Apache-2.0
// Choice, balance and distribution of a layer's experts: --ep and related flags.
#pragma once

#include <muster/common/expected.h>
#include <muster/parallel/experts/router.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace muster::moe_lm {

enum class ExpertExchange : std::uint8_t {
  kAllToAll,  // every row to its expert's home, for any load
  kMuster,    // equal rows on every rank: busy experts are copied for the step
};

struct ExpertOptions {
  ExpertExchange exchange{ExpertExchange::kAllToAll};
  double tolerance{0};          // kMuster: tolerated imbalance, relative to the mean
  std::optional<double> skew;   // draws experts with this maxvio instead of choosing them
  std::filesystem::path trace;  // choices and plans of every pass, for `muster plan ep replay`

  parallel::RouterScore score{parallel::RouterScore::kSoftmax};
  double switch_loss{0};  // weights of the auxiliary losses; zero disables one
  double sequence_loss{0};
  double z_loss{0};
};

// Returns kInvalidArgument naming the flag. `experts` and `top_k` are those of the model.
[[nodiscard]] Status validate(
    const ExpertOptions& options, std::int64_t experts, std::int64_t top_k);

// "alltoall", "muster".
[[nodiscard]] const char* to_string(ExpertExchange exchange);
[[nodiscard]] Expected<ExpertExchange> parse_expert_exchange(const std::string& name);
// "softmax", "sigmoid".
[[nodiscard]] const char* to_string(parallel::RouterScore score);
[[nodiscard]] Expected<parallel::RouterScore> parse_router_score(const std::string& name);

}  // namespace muster::moe_lm
