// SPDX-License-Identifier: Apache-2.0
// One rank's view of its session: the shared block, its heap, who is alive, and the first error.
//
// Thread-safety: `heap` by the thread that calls collectives; the rest from any thread.
#pragma once

#include "comm/src/group/arena.h"
#include "comm/src/group/peer_watch.h"
#include "comm/src/group/session_block.h"

#include <muster/common/file.h>
#include <muster/common/status.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>

namespace muster::comm {

class Session {
 public:
  struct Parts {
    SessionBlock* block{nullptr};
    std::shared_ptr<void> memory;  // Owns `block` and all that follows it.
    std::byte* staging{nullptr};  // [kGroupMax][size][kStagingBytes]; null where ranks are threads.
    std::unique_ptr<Heap> heap;
    // The memory file behind `memory` and its first `file_bytes`, laid out by connect. Null where
    // ranks are threads.
    std::shared_ptr<const FileDescriptor> file;
    std::uint64_t file_bytes{0};
    std::string_view backend;
    int rank{0};
    int size{1};
    int pid{0};  // 0 where ranks are threads.
  };

  explicit Session(Parts parts);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  Session(Session&&) = delete;
  Session& operator=(Session&&) = delete;

  [[nodiscard]] SessionBlock& block() { return *parts_.block; }

  [[nodiscard]] Heap& heap() { return *parts_.heap; }

  [[nodiscard]] std::string_view backend() const { return parts_.backend; }

  [[nodiscard]] bool ranks_are_threads() const { return parts_.staging == nullptr; }

  [[nodiscard]] const std::shared_ptr<const FileDescriptor>& file() const { return parts_.file; }

  [[nodiscard]] std::uint64_t file_bytes() const { return parts_.file_bytes; }

  [[nodiscard]] int rank() const { return parts_.rank; }

  [[nodiscard]] int size() const { return parts_.size; }

  // Staging area of world rank `rank` in group `group`.
  [[nodiscard]] std::byte* staging(std::size_t group, int rank) const;

  // Frees all waiters of all groups. The first reason of the session stays.
  void abort(const Status& reason);

  // Aborts the session with `error` and returns the session's first error: `error`, unless another
  // rank was faster.
  [[nodiscard]] Status fail(const Status& error);

  [[nodiscard]] bool aborted() const;

  // Returns the first error: the first time with its own code, then as kAborted.
  [[nodiscard]] Status failure();

  // "rank 2 (pid 4711)".
  [[nodiscard]] std::string name(int rank) const;

  // "rank 2 (pid 4711, stopped)": for messages about a peer that keeps others waiting.
  [[nodiscard]] std::string name_with_state(int rank) const;

  // "rank 2 (pid 4711) is dead", "rank 2 (pid 4711) has left", or empty while it lives.
  [[nodiscard]] std::string gone(int rank);

 private:
  [[nodiscard]] Status first_error() const;

  Parts parts_;
  PeerWatch watch_;
  std::atomic<bool> reported_{false};  // failure() has returned the first error.
};

}  // namespace muster::comm
