// SPDX-License-Identifier: Apache-2.0
// Learning-rate schedules: pure functions of the number of applied updates.
#pragma once

#include <muster/common/expected.h>

#include <cstdint>
#include <string>

namespace muster::optimizer {

enum class ScheduleKind : std::uint8_t {
  kCosine,  // half cosine from the peak to final_ratio at total_steps, then constant
  kConstant,
  kLinear,       // straight line to final_ratio at total_steps, then constant
  kWsd,          // warmup, stable, decay: peak until cooldown_steps before the end
  kInverseSqrt,  // peak * sqrt(max(warmup, 1) / (step + 1)) after warmup
};

enum class CooldownShape : std::uint8_t { kLinear, kOneMinusSqrt };

// All kinds warm up linearly from 0: peak * (step + 1) / warmup_steps.
struct ScheduleOptions {
  double learning_rate{1e-3};  // peak
  std::int64_t warmup_steps{0};
  std::int64_t total_steps{1000};
  double final_ratio{0.1};
  ScheduleKind kind{ScheduleKind::kCosine};
  std::int64_t cooldown_steps{0};  // kWsd
  CooldownShape cooldown{CooldownShape::kLinear};
};

// "cosine", "constant", "linear", "wsd", "inverse_sqrt".
[[nodiscard]] const char* to_string(ScheduleKind kind);
[[nodiscard]] const char* to_string(CooldownShape shape);  // "linear", "one_minus_sqrt"
[[nodiscard]] Expected<ScheduleKind> parse_schedule(const std::string& name);

[[nodiscard]] Status validate(const ScheduleOptions& schedule);

// The learning rate of the update with 0-based index `step` (applied updates so far: a skipped step
// does not advance it).
[[nodiscard]] double learning_rate_at(const ScheduleOptions& schedule, std::int64_t step);

}  // namespace muster::optimizer
