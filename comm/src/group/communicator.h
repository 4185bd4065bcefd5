// SPDX-License-Identifier: Apache-2.0
// The Communicator of ranks that share memory: threads (local) and processes of one host (shm).
//
// Every call publishes a record, synchronizes, compares the records and then works on its share of
// the data in place. Contributions that peers cannot reach go through a staging area, piece by
// piece; small ones travel beside the record and need no second synchronization.
#pragma once

#include "comm/src/group/barrier.h"
#include "comm/src/group/session.h"

#include <muster/comm/communicator.h>
#include <muster/comm/symmetric_heap.h>

#include <memory>
#include <vector>

namespace muster::comm {

class GroupCommunicator final : public Communicator {
 public:
  // `members[r]` is the world rank of group rank r; `group` indexes SessionBlock::groups.
  GroupCommunicator(
      std::shared_ptr<Session> session, std::size_t group, int rank, std::vector<int> members);
  ~GroupCommunicator() override;
  GroupCommunicator(const GroupCommunicator&) = delete;
  GroupCommunicator& operator=(const GroupCommunicator&) = delete;
  GroupCommunicator(GroupCommunicator&&) = delete;
  GroupCommunicator& operator=(GroupCommunicator&&) = delete;

  [[nodiscard]] int rank() const override { return rank_; }

  [[nodiscard]] int size() const override { return static_cast<int>(size_); }

  [[nodiscard]] std::string_view backend() const override { return session_->backend(); }

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

  // For tests.
  [[nodiscard]] GroupBlock& meeting_place() const { return barrier_.block(); }

  // Collective; SymmetricHeap::create for ranks that share memory.
  [[nodiscard]] Expected<std::unique_ptr<SymmetricHeap>> create_heap(
      std::size_t bytes, Deadline deadline);

 private:
  // [begin, begin + size) of the concatenated data, in bytes.
  struct Part {
    std::size_t begin;
    std::size_t size;
  };

  // The rounds of one call: round k handles bytes [k * window, (k + 1) * window) of each part. A
  // single round if every contribution is reachable.
  struct Rounds {
    std::size_t count;
    std::size_t window;
  };

  // Marks this rank as inside a call; refuses when the session is aborted.
  class Presence {
   public:
    explicit Presence(GroupCommunicator& owner);
    ~Presence();
    Presence(const Presence&) = delete;
    Presence& operator=(const Presence&) = delete;
    Presence(Presence&&) = delete;
    Presence& operator=(Presence&&) = delete;

    [[nodiscard]] Status admission() const;

   private:
    GroupCommunicator& owner_;
    bool admitted_;
  };

  // The frame of every call.
  CallRecord& begin(CallKind kind);
  void place(CallRecord& call, const void* data, std::size_t bytes) const;
  [[nodiscard]] Status enter(Deadline deadline);
  [[nodiscard]] Status synchronize(Deadline deadline);
  [[nodiscard]] Status refuse(std::string_view why);
  [[nodiscard]] Status leave(Status error);

  [[nodiscard]] RankSlot& own_slot() const { return barrier_.block().slots[rank_]; }

  [[nodiscard]] const CallRecord& record(std::size_t r) const;
  [[nodiscard]] std::vector<std::string> names() const;
  [[nodiscard]] bool all_inline() const;
  [[nodiscard]] bool any_staged() const;
  [[nodiscard]] std::vector<Part> parts_of(
      std::span<const std::uint64_t> counts, DType dtype) const;

  // The work between the synchronizations (collectives.cpp).
  [[nodiscard]] Rounds plan(std::span<const Part> parts, std::size_t staged_window) const;
  [[nodiscard]] static Part cut(const Part& part, const Rounds& rounds, std::size_t round);
  [[nodiscard]] std::byte* staging(std::size_t r) const;
  [[nodiscard]] std::byte* reach(std::size_t r, std::size_t begin, std::size_t stage_at) const;

  [[nodiscard]] std::size_t share_of_staging() const { return kStagingBytes / size_ / 64 * 64; }

  void reduce_piece(const Part& piece, std::size_t stage_at, std::span<std::byte* const> outputs);
  void stage(const void* data, const Part& piece, std::size_t stage_at);
  void unstage(void* data, const Part& piece, std::size_t stage_at) const;
  [[nodiscard]] Status all_reduce_rounds(std::byte* data, Deadline deadline);
  [[nodiscard]] Status gather_parts(
      std::byte* data, std::span<const Part> parts, Deadline deadline);
  [[nodiscard]] Status exchange_rounds(
      const std::byte* send, std::byte* receive, Deadline deadline);

  // Aborts the session with `error`, as of heap/create.cpp.
  [[nodiscard]] Status refuse_heap(Status error);

  // Reserves a group of the session for `member_count` ranks.
  [[nodiscard]] std::size_t claim_group(std::size_t member_count);

  std::shared_ptr<Session> session_;
  std::size_t group_;
  int rank_;
  std::size_t size_;
  Barrier barrier_;
  std::uint64_t call_count_{0};
  std::vector<std::byte*> allocations_;
};

}  // namespace muster::comm
