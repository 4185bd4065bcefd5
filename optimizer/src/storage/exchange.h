// SPDX-License-Identifier: Apache-2.0
// Exchange of cut matrices: collects their parts on the ranks that orthogonalise them and returns
// the results, by an all-to-all each way per round. The schedule is the same on all ranks and does
// not depend on gradients.
#pragma once

#include "optimizer/src/layout/layout.h"

#include <muster/comm/communicator.h>

#include <cstddef>
#include <span>
#include <vector>

namespace muster::optimizer {

// A run of one matrix in a send or receive buffer.
struct Transfer {
  std::size_t task{0};   // index into BufferPlan::tasks
  std::size_t begin{0};  // elements of the matrix
  std::size_t size{0};
  std::size_t offset{0};  // elements of the buffer
};

// One all-to-all of one rank. Buffers are ordered by peer, then by task.
struct Leg {
  bool runs{false};                      // some rank has something to send; the same on all ranks
  std::vector<std::size_t> send_counts;  // [ranks] elements
  std::vector<std::size_t> receive_counts;
  std::vector<Transfer> sends;     // in buffer order
  std::vector<Transfer> receives;  // in buffer order
  std::size_t send_size{0};
  std::size_t receive_size{0};
};

// Tasks whose matrices are in memory together. `directions` brings the parts to every computing
// rank, `results` brings what the first computing rank made to ranks that only store a part.
struct ExchangeRound {
  std::vector<std::size_t> tasks;  // that this rank computes or stores a part of
  Leg directions;
  Leg results;
};

// Tasks [first, last) of the plan that move, as `rank` sees them.
[[nodiscard]] ExchangeRound plan_exchange(
    const BufferPlan& plan, std::size_t first, std::size_t last, int rank);

// Bytes this rank sends to others.
[[nodiscard]] double sent_bytes(const Leg& leg, int rank);

[[nodiscard]] bool computes(const MatrixTask& task, int rank);

// The part of the task that `rank` stores, or null.
[[nodiscard]] const Fragment* fragment_of(const MatrixTask& task, int rank);

// The memory of both legs, reused from round to round.
struct ExchangeBuffers {
  std::vector<float> send;
  std::vector<float> receive;
};

// Collective over `holders` when leg.runs: buffers.send [leg.send_size] goes out,
// buffers.receive [leg.receive_size] comes in.
[[nodiscard]] Status exchange(
    const Leg& leg, ExchangeBuffers& buffers, comm::Communicator& holders, Deadline deadline);

}  // namespace muster::optimizer
