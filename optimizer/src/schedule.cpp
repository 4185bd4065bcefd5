// SPDX-License-Identifier: Apache-2.0
#include "optimizer/src/rules/checks.h"

#include <muster/optimizer/schedule.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace muster::optimizer {
namespace {

// Share of the way from `begin` to `end`, in [0, 1].
double progress(std::int64_t step, std::int64_t begin, std::int64_t end) {
  return static_cast<double>(step - begin) / static_cast<double>(end - begin);
}

double cooled(const ScheduleOptions& schedule, double done) {
  return schedule.cooldown == CooldownShape::kOneMinusSqrt ? 1.0 - std::sqrt(done) : 1.0 - done;
}

// Height above the floor after warmup, as a share of the way from floor to peak.
double remaining(const ScheduleOptions& schedule, std::int64_t step) {
  switch (schedule.kind) {
    case ScheduleKind::kConstant:
    case ScheduleKind::kInverseSqrt:
      return 1.0;
    case ScheduleKind::kCosine:
      return step >= schedule.total_steps
                 ? 0.0
                 : 0.5 * (1.0 + std::cos(
                                    std::numbers::pi *
                                    progress(step, schedule.warmup_steps, schedule.total_steps)));
    case ScheduleKind::kLinear:
      return step >= schedule.total_steps
                 ? 0.0
                 : 1.0 - progress(step, schedule.warmup_steps, schedule.total_steps);
    case ScheduleKind::kWsd: {
      const std::int64_t begin = schedule.total_steps - schedule.cooldown_steps;
      if (step < begin || schedule.cooldown_steps == 0) {
        return 1.0;  // Without a cooldown there is nothing to fall to.
      }
      return step >= schedule.total_steps
                 ? 0.0
                 : cooled(schedule, progress(step, begin, begin + schedule.cooldown_steps));
    }
  }
  return 1.0;
}

}  // namespace

const char* to_string(CooldownShape shape) {
  return shape == CooldownShape::kLinear ? "linear" : "one_minus_sqrt";
}

const char* to_string(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::kCosine:
      return "cosine";
    case ScheduleKind::kConstant:
      return "constant";
    case ScheduleKind::kLinear:
      return "linear";
    case ScheduleKind::kWsd:
      return "wsd";
    case ScheduleKind::kInverseSqrt:
      return "inverse_sqrt";
  }
  return "unknown";
}

Expected<ScheduleKind> parse_schedule(const std::string& name) {
  for (const ScheduleKind kind :
       {ScheduleKind::kCosine,
        ScheduleKind::kConstant,
        ScheduleKind::kLinear,
        ScheduleKind::kWsd,
        ScheduleKind::kInverseSqrt}) {
    if (name == to_string(kind)) {
      return kind;
    }
  }
  return invalid_argument(
      "unknown schedule '" + name + "'; use cosine, constant, linear, wsd or inverse_sqrt");
}

Status validate(const ScheduleOptions& schedule) {
  MUSTER_RETURN_IF_ERROR(require_not_negative(schedule.learning_rate, "schedule.learning_rate"));
  MUSTER_RETURN_IF_ERROR(
      require(schedule.warmup_steps >= 0, "schedule.warmup_steps must be 0 or more"));
  MUSTER_RETURN_IF_ERROR(require_not_negative(schedule.final_ratio, "schedule.final_ratio"));
  MUSTER_RETURN_IF_ERROR(
      require(schedule.cooldown_steps >= 0, "schedule.cooldown_steps must be 0 or more"));
  if (schedule.kind != ScheduleKind::kWsd) {
    return require(
        schedule.cooldown_steps == 0,
        "schedule.cooldown_steps belongs to the wsd schedule, this one is ",
        to_string(schedule.kind));
  }
  return require(
      schedule.warmup_steps + schedule.cooldown_steps <= schedule.total_steps,
      "the wsd schedule's warmup (",
      schedule.warmup_steps,
      " steps) and cooldown (",
      schedule.cooldown_steps,
      ") do not fit into schedule.total_steps ",
      schedule.total_steps);
}

double learning_rate_at(const ScheduleOptions& schedule, std::int64_t step) {
  const double peak = schedule.learning_rate;
  if (step < schedule.warmup_steps) {
    // The first update already moves: step 0 gets peak / warmup, the last warmup step the peak.
    return peak * static_cast<double>(step + 1) / static_cast<double>(schedule.warmup_steps);
  }
  if (schedule.kind == ScheduleKind::kInverseSqrt) {
    const auto warmup = static_cast<double>(std::max<std::int64_t>(schedule.warmup_steps, 1));
    return peak * std::sqrt(warmup / static_cast<double>(step + 1));
  }
  const double floor = peak * schedule.final_ratio;
  return floor + (peak - floor) * remaining(schedule, step);
}

}  // namespace muster::optimizer
