// SPDX-License-Identifier: Apache-2.0
// The update rule of the parameters and its settings: --optimizer and related flags.
#pragma once

#include <muster/common/expected.h>
#include <muster/optimizer/options.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace muster::moe_lm {

// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): ordered by topic
struct UpdateOptions {
  // Rule of the hidden and expert matrices. Embedding, head, router and norms stay with AdamW under
  // Muon and AdamW; under the other rules all parameters follow it.
  optimizer::Rule rule{optimizer::Rule::kMuon};
  optimizer::Layout layout{optimizer::Layout::kWholeMatrices};
  optimizer::StateType state_type{optimizer::StateType::kFloat32};
  DType parameter_type{DType::kFloat32};

  optimizer::MuonOptions muon;
  bool per_head_muon{false};  // queries, keys and values orthogonalised head by head

  std::optional<double> momentum;  // replaces the rule's default
  double adam_beta2{0.95};         // AdamW and Adam
  double weight_decay{0.1};        // applies to hidden and expert matrices and the head

  optimizer::ScheduleKind schedule{optimizer::ScheduleKind::kCosine};
  std::int64_t cooldown{0};  // of wsd; zero selects a fifth of the steps

  bool zclip{false};
  double agc{0};  // zero disables it
  bool overlap{false};
  std::size_t bucket_bytes{optimizer::OptimizerOptions{}.bucket_bytes};
};

// Returns kInvalidArgument naming the flag. The optimizer checks the rest.
[[nodiscard]] Status validate(const UpdateOptions& options);

// "fp32", "bf16", "fp16".
[[nodiscard]] Expected<DType> parse_parameter_type(const std::string& name);
// "fp32", "bf16", "int8".
[[nodiscard]] Expected<optimizer::StateType> parse_state_type(const std::string& name);
// "fp32", "bf16".
[[nodiscard]] Expected<DType> parse_matrix_precision(const std::string& name);

}  // namespace muster::moe_lm
