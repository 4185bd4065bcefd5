// SPDX-License-Identifier: Apache-2.0
#include "optimizer/src/storage/exchange.h"

#include <algorithm>
#include <utility>

namespace muster::optimizer {
namespace {

// A run that goes to or comes from `peer`.
struct Run {
  int peer;
  std::size_t task;
  Fragment fragment;
};

// Buffers are ordered by peer, then by task, which is the order in which runs were found.
std::vector<Transfer> in_buffer_order(
    std::vector<Run> runs, std::vector<std::size_t>& counts, std::size_t& size) {
  std::stable_sort(
      runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.peer < b.peer; });
  std::vector<Transfer> transfers;
  for (const Run& run : runs) {
    transfers.push_back({run.task, run.fragment.begin, run.fragment.size, size});
    counts[static_cast<std::size_t>(run.peer)] += run.fragment.size;
    size += run.fragment.size;
  }
  return transfers;
}

bool any_result(const MatrixTask& task) {
  return std::any_of(task.fragments.begin(), task.fragments.end(), [&](const Fragment& fragment) {
    return !computes(task, fragment.rank);
  });
}

void plan_directions(const BufferPlan& plan, int rank, ExchangeRound& round) {
  std::vector<Run> sends;
  std::vector<Run> receives;
  for (const std::size_t index : round.tasks) {
    const MatrixTask& task = plan.tasks[index];
    if (const Fragment* mine = fragment_of(task, rank); mine != nullptr) {
      for (const int peer : task.computing) {
        if (peer != rank) {
          sends.push_back({peer, index, *mine});
        }
      }
    }
    if (computes(task, rank)) {
      for (const Fragment& theirs : task.fragments) {
        if (theirs.rank != rank) {
          receives.push_back({theirs.rank, index, theirs});
        }
      }
    }
  }
  Leg& leg = round.directions;
  leg.sends = in_buffer_order(std::move(sends), leg.send_counts, leg.send_size);
  leg.receives = in_buffer_order(std::move(receives), leg.receive_counts, leg.receive_size);
}

// The first computing rank sends their parts to ranks that do not compute.
void plan_results(const BufferPlan& plan, int rank, ExchangeRound& round) {
  std::vector<Run> sends;
  std::vector<Run> receives;
  for (const std::size_t index : round.tasks) {
    const MatrixTask& task = plan.tasks[index];
    const int owner = task.computing.front();
    if (owner == rank) {
      for (const Fragment& theirs : task.fragments) {
        if (!computes(task, theirs.rank)) {
          sends.push_back({theirs.rank, index, theirs});
        }
      }
    } else if (!computes(task, rank)) {
      receives.push_back({owner, index, *fragment_of(task, rank)});
    }
  }
  Leg& leg = round.results;
  leg.sends = in_buffer_order(std::move(sends), leg.send_counts, leg.send_size);
  leg.receives = in_buffer_order(std::move(receives), leg.receive_counts, leg.receive_size);
}

}  // namespace

bool computes(const MatrixTask& task, int rank) {
  return std::binary_search(task.computing.begin(), task.computing.end(), rank);
}

const Fragment* fragment_of(const MatrixTask& task, int rank) {
  const auto at =
      std::find_if(task.fragments.begin(), task.fragments.end(), [rank](const Fragment& fragment) {
        return fragment.rank == rank;
      });
  return at == task.fragments.end() ? nullptr : &*at;
}

ExchangeRound plan_exchange(const BufferPlan& plan, std::size_t first, std::size_t last, int rank) {
  ExchangeRound round;
  const auto ranks = static_cast<std::size_t>(plan.ranks);
  for (Leg* leg : {&round.directions, &round.results}) {
    leg->send_counts.assign(ranks, 0);
    leg->receive_counts.assign(ranks, 0);
  }
  for (std::size_t index = first; index < last; ++index) {
    const MatrixTask& task = plan.tasks[index];
    if (!task.moves) {
      continue;
    }
    round.directions.runs = true;
    round.results.runs = round.results.runs || any_result(task);
    if (computes(task, rank) || fragment_of(task, rank) != nullptr) {
      round.tasks.push_back(index);
    }
  }
  plan_directions(plan, rank, round);
  plan_results(plan, rank, round);
  return round;
}

double sent_bytes(const Leg& leg, int rank) {
  const std::size_t own = leg.send_counts[static_cast<std::size_t>(rank)];
  return static_cast<double>((leg.send_size - own) * sizeof(float));
}

Status exchange(
    const Leg& leg, ExchangeBuffers& buffers, comm::Communicator& holders, Deadline deadline) {
  if (!leg.runs) {
    return {};
  }
  return holders.all_to_all(
      std::span<const float>{buffers.send}.first(leg.send_size),
      leg.send_counts,
      std::span<float>{buffers.receive}.first(leg.receive_size),
      leg.receive_counts,
      deadline);
}

}  // namespace muster::optimizer
