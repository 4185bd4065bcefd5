// SPDX-License-Identifier: Apache-2.0
// Moves tokens to their experts and back by an ordinary all-to-all; internal to the layer of
// make_all_to_all_layer.
#pragma once

#include <muster/comm/communicator.h>
#include <muster/common/status.h>

#include <cstdint>
#include <span>
#include <vector>

namespace muster::parallel {

// Experts that the tokens of a rank chose (router.h).
struct Routing {
  std::int64_t tokens{0};
  std::int64_t experts{0};
  std::int64_t top_k{0};
  std::vector<std::int32_t> expert;  // [tokens, top_k]
  std::vector<std::int64_t> counts;  // [experts] rows routed by this rank
};

// Destination and origin of every (token, choice) row, made once per forward and used by backward.
// Experts are placed in contiguous equal ranges: the home of expert e is rank
// e / (experts / ranks).
struct DispatchPlan {
  std::vector<std::int64_t> send_rows;   // [rows sent] source (token * top_k + choice), by expert
  std::vector<std::size_t> send_counts;  // [ranks] rows
  std::vector<std::size_t> receive_counts;   // [ranks] rows
  std::vector<std::int64_t> receive_order;   // [rows received] position in expert-grouped order
  std::vector<std::int64_t> expert_offsets;  // [local experts + 1] rows, in expert-grouped order
  std::int64_t rows_received{0};
};

// Exchanges counts. Collective over `ep`. kInvalidArgument if the experts do not divide by the
// ranks or the routing contradicts itself, else errors of the communicator.
[[nodiscard]] Status make_dispatch_plan(
    const Routing& routing, comm::Communicator& ep, Deadline deadline, DispatchPlan& plan);

// rows[rows_received, dim] <- x[tokens, dim], grouped by local expert, inside an expert ordered by
// (source rank, token, choice). Collective.
template <typename T>
[[nodiscard]] Status dispatch(
    const Routing& routing,
    const DispatchPlan& plan,
    const T* x,
    std::int64_t dim,
    std::vector<T>& rows,
    comm::Communicator& ep,
    Deadline deadline);

// Returns expert outputs to their tokens and mixes them: y[t] = sum_c gates[t, c] * row.
// returned[tokens*top_k, dim] keeps the rows for backward. y overwritten. Collective.
template <typename T>
[[nodiscard]] Status combine(
    const Routing& routing,
    const DispatchPlan& plan,
    const std::vector<T>& rows,
    const T* gates,
    std::int64_t dim,
    std::vector<T>& returned,
    T* y,
    comm::Communicator& ep,
    Deadline deadline);

// Backward of combine: dgates[t, c] = dy[t] . returned; drows = rows of gates * dy sent to the
// experts. Collective.
template <typename T>
[[nodiscard]] Status combine_backward(
    const Routing& routing,
    const DispatchPlan& plan,
    const T* dy,
    const T* gates,
    const std::vector<T>& returned,
    std::int64_t dim,
    T* dgates,
    std::vector<T>& drows,
    comm::Communicator& ep,
    Deadline deadline);

// Backward of dispatch: dx[t] += sum over its choices of the returned row gradients. Collective.
template <typename T>
[[nodiscard]] Status dispatch_backward(
    const Routing& routing,
    const DispatchPlan& plan,
    const std::vector<T>& drows,
    std::int64_t dim,
    T* dx,
    comm::Communicator& ep,
    Deadline deadline);

}  // namespace muster::parallel
