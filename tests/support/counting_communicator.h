// SPDX-License-Identifier: Apache-2.0
// A communicator that counts what its collectives move, independently of the caller.
#pragma once

#include <muster/comm/communicator.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

namespace muster::test {

// Bytes between this rank and others, and calls.
struct CollectiveCounts {
  std::atomic<std::int64_t> reduce_scattered{0};  // to others
  std::atomic<std::int64_t> gathered{0};          // from others
  std::atomic<std::int64_t> sent{0};              // to others, by all-to-all
  std::atomic<std::int64_t> received{0};          // from others, by all-to-all
  std::atomic<std::int64_t> all_reduced{0};  // size of the operand, whatever the algorithm moves
  std::atomic<std::int64_t> reductions{0};   // calls of reduce-scatter and all-reduce

  // Each byte counted at one of its ends.
  [[nodiscard]] std::int64_t moved() const { return reduce_scattered + gathered + received; }
};

// Forwards all calls. Communicators split from it add to the same counts.
class CountingCommunicator final : public comm::Communicator {
 public:
  explicit CountingCommunicator(comm::Communicator& inner) : inner_(&inner) {}

  [[nodiscard]] const CollectiveCounts& counts() const { return *counts_; }

  // Forgets what was counted so far. Communicators that were split before keep the old counts.
  void restart() { counts_ = std::make_shared<CollectiveCounts>(); }

  [[nodiscard]] int rank() const override { return inner_->rank(); }

  [[nodiscard]] int size() const override { return inner_->size(); }

  [[nodiscard]] std::string_view backend() const override { return inner_->backend(); }

  Expected<std::span<std::byte>> allocate_bytes(std::size_t size, Deadline deadline) override {
    return inner_->allocate_bytes(size, deadline);
  }

  Status all_reduce_bytes(
      void* data,
      std::size_t count,
      comm::DType dtype,
      comm::ReduceOp op,
      Deadline deadline) override {
    counts_->all_reduced += static_cast<std::int64_t>(count * comm::size_bytes(dtype));
    ++counts_->reductions;
    return inner_->all_reduce_bytes(data, count, dtype, op, deadline);
  }

  Status reduce_scatter_bytes(
      void* data,
      std::span<const std::size_t> counts,
      comm::DType dtype,
      comm::ReduceOp op,
      Deadline deadline) override {
    counts_->reduce_scattered += others(counts, dtype);
    ++counts_->reductions;
    return inner_->reduce_scatter_bytes(data, counts, dtype, op, deadline);
  }

  Status all_gather_bytes(
      void* data,
      std::span<const std::size_t> counts,
      comm::DType dtype,
      Deadline deadline) override {
    counts_->gathered += others(counts, dtype);
    return inner_->all_gather_bytes(data, counts, dtype, deadline);
  }

  Status all_to_all_bytes(
      const void* send,
      std::span<const std::size_t> send_counts,
      void* receive,
      std::span<const std::size_t> receive_counts,
      comm::DType dtype,
      Deadline deadline) override {
    counts_->sent += others(send_counts, dtype);
    counts_->received += others(receive_counts, dtype);
    return inner_->all_to_all_bytes(send, send_counts, receive, receive_counts, dtype, deadline);
  }

  Status broadcast_bytes(
      void* data, std::size_t count, comm::DType dtype, int root, Deadline deadline) override {
    return inner_->broadcast_bytes(data, count, dtype, root, deadline);
  }

  Status barrier(Deadline deadline) override { return inner_->barrier(deadline); }

  Expected<std::unique_ptr<comm::Communicator>> split(
      int color, int key, Deadline deadline) override {
    auto made = inner_->split(color, key, deadline);
    if (!made) {
      return made.status();
    }
    auto counting = std::make_unique<CountingCommunicator>(**made);
    counting->owned_ = std::move(*made);
    counting->counts_ = counts_;
    return std::unique_ptr<comm::Communicator>{std::move(counting)};
  }

  void abort(std::string_view reason) override { inner_->abort(reason); }

 private:
  [[nodiscard]] std::int64_t others(std::span<const std::size_t> counts, comm::DType dtype) const {
    std::size_t elements = 0;
    for (std::size_t r = 0; r < counts.size(); ++r) {
      elements += r == static_cast<std::size_t>(rank()) ? 0 : counts[r];
    }
    return static_cast<std::int64_t>(elements * comm::size_bytes(dtype));
  }

  comm::Communicator* inner_;
  std::unique_ptr<comm::Communicator> owned_;  // of one that was split
  std::shared_ptr<CollectiveCounts> counts_ = std::make_shared<CollectiveCounts>();
};

}  // namespace muster::test
