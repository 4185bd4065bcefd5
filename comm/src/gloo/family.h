// SPDX-License-Identifier: Apache-2.0
// State shared by a Gloo communicator and its sub-communicators: the first error, and the sockets
// to shut down so that all ranks learn of it.
//
// A blocked Gloo operation ends in three ways only: data, a timeout, or the end of its socket. So
// an abort shuts the sockets down, and the end of any socket means that a peer has died or aborted.
// A thread of this class watches for that, because Gloo reports it only to the rank that was about
// to receive from that very socket.
//
// Thread-safety: any thread.
#pragma once

#include <muster/common/clock.h>
#include <muster/common/file.h>
#include <muster/common/mutex.h>
#include <muster/common/status.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace muster::comm {

class GlooFamily {
 public:
  // A duplicate of the socket to one peer: shutting it down acts on Gloo's socket too, and its
  // number cannot be reused while the duplicate is open.
  struct Link {
    std::string peer;  // "rank 2 (pid 4711 on host a)".
    FileDescriptor socket;
  };

  // `clock` must outlive the family.
  [[nodiscard]] static Expected<std::shared_ptr<GlooFamily>> create(
      const Clock& clock = Clock::system());
  ~GlooFamily();
  GlooFamily(const GlooFamily&) = delete;
  GlooFamily& operator=(const GlooFamily&) = delete;
  GlooFamily(GlooFamily&&) = delete;
  GlooFamily& operator=(GlooFamily&&) = delete;

  // Watches `links` until `release` with the returned key.
  [[nodiscard]] int watch(std::vector<Link> links);
  void release(int key);

  // Between both the rank waits for the peers of group `key`, so a closed socket of that group is
  // an error; at other times it is not, peers may drop a sub-group earlier than we do. An abort
  // calls `interrupt`, from any thread, with the family locked. False when the family is already
  // aborted.
  [[nodiscard]] bool enter(int key, std::function<void()> interrupt);
  void leave(int key);

  // Keeps `object` until the family ends.
  void keep(std::shared_ptr<void> object);

  // Keeps the first error of the family and shuts all sockets down.
  void abort(const Status& reason);

  [[nodiscard]] bool aborted() const;

  // The first error: with its own code the first time, then as kAborted.
  [[nodiscard]] Status failure();

  // "rank 2 (...) closed the connection ...", or empty while all sockets are open. Names the peers
  // of group `key` whose sockets had ended when the first end was seen: later ones are mostly
  // survivors that give up.
  [[nodiscard]] std::string closed_peers(int key);

  // After an operation has failed: gives every rank the time to see whose sockets ended first,
  // before we shut our own down and look dead ourselves.
  static void settle();

 private:
  struct Group {
    int key;
    std::vector<Link> links;
    std::vector<std::string> closed_first;
    MonotonicTime closed_at;          // When `closed_first` was seen.
    std::function<void()> interrupt;  // Set while in a call.
    MonotonicTime called_at;
  };

  GlooFamily(FileDescriptor wake_up, const Clock& clock);
  void run();
  void wake() const;
  [[nodiscard]] Group* find(int key) MUSTER_REQUIRES(mutex_);
  void look_for_closed(Group& group) const MUSTER_REQUIRES(mutex_);
  [[nodiscard]] std::string overdue_peers();

  FileDescriptor wake_up_;  // eventfd: the list of sockets has changed, or the thread shall end.
  const Clock& clock_;
  mutable Mutex mutex_;
  std::vector<Group> groups_ MUSTER_GUARDED_BY(mutex_);
  int next_key_ MUSTER_GUARDED_BY(mutex_){0};
  Status first_error_ MUSTER_GUARDED_BY(mutex_);
  bool reported_ MUSTER_GUARDED_BY(mutex_){false};  // failure() has returned first_error_.
  std::vector<std::shared_ptr<void>> kept_ MUSTER_GUARDED_BY(mutex_);
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace muster::comm
