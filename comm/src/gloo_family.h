// What a Gloo communicator and all its sub-communicators share: the first error, and the sockets
// that have to be shut down so that everybody learns of it.
//
// A blocked Gloo operation ends in three ways only: data, a timeout, or the end of its socket. So
// an abort shuts the sockets down, and the end of any socket means that a peer has died or aborted.
// A thread of this class watches for that, because Gloo reports it only to the rank that was about
// to receive from that very socket.
//
// Thread-safety: any thread.
#pragma once

#include <muster/common/file.h>
#include <muster/common/status.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace muster::comm {

class GlooFamily {
 public:
  // A duplicate of the socket to one peer: shutting it down acts on Gloo's own, and its number
  // cannot be reused by somebody else while we hold it.
  struct Link {
    std::string peer;  // "rank 2 (pid 4711 on host a)".
    FileDescriptor socket;
  };

  [[nodiscard]] static Expected<std::shared_ptr<GlooFamily>> create();
  ~GlooFamily();
  GlooFamily(const GlooFamily&) = delete;
  GlooFamily& operator=(const GlooFamily&) = delete;
  GlooFamily(GlooFamily&&) = delete;
  GlooFamily& operator=(GlooFamily&&) = delete;

  // Watches `links` until `release` with the returned key.
  [[nodiscard]] int watch(std::vector<Link> links);
  void release(int key);

  // Between `enter` and `leave` this rank waits for its peers, so a closed socket is an error.
  void enter() { calls_in_flight_.fetch_add(1); }

  void leave() { calls_in_flight_.fetch_sub(1); }

  // Keeps the first error of the family and shuts all sockets down.
  void abort(const Status& reason);

  [[nodiscard]] bool aborted() const;

  // The first error: with its own code the first time, then as kAborted.
  [[nodiscard]] Status failure();

  // "rank 2 (...) closed its connection", or empty while all sockets are open.
  [[nodiscard]] std::string closed_peers() const;

 private:
  explicit GlooFamily(FileDescriptor wake_up);
  void run();
  void wake() const;

  struct Group {
    int key;
    std::vector<Link> links;
  };

  FileDescriptor wake_up_;  // eventfd: the list of sockets has changed, or the thread shall end.
  mutable std::mutex mutex_;
  std::vector<Group> groups_;
  int next_key_{0};
  Status first_error_;
  bool told_{false};
  std::atomic<bool> stop_{false};
  std::atomic<int> calls_in_flight_{0};
  std::thread thread_;
};

}  // namespace muster::comm
