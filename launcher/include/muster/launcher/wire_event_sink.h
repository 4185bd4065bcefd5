// SPDX-License-Identifier: Apache-2.0
// Sends a launcher's events to the collector without ever blocking the launcher.
//
// A delivery thread connects, sends and waits for acks; events that do not fit the bounded queue
// are dropped, oldest first. Every generation is a separate session, with rank -1.
#pragma once

#include <muster/common/clock.h>
#include <muster/common/mutex.h>
#include <muster/launcher/event_sink.h>
#include <muster/launcher/wire_client.h>

#include <cstdint>
#include <deque>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>

namespace muster::launcher {

struct WireEventSinkOptions {
  std::string collector;  // "host:port"
  std::string token;
  std::string run_id;
  std::string incarnation;
  int world_size{0};
  std::filesystem::path checkpoint_root{};  // that holds the run's uid, if not empty
};

class WireEventSink final : public EventSink {
 public:
  explicit WireEventSink(WireEventSinkOptions options);
  // Tries to deliver the queued events for at most two seconds.
  ~WireEventSink() override;
  WireEventSink(const WireEventSink&) = delete;
  WireEventSink& operator=(const WireEventSink&) = delete;
  WireEventSink(WireEventSink&&) = delete;
  WireEventSink& operator=(WireEventSink&&) = delete;

  void report(Generation generation, Event event) override;

 private:
  struct Queued {
    Generation generation;
    std::uint64_t seq{0};
    Event event;
  };

  void deliver();
  // Makes one attempt to have `item` stored; drops the connection on failure.
  bool deliver_one(const Queued& item, Deadline deadline);
  bool await_ack(std::uint64_t seq, Deadline deadline);

  const WireEventSinkOptions options_;

  // Used by the delivery thread only.
  std::optional<WireClient> client_;
  Generation client_generation_;
  std::string run_uid_;

  Mutex mutex_;
  CondVar wake_;
  std::deque<Queued> queue_ MUSTER_GUARDED_BY(mutex_);
  Generation last_generation_ MUSTER_GUARDED_BY(mutex_);
  std::uint64_t last_seq_ MUSTER_GUARDED_BY(mutex_){0};
  bool stopping_ MUSTER_GUARDED_BY(mutex_){false};
  Deadline stop_by_ MUSTER_GUARDED_BY(mutex_);
  std::thread thread_;  // Last, so that everything it touches exists.
};

}  // namespace muster::launcher
