#include "src/exchange.h"

#include <algorithm>

namespace muster::optimizer {
namespace {

void append(
    std::vector<Transfer>& transfers,
    std::size_t& count,
    std::size_t& offset,
    std::size_t task,
    const Fragment& fragment) {
  transfers.push_back({task, fragment.begin, fragment.size, offset});
  offset += fragment.size;
  count += fragment.size;
}

// Whether `from` sends its fragment of a task to `to`.
bool sends_direction(const MatrixTask& task, int from, int to) {
  return from != to && computes(task, to) && fragment_of(task, from) != nullptr;
}

// Whether `from` sends `to` the result of its fragment.
bool sends_result(const MatrixTask& task, int from, int to) {
  return from == task.computing.front() && fragment_of(task, to) != nullptr && !computes(task, to);
}

bool any_result(const MatrixTask& task) {
  return std::any_of(task.fragments.begin(), task.fragments.end(), [&](const Fragment& fragment) {
    return !computes(task, fragment.rank);
  });
}

void plan_legs(const RegionPlan& plan, int rank, ExchangeRound& round) {
  Leg& there = round.directions;
  Leg& back = round.results;
  for (int peer = 0; peer < plan.ranks; ++peer) {
    const auto at = static_cast<std::size_t>(peer);
    for (const std::size_t index : round.tasks) {
      const MatrixTask& task = plan.tasks[index];
      const Fragment* mine = fragment_of(task, rank);
      const Fragment* theirs = fragment_of(task, peer);
      if (sends_direction(task, rank, peer)) {
        append(there.sends, there.send_counts[at], there.send_size, index, *mine);
      }
      if (sends_direction(task, peer, rank)) {
        append(there.receives, there.receive_counts[at], there.receive_size, index, *theirs);
      }
      if (sends_result(task, rank, peer)) {
        append(back.sends, back.send_counts[at], back.send_size, index, *theirs);
      }
      if (sends_result(task, peer, rank)) {
        append(back.receives, back.receive_counts[at], back.receive_size, index, *mine);
      }
    }
  }
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

ExchangeRound plan_exchange(const RegionPlan& plan, std::size_t first, std::size_t last, int rank) {
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
  plan_legs(plan, rank, round);
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
