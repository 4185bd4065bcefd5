// SPDX-License-Identifier: Apache-2.0
// Ranks with a symmetric heap, as threads or as processes, and a heap whose barriers can be
// watched: what a rank has done when it comes to one is then certain, without a sleep.
#pragma once

#include "tests/support/deadlines.h"

#include <muster/comm/backends.h>
#include <muster/comm/symmetric_heap.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

namespace muster::parallel::testing {

enum class RanksAre { kThreads, kProcesses };

std::ostream& operator<<(std::ostream& out, RanksAre kind);

class WatchedHeap final : public comm::SymmetricHeap {
 public:
  using Hook = std::function<void(std::string_view phase)>;

  explicit WatchedHeap(std::unique_ptr<comm::SymmetricHeap> heap)
      : SymmetricHeap({heap->rank(), heap->size(), heap->base(), heap->stride()}),
        heap_(std::move(heap)) {}

  // Runs on the calling rank before it arrives at any barrier.
  void before_barrier(Hook hook) { hook_ = std::move(hook); }

  // Phases of all barriers so far.
  [[nodiscard]] const std::vector<std::string>& phases() const { return phases_; }

  // Waits that its barriers have reported, for each peer.
  [[nodiscard]] const std::vector<std::int64_t>& waited() const { return waited_; }

  [[nodiscard]] Expected<std::size_t> allocate(std::size_t bytes, std::size_t alignment) override {
    return heap_->allocate(bytes, alignment);
  }

  [[nodiscard]] Status seal(Deadline deadline) override { return heap_->seal(deadline); }

  [[nodiscard]] Expected<std::span<std::byte>> map_view(std::span<const Piece> pieces) override {
    return heap_->map_view(pieces);
  }

  [[nodiscard]] Status barrier(
      std::string_view phase, Deadline deadline, std::span<std::int64_t> waited) override;

 private:
  std::unique_ptr<comm::SymmetricHeap> heap_;
  Hook hook_;
  std::vector<std::string> phases_;
  std::vector<std::int64_t> waited_;
};

struct Member {
  comm::Communicator& ranks;
  WatchedHeap& heap;

  [[nodiscard]] int rank() const { return heap.rank(); }
};

// Body of a rank; returns a description of the failure, "" on success.
using Work = std::function<std::string(Member&)>;

// Runs `work` on every rank, each with `heap_bytes` of heap; what each of them reported.
[[nodiscard]] std::vector<std::string> run_members(
    RanksAre kind, int size, std::size_t heap_bytes, const Work& work);

// Adds a test failure for every rank that reported one.
void expect_members_succeed(RanksAre kind, int size, std::size_t heap_bytes, const Work& work);

// One rank of a session of processes: connects, makes the heap, works.
[[nodiscard]] std::string run_member(
    const std::string& session, int rank, int size, std::size_t heap_bytes, const Work& work);

// A session name that no other test uses.
[[nodiscard]] std::string new_session();

using muster::test::soon;

// The first things that went wrong.
class Findings {
 public:
  void expect(bool holds, const std::string& what);
  void expect(const Status& status, const std::string& what);

  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
  int count_{0};
};

}  // namespace muster::parallel::testing
