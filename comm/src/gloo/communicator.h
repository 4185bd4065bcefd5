// SPDX-License-Identifier: Apache-2.0
// The Communicator of ranks on several hosts.
//
// Every call begins with a frame that each rank sends to each other: its record, and its
// contribution when that is small. So mismatches are found before any data moves, a rank that does
// not arrive is known by name, and a small collective ends with the frames. Large data then moves
// in one or two rounds, each part straight to where it is needed, over Gloo's point-to-point
// transport: unlike its collectives it can be interrupted, and reductions keep the order of ranks.
#pragma once

#include "comm/src/call_record.h"
#include "comm/src/gloo/family.h"
#include "comm/src/gloo/mesh.h"

#include <muster/comm/communicator.h>

#include <memory>
#include <vector>

namespace muster::comm {

class GlooCommunicator final : public Communicator {
 public:
  struct Parts {
    std::shared_ptr<gloo::transport::Device> device;
    std::shared_ptr<GlooFamily> family;
    GlooMeshOptions options;
  };

  // Connects the mesh and waits until all ranks have.
  [[nodiscard]] static Expected<std::unique_ptr<Communicator>> connect(
      Parts parts, Deadline deadline);

  ~GlooCommunicator() override;
  GlooCommunicator(const GlooCommunicator&) = delete;
  GlooCommunicator& operator=(const GlooCommunicator&) = delete;
  GlooCommunicator(GlooCommunicator&&) = delete;
  GlooCommunicator& operator=(GlooCommunicator&&) = delete;

  [[nodiscard]] int rank() const override { return parts_.options.rank; }

  [[nodiscard]] int size() const override { return parts_.options.size; }

  [[nodiscard]] std::string_view backend() const override { return "gloo"; }

  [[nodiscard]] Expected<std::span<std::byte>> allocate_bytes(
      std::size_t size, Deadline deadline) override;
  [[nodiscard]] Status all_reduce_bytes(
      void* data, std::size_t count, DType dtype, ReduceOp op, Deadline deadline) override;
  [[nodiscard]] Status reduce_scatter_bytes(
      void* data,
      std::span<const std::size_t> counts,
      DType dtype,
      ReduceOp op,
      Deadline deadline) override;
  [[nodiscard]] Status all_gather_bytes(
      void* data, std::span<const std::size_t> counts, DType dtype, Deadline deadline) override;
  [[nodiscard]] Status all_to_all_bytes(
      const void* send,
      std::span<const std::size_t> send_counts,
      void* receive,
      std::span<const std::size_t> receive_counts,
      DType dtype,
      Deadline deadline) override;
  [[nodiscard]] Status broadcast_bytes(
      void* data, std::size_t count, DType dtype, int root, Deadline deadline) override;
  [[nodiscard]] Status barrier(Deadline deadline) override;
  [[nodiscard]] Expected<std::unique_ptr<Communicator>> split(
      int color, int key, Deadline deadline) override;
  void abort(std::string_view reason) override;

 private:
  struct Frame {
    CallRecord record;
    std::byte payload[kInlineBytes];
  };

  // Bytes that go to, or come from, one peer.
  struct Piece {
    std::size_t peer;
    std::byte* data;
    std::size_t size;
  };

  // [begin, begin + size) of the concatenated data, in bytes.
  struct Part {
    std::size_t begin;
    std::size_t size;
  };

  GlooCommunicator(Parts parts, GlooMesh mesh);

  // communicator.cpp: the frame of every call.
  Frame& begin(CallKind kind);
  static void place(Frame& frame, const void* data, std::size_t bytes);
  [[nodiscard]] Status enter(Deadline deadline);
  [[nodiscard]] Status fail(const Status& error);
  [[nodiscard]] Status refuse(std::string_view why);
  [[nodiscard]] bool all_inline() const;

  // transfer.cpp: moving bytes.
  [[nodiscard]] Status transfer(
      std::span<const Piece> outgoing, std::span<const Piece> incoming, Deadline deadline);
  [[nodiscard]] Status explain(const char* what, Deadline deadline);

  // collectives.cpp: data that did not fit into the frames.
  [[nodiscard]] std::byte* scratch(std::size_t size);
  [[nodiscard]] std::vector<Part> parts_of(
      std::span<const std::uint64_t> counts, DType dtype) const;
  [[nodiscard]] std::vector<Part> slices_of(std::size_t bytes) const;
  [[nodiscard]] Status reduce_parts(
      std::byte* data, std::span<const Part> parts, Deadline deadline);
  [[nodiscard]] Status gather_parts(
      std::byte* data, std::span<const Part> parts, Deadline deadline);
  [[nodiscard]] Status broadcast_slices(
      std::byte* data, std::size_t bytes, std::size_t root, Deadline deadline);
  [[nodiscard]] Status exchange_parts(std::byte* send, std::byte* receive, Deadline deadline);

  [[nodiscard]] const Frame& own() const { return frames_[self_]; }

  struct AlignedDelete {
    void operator()(std::byte* memory) const;
  };

  Parts parts_;
  GlooMesh mesh_;
  std::size_t self_;
  std::size_t size_;
  int watch_key_;
  std::uint64_t call_count_{0};
  std::uint64_t round_count_{0};     // Transfers of the call in progress; the first is the frames.
  std::vector<Frame> frames_;        // frames_[r]: of rank r, for the call in progress.
  std::vector<bool> is_waited_for_;  // The peers that keep the transfer in progress waiting.
  std::vector<std::unique_ptr<std::byte, AlignedDelete>> allocations_;
  std::unique_ptr<std::byte[]> scratch_;
  std::size_t scratch_size_{0};
};

}  // namespace muster::comm
