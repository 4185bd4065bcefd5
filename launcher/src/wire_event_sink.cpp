// SPDX-License-Identifier: Apache-2.0
#include <muster/checkpoint/checkpoint.h>
#include <muster/launcher/wire_event_sink.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <variant>

namespace muster::launcher {

namespace {

constexpr std::size_t kQueueMax = 1024;
constexpr auto kAttemptTimeout = std::chrono::seconds{2};
constexpr auto kRetryFirst = std::chrono::milliseconds{100};
constexpr auto kRetryMax = std::chrono::seconds{5};
constexpr auto kLastEvents = std::chrono::seconds{2};

}  // namespace

WireEventSink::WireEventSink(WireEventSinkOptions options)
    : options_(std::move(options)), thread_([this] { deliver(); }) {}

WireEventSink::~WireEventSink() {
  {
    const MutexLock lock{mutex_};
    stopping_ = true;
    stop_by_ = Deadline::after(kLastEvents);
  }
  wake_.notify_all();
  thread_.join();
}

void WireEventSink::report(Generation generation, Event event) {
  const MutexLock lock{mutex_};
  if (generation != last_generation_) {
    last_generation_ = generation;
    last_seq_ = 0;
  }
  if (queue_.size() == kQueueMax) {
    queue_.pop_front();
  }
  queue_.push_back({generation, ++last_seq_, std::move(event)});
  wake_.notify_all();
}

void WireEventSink::deliver() {
  std::chrono::nanoseconds retry = kRetryFirst;
  MutexLock lock{mutex_};
  while (true) {
    while (!stopping_ && queue_.empty()) {
      wake_.wait(mutex_);
    }
    if (queue_.empty() || stop_by_.expired()) {
      return;
    }
    const Queued item = queue_.front();
    const Deadline attempt = Deadline::after(kAttemptTimeout);
    const Deadline deadline{std::min(attempt.at, stop_by_.at)};
    lock.unlock();
    const bool delivered = deliver_one(item, deadline);
    lock.lock();
    if (delivered) {
      retry = kRetryFirst;
      // The oldest may have been dropped for room meanwhile.
      if (!queue_.empty() && queue_.front().generation == item.generation &&
          queue_.front().seq == item.seq) {
        queue_.pop_front();
      }
      continue;
    }
    const bool was_stopping = stopping_;
    const Deadline pause = Deadline::after(was_stopping ? kRetryFirst : retry);
    while (stopping_ == was_stopping && wake_.wait_until(mutex_, pause.at)) {
    }
    retry = std::min<std::chrono::nanoseconds>(retry * 2, kRetryMax);
  }
}

bool WireEventSink::deliver_one(const Queued& item, Deadline deadline) {
  if (!client_ || client_generation_ != item.generation) {
    if (!options_.checkpoint_root.empty()) {
      run_uid_ = checkpoint::run_uid(options_.checkpoint_root, options_.run_id).value_or(run_uid_);
    }
    wire::Hello hello;
    hello.role = wire::PeerRole::kLauncher;
    hello.identity = {options_.run_id, item.generation, Rank{-1}, options_.incarnation, run_uid_};
    hello.world_size = options_.world_size;
    hello.token = options_.token;
    if (client_) {
      static_cast<void>(client_->send(wire::Goodbye{"next generation", true}, deadline));
    }
    client_.reset();
    auto connected = WireClient::connect(options_.collector, hello, deadline);
    if (!connected) {
      return false;
    }
    client_.emplace(std::move(connected).value());
    client_generation_ = item.generation;
  }
  if (client_->welcome().acked_seq >= item.seq) {
    return true;  // Stored by an earlier attempt whose ack was lost.
  }
  const bool delivered = client_->send(wire::EventMessage{item.seq, item.event}, deadline).ok() &&
                         await_ack(item.seq, deadline);
  if (!delivered) {
    client_.reset();
  }
  return delivered;
}

bool WireEventSink::await_ack(std::uint64_t seq, Deadline deadline) {
  while (true) {
    const auto message = client_->receive(deadline);
    if (!message || std::holds_alternative<wire::Goodbye>(*message)) {
      return false;
    }
    if (const auto* ack = std::get_if<wire::Ack>(&*message); ack != nullptr && ack->seq >= seq) {
      return true;
    }
  }
}

}  // namespace muster::launcher
