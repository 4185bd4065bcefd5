// SPDX-License-Identifier: Apache-2.0
// Results of a forward beside its tensors.
#pragma once

#include "kernels/moba/cpu/call.h"
#include "kernels/moba/cpu/gate.h"
#include "kernels/moba/cpu/selection.h"

#include <limits>
#include <span>
#include <vector>

namespace muster::kernels {

struct MobaReport {
  explicit MobaReport(const MobaCall& call)
      : max_logit(static_cast<std::size_t>(call.heads), -std::numeric_limits<float>::infinity()),
        nonfinite_rows(static_cast<std::size_t>(call.heads), 0) {}

  MobaGateReport gate;  // empty if not asked for, or if no sequence had a gate
  std::vector<float> max_logit;
  std::vector<std::int64_t> nonfinite_rows;
};

[[nodiscard]] bool wants_gate(const MobaStatistics& statistics);

// Writes those of the gate and of choices. `gate` is empty if no sequence had one.
void write_choice_statistics(
    const MobaSelection::State& state,
    const MobaGateReport& gate,
    const MobaStatistics& statistics);

void write_statistics(
    const AttentionTensor& q,
    const AttentionTensor& k,
    const MobaSelection::State& state,
    const MobaReport& report,
    const MobaStatistics& statistics);

// Keys with a NaN or an infinity, per kv head.
void count_nonfinite_keys(
    const MobaCall& call, const AttentionTensor& k, std::span<std::int64_t> nonfinite);

}  // namespace muster::kernels
