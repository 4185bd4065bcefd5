// SPDX-License-Identifier: Apache-2.0
// Movement of rows between tokens and experts. All four directions are one of two exchanges; rows
// on the wire are in the order of DispatchPlan::send_rows.
#include "parallel/src/experts/all_to_all/all_to_all.h"

#include <muster/kernels/row_ops.h>

#include <algorithm>
#include <cstring>

namespace muster::parallel {

namespace {

// Buffers of a thread, kept between steps.
template <typename T>
struct Wire {
  std::vector<T> send;
  std::vector<T> receive;
  std::vector<std::size_t> send_counts;
  std::vector<std::size_t> receive_counts;
};

template <typename T>
Wire<T>& wire() {
  thread_local Wire<T> buffers;
  return buffers;
}

void to_elements(
    const std::vector<std::size_t>& rows, std::int64_t dim, std::vector<std::size_t>& elements) {
  elements.resize(rows.size());
  std::transform(rows.begin(), rows.end(), elements.begin(), [dim](std::size_t count) {
    return count * static_cast<std::size_t>(dim);
  });
}

template <typename T>
void copy_row(T* to, const T* from, std::int64_t dim) {
  if (dim > 0) {
    std::memcpy(to, from, static_cast<std::size_t>(dim) * sizeof(T));
  }
}

template <typename T>
std::size_t elements_sent(const DispatchPlan& plan, std::int64_t dim) {
  return plan.send_rows.size() * static_cast<std::size_t>(dim);
}

std::size_t elements_received(const DispatchPlan& plan, std::int64_t dim) {
  return static_cast<std::size_t>(plan.rows_received * dim);
}

// fill(wire row, row of [tokens * top_k]) writes what goes out; `rows` get it by expert.
template <typename T, typename Fill>
Status to_experts(
    const DispatchPlan& plan,
    std::int64_t dim,
    std::vector<T>& rows,
    comm::Communicator& ep,
    Deadline deadline,
    Fill fill) {
  Wire<T>& buffers = wire<T>();
  buffers.send.resize(elements_sent<T>(plan, dim));
  buffers.receive.resize(elements_received(plan, dim));
  T* out = buffers.send.data();
  for (const std::int64_t row : plan.send_rows) {
    fill(out, row);
    out += dim;
  }
  to_elements(plan.send_counts, dim, buffers.send_counts);
  to_elements(plan.receive_counts, dim, buffers.receive_counts);
  MUSTER_RETURN_IF_ERROR(ep.all_to_all<T>(
      buffers.send, buffers.send_counts, buffers.receive, buffers.receive_counts, deadline));
  rows.resize(elements_received(plan, dim));
  const T* in = buffers.receive.data();
  for (const std::int64_t place : plan.receive_order) {
    copy_row(rows.data() + place * dim, in, dim);
    in += dim;
  }
  return {};
}

// take(wire row, row of [tokens * top_k]) gets what the experts made of it.
template <typename T, typename Take>
Status from_experts(
    const DispatchPlan& plan,
    std::int64_t dim,
    const std::vector<T>& rows,
    comm::Communicator& ep,
    Deadline deadline,
    Take take) {
  if (rows.size() != elements_received(plan, dim)) {
    return invalid_argument("expert rows do not have rows_received * dim elements");
  }
  Wire<T>& buffers = wire<T>();
  buffers.send.resize(elements_received(plan, dim));
  buffers.receive.resize(elements_sent<T>(plan, dim));
  T* out = buffers.send.data();
  for (const std::int64_t place : plan.receive_order) {
    copy_row(out, rows.data() + place * dim, dim);
    out += dim;
  }
  to_elements(plan.receive_counts, dim, buffers.send_counts);
  to_elements(plan.send_counts, dim, buffers.receive_counts);
  MUSTER_RETURN_IF_ERROR(ep.all_to_all<T>(
      buffers.send, buffers.send_counts, buffers.receive, buffers.receive_counts, deadline));
  const T* in = buffers.receive.data();
  for (const std::int64_t row : plan.send_rows) {
    take(in, row);
    in += dim;
  }
  return {};
}

}  // namespace

template <typename T>
Status dispatch(
    const Routing& routing,
    const DispatchPlan& plan,
    const T* x,
    std::int64_t dim,
    std::vector<T>& rows,
    comm::Communicator& ep,
    Deadline deadline) {
  return to_experts(
             plan,
             dim,
             rows,
             ep,
             deadline,
             [&](T* out, std::int64_t row) { copy_row(out, x + row / routing.top_k * dim, dim); })
      .context("moe dispatch");
}

template <typename T>
Status combine(
    const Routing& routing,
    const DispatchPlan& plan,
    const std::vector<T>& rows,
    const T* gates,
    std::int64_t dim,
    std::vector<T>& returned,
    T* y,
    comm::Communicator& ep,
    Deadline deadline) {
  returned.resize(elements_sent<T>(plan, dim));
  const Status status =
      from_experts(plan, dim, rows, ep, deadline, [&](const T* in, std::int64_t row) {
        copy_row(returned.data() + row * dim, in, dim);
      });
  MUSTER_RETURN_IF_ERROR(status.context("moe combine"));
  for (std::int64_t row = 0; row < routing.tokens * routing.top_k; ++row) {
    const bool first = row % routing.top_k == 0;
    kernels::scale_add(
        gates[row],
        returned.data() + row * dim,
        first ? T{0} : T{1},
        y + row / routing.top_k * dim,
        dim);
  }
  return {};
}

template <typename T>
Status combine_backward(
    const Routing& routing,
    const DispatchPlan& plan,
    const T* dy,
    const T* gates,
    const std::vector<T>& returned,
    std::int64_t dim,
    T* dgates,
    std::vector<T>& drows,
    comm::Communicator& ep,
    Deadline deadline) {
  for (std::int64_t row = 0; row < routing.tokens * routing.top_k; ++row) {
    dgates[row] = kernels::dot(dy + row / routing.top_k * dim, returned.data() + row * dim, dim);
  }
  return to_experts(
             plan,
             dim,
             drows,
             ep,
             deadline,
             [&](T* out, std::int64_t row) {
               kernels::scale_add(gates[row], dy + row / routing.top_k * dim, T{0}, out, dim);
             })
      .context("moe combine backward");
}

template <typename T>
Status dispatch_backward(
    const Routing& routing,
    const DispatchPlan& plan,
    const std::vector<T>& drows,
    std::int64_t dim,
    T* dx,
    comm::Communicator& ep,
    Deadline deadline) {
  return from_experts(
             plan,
             dim,
             drows,
             ep,
             deadline,
             [&](const T* in, std::int64_t row) {
               kernels::scale_add(T{1}, in, T{1}, dx + row / routing.top_k * dim, dim);
             })
      .context("moe dispatch backward");
}

#define MUSTER_INSTANTIATE(T)        \
  template Status dispatch(          \
      const Routing&,                \
      const DispatchPlan&,           \
      const T*,                      \
      std::int64_t,                  \
      std::vector<T>&,               \
      comm::Communicator&,           \
      Deadline);                     \
  template Status combine(           \
      const Routing&,                \
      const DispatchPlan&,           \
      const std::vector<T>&,         \
      const T*,                      \
      std::int64_t,                  \
      std::vector<T>&,               \
      T*,                            \
      comm::Communicator&,           \
      Deadline);                     \
  template Status combine_backward(  \
      const Routing&,                \
      const DispatchPlan&,           \
      const T*,                      \
      const T*,                      \
      const std::vector<T>&,         \
      std::int64_t,                  \
      T*,                            \
      std::vector<T>&,               \
      comm::Communicator&,           \
      Deadline);                     \
  template Status dispatch_backward( \
      const Routing&,                \
      const DispatchPlan&,           \
      const std::vector<T>&,         \
      std::int64_t,                  \
      T*,                            \
      comm::Communicator&,           \
      Deadline);
MUSTER_INSTANTIATE(float)
MUSTER_INSTANTIATE(double)
#undef MUSTER_INSTANTIATE

}  // namespace muster::parallel
