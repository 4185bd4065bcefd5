// SPDX-License-Identifier: Apache-2.0
// Collective operations between the ranks of one generation of a job.
//
// Thread-safety: one thread at a time may call collectives on a communicator; `abort` may be called
// from any thread at any time. All ranks call the same collectives in the same order.
//
// Errors: a call that cannot finish returns a Status and poisons the communicator: every later call
// returns kAborted with the first reason. A dead or stopped peer gives kUnavailable or
// kDeadlineExceeded with all that is known about it ("rank 2 (pid 4711, dead) did not arrive").
// After an error the contents of the buffers are unspecified. Nothing here throws.
//
// Determinism: reductions combine contributions in rank order, so the result is the same on every
// rank, in every run and on every backend, bit for bit.
#pragma once

#include <muster/common/clock.h>
#include <muster/common/dtype.h>
#include <muster/common/expected.h>
#include <muster/common/ids.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace muster::comm {

enum class ReduceOp : std::uint8_t { kSum, kMax };

// The element types of common/dtype.h. Reductions take fp32, fp64, int32, int64 and uint8; all
// other collectives take every type.
using muster::DType;
using muster::DTypeOf;
using muster::size_bytes;

class Communicator {
 public:
  Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  Communicator(Communicator&&) = delete;
  Communicator& operator=(Communicator&&) = delete;
  virtual ~Communicator() = default;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  [[nodiscard]] virtual std::string_view backend() const = 0;  // "local", "shm", "gloo"

  // Collective. Allocates zeroed memory, 64-byte aligned, owned by the communicator and freed with
  // it; each rank passes its own size. On shm, collectives on such memory work in place, without a
  // copy. Keep gradients and parameters here.
  [[nodiscard]] virtual Expected<std::span<std::byte>> allocate_bytes(
      std::size_t size, Deadline deadline) = 0;

  // In place: every rank ends with the reduction over all ranks of `data`. Equal counts on all
  // ranks. kMax on floats follows IEEE maxNum on the values only; send NaN as a separate flag.
  [[nodiscard]] virtual Status all_reduce_bytes(
      void* data, std::size_t count, DType dtype, ReduceOp op, Deadline deadline) = 0;

  // `data` holds the concatenation of all ranks' parts, counts[r] elements for rank r (may be 0).
  // On return this rank's part is reduced in place; the other parts are unspecified.
  [[nodiscard]] virtual Status reduce_scatter_bytes(
      void* data,
      std::span<const std::size_t> counts,
      DType dtype,
      ReduceOp op,
      Deadline deadline) = 0;

  // `data` holds the concatenation of all ranks' parts; on entry this rank's part is valid, on
  // return all are. counts[r] elements for rank r (may be 0).
  [[nodiscard]] virtual Status all_gather_bytes(
      void* data, std::span<const std::size_t> counts, DType dtype, Deadline deadline) = 0;

  // `send` holds send_counts[r] elements for each rank r, in rank order; `receive` gets
  // receive_counts[r] elements from each rank r, in rank order. send_counts[r] here must equal
  // receive_counts[this rank] on r, else kInvalidArgument on both.
  [[nodiscard]] virtual Status all_to_all_bytes(
      const void* send,
      std::span<const std::size_t> send_counts,
      void* receive,
      std::span<const std::size_t> receive_counts,
      DType dtype,
      Deadline deadline) = 0;

  [[nodiscard]] virtual Status broadcast_bytes(
      void* data, std::size_t count, DType dtype, int root, Deadline deadline) = 0;

  [[nodiscard]] virtual Status barrier(Deadline deadline) = 0;

  // Collective. Ranks with equal `color` form a new communicator, ordered by `key`, then by rank.
  // It must not outlive its parent; aborting either aborts both.
  [[nodiscard]] virtual Expected<std::unique_ptr<Communicator>> split(
      int color, int key, Deadline deadline) = 0;

  // Frees every waiter on every rank at once; all later calls return kAborted with `reason`.
  virtual void abort(std::string_view reason) = 0;

  // --- typed forms ---
  template <typename T>
  [[nodiscard]] Expected<std::span<T>> allocate(std::size_t count, Deadline deadline) {
    auto bytes = allocate_bytes(count * sizeof(T), deadline);
    if (!bytes) {
      return bytes.status();
    }
    return std::span<T>{reinterpret_cast<T*>(bytes->data()), count};  // NOLINT
  }

  template <typename T>
  [[nodiscard]] Status all_reduce(std::span<T> data, ReduceOp op, Deadline deadline) {
    return all_reduce_bytes(data.data(), data.size(), DTypeOf<T>::kValue, op, deadline);
  }

  template <typename T>
  [[nodiscard]] Status reduce_scatter(
      std::span<T> data, std::span<const std::size_t> counts, ReduceOp op, Deadline deadline) {
    return reduce_scatter_bytes(data.data(), counts, DTypeOf<T>::kValue, op, deadline);
  }

  template <typename T>
  [[nodiscard]] Status all_gather(
      std::span<T> data, std::span<const std::size_t> counts, Deadline deadline) {
    return all_gather_bytes(data.data(), counts, DTypeOf<T>::kValue, deadline);
  }

  template <typename T>
  [[nodiscard]] Status all_to_all(
      std::span<const T> send,
      std::span<const std::size_t> send_counts,
      std::span<T> receive,
      std::span<const std::size_t> receive_counts,
      Deadline deadline) {
    return all_to_all_bytes(
        send.data(), send_counts, receive.data(), receive_counts, DTypeOf<T>::kValue, deadline);
  }

  template <typename T>
  [[nodiscard]] Status broadcast(std::span<T> data, int root, Deadline deadline) {
    return broadcast_bytes(data.data(), data.size(), DTypeOf<T>::kValue, root, deadline);
  }
};

}  // namespace muster::comm
