#include "src/update.h"

#include <algorithm>
#include <cmath>

namespace muster::optimizer {
namespace {

// M <- mu M + G and the direction to orthogonalise, in one pass.
void accumulate_momentum(
    std::span<const float> gradient,
    std::span<float> momentum,
    std::span<float> direction,
    const MuonOptions& options,
    double gradient_scale,
    kernels::UpdateStatistics& statistics) {
  const auto mu = static_cast<float>(options.momentum);
  const auto scale = static_cast<float>(gradient_scale);
  double sum = 0;
  double squared = 0;
  float largest = 0;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const float g = gradient[i] * scale;
    const float m = mu * momentum[i] + g;
    momentum[i] = m;
    direction[i] = options.nesterov ? g + mu * m : m;
    sum += static_cast<double>(m);
    squared += static_cast<double>(m) * static_cast<double>(m);
    largest = std::max(largest, std::abs(m));
  }
  statistics.momentum_sum += sum;
  statistics.momentum_squared_sum += squared;
  statistics.momentum_abs_max = std::max(statistics.momentum_abs_max, static_cast<double>(largest));
}

// W <- W keep - rate O.
void move(
    std::span<float> value,
    std::span<const float> direction,
    double keep,
    double rate,
    kernels::UpdateStatistics& statistics) {
  const auto keep_factor = static_cast<float>(keep);
  const auto step_size = static_cast<float>(rate);
  double update_squared = 0;
  double value_squared = 0;
  float largest = 0;
  for (std::size_t i = 0; i < value.size(); ++i) {
    const float delta = step_size * direction[i];
    const float w = value[i] * keep_factor - delta;
    value[i] = w;
    update_squared += static_cast<double>(delta) * static_cast<double>(delta);
    value_squared += static_cast<double>(w) * static_cast<double>(w);
    largest = std::max(largest, std::abs(w));
  }
  statistics.update_squared_sum += update_squared;
  statistics.parameter_squared_sum += value_squared;
  statistics.parameter_abs_max =
      std::max(statistics.parameter_abs_max, static_cast<double>(largest));
}

}  // namespace

kernels::UpdateStatistics update_adamw(
    Shard& shard,
    const RoutedParameter& parameter,
    const AdamWOptions& options,
    const UpdateStep& step) {
  kernels::AdamWStep arguments;
  arguments.learning_rate = step.learning_rate * parameter.route.learning_rate_scale;
  arguments.beta1 = options.beta1;
  arguments.beta2 = options.beta2;
  arguments.epsilon = options.epsilon;
  arguments.weight_decay = parameter.route.weight_decay;
  arguments.gradient_scale = step.gradient_scale;
  arguments.step = step.step;
  return kernels::adamw_update(
      shard.value, shard.gradient, shard.momentum, shard.second_moment, arguments);
}

kernels::UpdateStatistics update_muon(
    Shard& shard,
    const RoutedParameter& parameter,
    const MuonOptions& options,
    std::span<const std::array<double, 3>> coefficients,
    const UpdateStep& step,
    MuonScratch& scratch) {
  const double rate = step.learning_rate * parameter.route.learning_rate_scale;
  const double keep = 1.0 - rate * parameter.route.weight_decay;
  const auto long_side = static_cast<double>(std::max(parameter.rows, parameter.cols));
  const double step_size = rate * options.rms_scale * std::sqrt(long_side);
  const auto matrix = static_cast<std::size_t>(parameter.rows * parameter.cols);
  scratch.direction.resize(std::max(scratch.direction.size(), matrix));
  const std::span<float> direction = std::span{scratch.direction}.first(matrix);
  const std::span<float> momentum{shard.momentum};
  kernels::UpdateStatistics statistics;
  for (std::size_t begin = 0; begin < shard.value.size(); begin += matrix) {
    accumulate_momentum(
        shard.gradient.subspan(begin, matrix),
        momentum.subspan(begin, matrix),
        direction,
        options,
        step.gradient_scale,
        statistics);
    kernels::newton_schulz(
        direction, parameter.rows, parameter.cols, coefficients, scratch.workspace);
    move(shard.value.subspan(begin, matrix), direction, keep, step_size, statistics);
  }
  return statistics;
}

void accumulate(
    GroupUpdateStatistics& group, std::size_t count, const kernels::UpdateStatistics& part) {
  group.element_count += static_cast<std::int64_t>(count);
  group.update_squared_sum += part.update_squared_sum;
  group.parameter_squared_sum += part.parameter_squared_sum;
  group.parameter_abs_max = std::max(group.parameter_abs_max, part.parameter_abs_max);
  group.momentum_squared_sum += part.momentum_squared_sum;
  group.momentum_sum += part.momentum_sum;
  group.momentum_abs_max = std::max(group.momentum_abs_max, part.momentum_abs_max);
  group.second_moment_sum += part.second_moment_sum;
  group.second_moment_squared_sum += part.second_moment_squared_sum;
  group.second_moment_abs_max = std::max(group.second_moment_abs_max, part.second_moment_abs_max);
}

}  // namespace muster::optimizer
