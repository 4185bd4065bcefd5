// How the experts of a layer are chosen, balanced and spread over ranks: --ep and the flags beside
// it.
#pragma once

#include <muster/common/expected.h>
#include <muster/parallel/experts/router.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace muster::moe_lm {

enum class ExpertExchange : std::uint8_t {
  kAllToAll,  // every row to its expert's home, whatever the load
  kMuster,    // equal rows on every rank: busy experts are copied for the step
};

struct ExpertOptions {
  ExpertExchange exchange{ExpertExchange::kAllToAll};
  double tolerance{0};          // kMuster: imbalance that is left alone, relative to the mean
  std::optional<double> skew;   // drawn instead of chosen: experts with this maxvio
  std::filesystem::path trace;  // choices and plans of every pass, for `muster plan ep replay`

  parallel::RouterScore score{parallel::RouterScore::kSoftmax};
  double switch_loss{0};  // weights of the auxiliary losses; 0: off
  double sequence_loss{0};
  double z_loss{0};
};

// kInvalidArgument naming the flag. `experts` and `top_k` of the model.
[[nodiscard]] Status validate(
    const ExpertOptions& options, std::int64_t experts, std::int64_t top_k);

// "alltoall", "muster".
[[nodiscard]] const char* to_string(ExpertExchange exchange);
[[nodiscard]] Expected<ExpertExchange> parse_expert_exchange(const std::string& name);
// "softmax", "sigmoid".
[[nodiscard]] const char* to_string(parallel::RouterScore score);
[[nodiscard]] Expected<parallel::RouterScore> parse_router_score(const std::string& name);

}  // namespace muster::moe_lm
