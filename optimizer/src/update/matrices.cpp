// SPDX-License-Identifier: Apache-2.0
#include "optimizer/src/update/matrices.h"

#include "optimizer/src/update/update.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace muster::optimizer {
namespace {

std::size_t scratch_elements(const OptimizerOptions& options) {
  return std::max<std::size_t>(options.exchange_bytes / sizeof(float), 1);
}

// Equal shapes next to each other are orthogonalised in one batch.
void sort_by_shape(
    std::vector<std::size_t>& tasks, const BufferPlan& plan, const Routing& routing) {
  const auto shape = [&](std::size_t index) {
    const RoutedParameter& parameter = routing.parameters[plan.tasks[index].parameter];
    return std::pair{parameter.rows, parameter.cols};
  };
  std::stable_sort(tasks.begin(), tasks.end(), [&](std::size_t a, std::size_t b) {
    return shape(a) < shape(b);
  });
}

// This rank's matrices that are whole where they are stored.
std::vector<std::size_t> own_tasks(const BufferPlan& plan, const Routing& routing, int rank) {
  std::vector<std::size_t> own;
  for (std::size_t index = 0; index < plan.tasks.size(); ++index) {
    if (!plan.tasks[index].moves && computes(plan.tasks[index], rank)) {
      own.push_back(index);
    }
  }
  sort_by_shape(own, plan, routing);
  return own;
}

}  // namespace

MatrixSchedule schedule_matrices(
    const BufferPlan& plan, const Routing& routing, int rank, std::size_t round_elements) {
  MatrixSchedule schedule;
  std::size_t first = 0;
  for (const std::size_t last : plan.round_ends) {
    ExchangeRound round = plan_exchange(plan, first, last, rank);
    first = last;
    if (!round.directions.runs) {
      continue;
    }
    schedule.bytes += sent_bytes(round.directions, rank) + sent_bytes(round.results, rank);
    schedule.collectives += round.results.runs ? 2 : 1;
    schedule.rounds.push_back(std::move(round));
  }
  ExchangeRound local;
  std::size_t elements = 0;
  for (const std::size_t index : own_tasks(plan, routing, rank)) {
    const std::size_t size = plan.tasks[index].size;
    if (elements > 0 && elements + size > round_elements) {
      schedule.rounds.push_back(std::exchange(local, {}));
      elements = 0;
    }
    local.tasks.push_back(index);
    elements += size;
  }
  if (!local.tasks.empty()) {
    schedule.rounds.push_back(std::move(local));
  }
  return schedule;
}

MatrixUpdate::MatrixUpdate(const Routing& routing, const OptimizerOptions& options)
    : routing_(&routing), options_(&options), orthogonaliser_(options, scratch_elements(options)) {}

Status MatrixUpdate::run(
    const ParamBuffer& buffer,
    const MatrixSchedule& schedule,
    std::span<ShardState> shards,
    const StepDecision& decision,
    std::int64_t step,
    std::span<GroupUpdateStatistics> statistics,
    Deadline deadline) {
  Step made{buffer, {}, decision, step, statistics, deadline, buffer.holders().rank()};
  for (ShardState& shard : shards) {
    made.shard_of[shard.range.parameter] = &shard;
  }
  for (const ExchangeRound& round : schedule.rounds) {
    MUSTER_RETURN_IF_ERROR(run_round(made, round));
  }
  return {};
}

Status MatrixUpdate::run_round(const Step& step, const ExchangeRound& round) {
  place(step, round);
  fill_directions(step, round);
  comm::Communicator& holders = step.buffer.holders();
  MUSTER_RETURN_IF_ERROR(exchange(round.directions, buffers_, holders, step.deadline)
                             .context("bringing the parts of matrices together"));
  for (const Transfer& part : round.directions.receives) {
    std::memcpy(
        in_work(part.task, part.begin),
        buffers_.receive.data() + part.offset,
        part.size * sizeof(float));
  }
  orthogonaliser_.run(work_, matrices_, step.statistics);
  fill_results(step, round);
  MUSTER_RETURN_IF_ERROR(exchange(round.results, buffers_, holders, step.deadline)
                             .context("sending orthogonalised parts back"));
  apply(step, round);
  return {};
}

void MatrixUpdate::place(const Step& step, const ExchangeRound& round) {
  const auto& tasks = step.buffer.plan().tasks;
  std::vector<std::size_t> computed;
  for (const std::size_t index : round.tasks) {
    if (computes(tasks[index], step.rank)) {
      computed.push_back(index);
    }
  }
  sort_by_shape(computed, step.buffer.plan(), *routing_);
  matrices_.clear();
  work_offset_.clear();
  std::size_t size = 0;
  for (const std::size_t index : computed) {
    const MatrixTask& task = tasks[index];
    matrices_.push_back(
        {&routing_->parameters[task.parameter], size, task.computing.front() == step.rank});
    work_offset_[index] = size;
    size += task.size;
  }
  const auto grow = [](std::vector<float>& buffer, std::size_t needed) {
    buffer.resize(std::max(buffer.size(), needed));
  };
  grow(work_, size);
  grow(buffers_.send, std::max(round.directions.send_size, round.results.send_size));
  grow(buffers_.receive, std::max(round.directions.receive_size, round.results.receive_size));
}

float* MatrixUpdate::in_work(std::size_t task, std::size_t begin) {
  return work_.data() + work_offset_.at(task) + begin;
}

kernels::UpdateStep MatrixUpdate::step_for(
    const Step& step, const RoutedParameter& parameter, const ShardState& shard) const {
  kernels::UpdateStep made = update_step(parameter, *options_, step.decision, step.step);
  made.statistics = made.statistics && shard.range.primary;
  return made;
}

void MatrixUpdate::fill_directions(const Step& step, const ExchangeRound& round) {
  // Computed once: in the work buffer if this rank computes the matrix, else in the first send
  // slot.
  std::map<std::size_t, float*> home;
  const auto place_of = [&](const Transfer& part) { return buffers_.send.data() + part.offset; };
  for (const Transfer& part : round.directions.sends) {
    home.emplace(part.task, place_of(part));
  }
  for (const std::size_t index : round.tasks) {
    const MatrixTask& task = step.buffer.plan().tasks[index];
    const Fragment* fragment = fragment_of(task, step.rank);
    if (fragment == nullptr) {
      continue;
    }
    if (computes(task, step.rank)) {
      home[index] = in_work(index, fragment->begin);
    }
    const RoutedParameter& parameter = routing_->parameters[task.parameter];
    ShardState& shard = *step.shard_of.at(task.parameter);
    const kernels::UpdateStatistics part = update_direction(
        shard,
        task.begin + fragment->begin - shard.range.parameter_begin,
        fragment->size,
        options_->muon,
        step_for(step, parameter, shard),
        home.at(index));
    if (shard.range.primary) {
      accumulate(
          step.statistics[static_cast<std::size_t>(parameter.group_index)], fragment->size, part);
    }
  }
  for (const Transfer& part : round.directions.sends) {
    if (home.at(part.task) != place_of(part)) {
      std::memcpy(place_of(part), home.at(part.task), part.size * sizeof(float));
    }
  }
}

void MatrixUpdate::fill_results(const Step& /*step*/, const ExchangeRound& round) {
  for (const Transfer& part : round.results.sends) {
    std::memcpy(
        buffers_.send.data() + part.offset,
        in_work(part.task, part.begin),
        part.size * sizeof(float));
  }
}

void MatrixUpdate::apply(const Step& step, const ExchangeRound& round) {
  const auto& tasks = step.buffer.plan().tasks;
  for (const std::size_t index : round.tasks) {
    const Fragment* fragment = fragment_of(tasks[index], step.rank);
    if (fragment != nullptr && computes(tasks[index], step.rank)) {
      apply_fragment(step, tasks[index], *fragment, in_work(index, fragment->begin));
    }
  }
  for (const Transfer& part : round.results.receives) {
    const MatrixTask& task = tasks[part.task];
    apply_fragment(
        step, task, *fragment_of(task, step.rank), buffers_.receive.data() + part.offset);
  }
}

void MatrixUpdate::apply_fragment(
    const Step& step, const MatrixTask& task, const Fragment& fragment, const float* orthogonal) {
  const RoutedParameter& parameter = routing_->parameters[task.parameter];
  ShardState& shard = *step.shard_of.at(task.parameter);
  const kernels::UpdateStep update = step_for(step, parameter, shard);
  const auto cols = static_cast<std::size_t>(parameter.cols);
  kernels::UpdateStatistics moved;
  for (const MatrixBlock& block : parameter.blocks) {
    const double scale = muon_scale(options_->muon, block.rows, parameter.cols);
    for (const RowRun& run : block.runs) {
      const std::size_t run_begin = static_cast<std::size_t>(run.begin) * cols;
      const std::size_t run_end = run_begin + static_cast<std::size_t>(run.rows) * cols;
      const std::size_t begin = std::max(run_begin, fragment.begin);
      const std::size_t end = std::min(run_end, fragment.begin + fragment.size);
      // All of a block is NaN when a part of it is: it stays as it was on every rank.
      if (begin >= end || std::isnan(orthogonal[begin - fragment.begin])) {
        continue;
      }
      const kernels::UpdateTensors tensors =
          tensors_of(shard, task.begin + begin - shard.range.parameter_begin, end - begin);
      moved.add(apply_muon(tensors, update, scale, orthogonal + (begin - fragment.begin)));
    }
  }
  if (shard.range.primary) {
    accumulate(step.statistics[static_cast<std::size_t>(parameter.group_index)], 0, moved);
  }
}

}  // namespace muster::optimizer
