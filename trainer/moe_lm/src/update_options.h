// How the parameters move: the update rule and everything that --optimizer and the flags beside it
// say about it.
#pragma once

#include <muster/common/expected.h>
#include <muster/optimizer/options.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace muster::moe_lm {

struct UpdateOptions {
  // Of the hidden and expert matrices. Embedding, head, router and norms stay with AdamW under Muon
  // and AdamW; under the other rules all parameters follow it.
  optimizer::Rule rule{optimizer::Rule::kMuon};
  optimizer::Layout layout{optimizer::Layout::kWholeMatrices};
  optimizer::StateType state_type{optimizer::StateType::kFloat32};
  optimizer::FloatType parameter_type{optimizer::FloatType::kFloat32};

  optimizer::MuonOptions muon;
  bool per_head_muon{false};  // queries, keys and values orthogonalised head by head

  std::optional<double> momentum;  // instead of the rule's own default
  double adam_beta2{0.95};         // AdamW and Adam
  double weight_decay{0.1};        // of hidden and expert matrices and the head

  optimizer::ScheduleKind schedule{optimizer::ScheduleKind::kCosine};
  std::int64_t cooldown{0};  // wsd; 0: a fifth of the steps

  bool zclip{false};
  double agc{0};  // 0: off
  bool overlap{false};
  std::size_t bucket_bytes{optimizer::OptimizerOptions{}.bucket_bytes};
};

// kInvalidArgument naming the flag. What only the optimizer can judge, it refuses itself.
[[nodiscard]] Status validate(const UpdateOptions& options);

// "fp32", "bf16", "fp16".
[[nodiscard]] Expected<optimizer::FloatType> parse_parameter_type(const std::string& name);
// "fp32", "bf16", "int8".
[[nodiscard]] Expected<optimizer::StateType> parse_state_type(const std::string& name);
// "fp32", "bf16".
[[nodiscard]] Expected<kernels::MatrixPrecision> parse_matrix_precision(const std::string& name);

}  // namespace muster::moe_lm
