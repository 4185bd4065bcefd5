#include <muster/optimizer/options.h>

#include <cmath>
#include <numbers>

namespace muster::optimizer {

double learning_rate_at(const ScheduleOptions& schedule, std::int64_t step) {
  const double peak = schedule.learning_rate;
  if (step < schedule.warmup_steps) {
    // The first update already moves: step 0 gets peak / warmup, the last warmup step the peak.
    return peak * static_cast<double>(step + 1) / static_cast<double>(schedule.warmup_steps);
  }
  const double floor = peak * schedule.final_ratio;
  if (step >= schedule.total_steps) {
    return floor;
  }
  const double progress = static_cast<double>(step - schedule.warmup_steps) /
                          static_cast<double>(schedule.total_steps - schedule.warmup_steps);
  return floor + (peak - floor) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
}

}  // namespace muster::optimizer
