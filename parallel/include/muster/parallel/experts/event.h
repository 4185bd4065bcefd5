// SPDX-License-Identifier: Apache-2.0
// Counters and timings of one pass of an expert-parallel layer, taken from its plan and the waits
// at its barriers without a further collective.
#pragma once

#include <array>
#include <cstdint>

namespace muster::parallel {

inline constexpr int kEpEventRanksMax = 128;

// One forward and backward pass of one layer and micro-batch on one rank. Fields of the plan are
// equal on all ranks of the expert group.
struct EpEvent {
  int ranks{0};
  // --- from the plan, equal on all ranks of the group ---
  double max_violation{0};   // max_e T_e / mean T - 1
  double rank_imbalance{0};  // max / mean rows of a rank before balancing
  std::int64_t rows{0};      // tokens * top_k, summed over the group
  std::int64_t copies{0};
  std::int64_t copies_in_max{0};
  std::int64_t copies_out_max{0};
  std::int64_t rows_moved{0};
  std::int64_t pad_rows{0};
  std::uint64_t plan_hash{0};
  // --- measured on this rank ---
  std::int64_t dedup_rows{0};  // choices whose row had already been sent for another choice
  std::int64_t rows_out{0};    // rows that dispatch sent to other ranks
  std::int64_t bytes_out{0};   // sent to other ranks: rows, weights, expert copies, gradients
  std::int64_t bytes_in{0};
  std::int64_t bytes_local{0};  // copied within this rank
  std::int64_t plan_ns{0};
  std::int64_t move_ns{0};  // in operations, without waits at barriers
  std::array<std::int64_t, kEpEventRanksMax>
      wait_ns{};  // [ranks] waits for each peer, at all barriers
};

}  // namespace muster::parallel
