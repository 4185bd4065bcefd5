// SPDX-License-Identifier: Apache-2.0
// A communicator that spoils everything a collective leaves unspecified, and remembers what was
// called: nothing may depend on the first, and the second must not depend on gradients.
#pragma once

#include <muster/comm/communicator.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace muster::optimizer {

class SpoilingCommunicator final : public comm::Communicator {
 public:
  explicit SpoilingCommunicator(comm::Communicator& inner) : inner_(&inner) {}

  // One line per call since the last take().
  std::vector<std::string> take() { return std::exchange(calls_, {}); }

  [[nodiscard]] int rank() const override { return inner_->rank(); }

  [[nodiscard]] int size() const override { return inner_->size(); }

  [[nodiscard]] std::string_view backend() const override { return inner_->backend(); }

  [[nodiscard]] Expected<std::span<std::byte>> allocate_bytes(
      std::size_t size, Deadline deadline) override {
    return inner_->allocate_bytes(size, deadline);
  }

  [[nodiscard]] Status all_reduce_bytes(
      void* data,
      std::size_t count,
      comm::DType dtype,
      comm::ReduceOp op,
      Deadline deadline) override {
    calls_.push_back("all_reduce " + std::to_string(count));
    return inner_->all_reduce_bytes(data, count, dtype, op, deadline);
  }

  [[nodiscard]] Status reduce_scatter_bytes(
      void* data,
      std::span<const std::size_t> counts,
      comm::DType dtype,
      comm::ReduceOp op,
      Deadline deadline) override {
    calls_.push_back("reduce_scatter" + text(counts));
    Status status = inner_->reduce_scatter_bytes(data, counts, dtype, op, deadline);
    auto* part = static_cast<std::byte*>(data);
    for (std::size_t r = 0; r < counts.size(); ++r) {
      const std::size_t bytes = counts[r] * comm::size_bytes(dtype);
      if (static_cast<int>(r) != rank() && bytes > 0) {
        std::memset(part, 0xFF, bytes);  // a NaN in any float
      }
      part += bytes;
    }
    return status;
  }

  [[nodiscard]] Status all_gather_bytes(
      void* data,
      std::span<const std::size_t> counts,
      comm::DType dtype,
      Deadline deadline) override {
    calls_.push_back("all_gather" + text(counts));
    auto* part = static_cast<std::byte*>(data);
    for (std::size_t r = 0; r < counts.size(); ++r) {
      const std::size_t bytes = counts[r] * comm::size_bytes(dtype);
      if (static_cast<int>(r) != rank() && bytes > 0) {
        std::memset(part, 0xFF, bytes);
      }
      part += bytes;
    }
    return inner_->all_gather_bytes(data, counts, dtype, deadline);
  }

  [[nodiscard]] Status all_to_all_bytes(
      const void* send,
      std::span<const std::size_t> send_counts,
      void* receive,
      std::span<const std::size_t> receive_counts,
      comm::DType dtype,
      Deadline deadline) override {
    calls_.push_back("all_to_all" + text(send_counts) + " |" + text(receive_counts));
    return inner_->all_to_all_bytes(send, send_counts, receive, receive_counts, dtype, deadline);
  }

  [[nodiscard]] Status broadcast_bytes(
      void* data, std::size_t count, comm::DType dtype, int root, Deadline deadline) override {
    return inner_->broadcast_bytes(data, count, dtype, root, deadline);
  }

  [[nodiscard]] Status barrier(Deadline deadline) override { return inner_->barrier(deadline); }

  [[nodiscard]] Expected<std::unique_ptr<comm::Communicator>> split(
      int color, int key, Deadline deadline) override {
    return inner_->split(color, key, deadline);
  }

  void abort(std::string_view reason) override { inner_->abort(reason); }

 private:
  static std::string text(std::span<const std::size_t> counts) {
    std::string text;
    for (const std::size_t count : counts) {
      text += " " + std::to_string(count);
    }
    return text;
  }

  comm::Communicator* inner_;
  std::vector<std::string> calls_;
};

}  // namespace muster::optimizer
