// SPDX-License-Identifier: Apache-2.0
// Layouts side by side, and which one to take.
#pragma once

#include <muster/optimizer/plan.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace muster::cli {

// A plan in the figures that decide between layouts. Bytes and flops are the heaviest rank's.
struct LayoutSummary {
  optimizer::Layout layout{optimizer::Layout::kWholeMatrices};
  double memory{0};
  double states{0};  // masters included
  double newton_schulz{0};
  double newton_schulz_ideal{0};  // an equal share of the work done once
  double repeated{1};             // flops of all ranks over the work done once
  double sent{0};
  double exchange{0};
  std::int64_t cut{0};
  std::int64_t collectives{0};
};

[[nodiscard]] LayoutSummary summarise(const optimizer::PlanReport& report);

struct Advice {
  optimizer::Layout layout{optimizer::Layout::kWholeMatrices};
  std::string reason;  // a sentence
};

// From plans of the same model in whole and flat_owner at least. The other layouts are for storage
// that is given (rows, replicas) or repeat work, and are never the answer.
[[nodiscard]] std::optional<Advice> recommend(std::span<const optimizer::PlanReport> reports);

// The table, the advised layout marked, what its columns mean, and the advice.
[[nodiscard]] std::string compare(std::span<const optimizer::PlanReport> reports);

}  // namespace muster::cli
