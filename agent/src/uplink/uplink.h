// SPDX-License-Identifier: Apache-2.0
// The I/O thread: sends samples, events and reports to the collector and receives commands.
//
// Thread-safety: constructed, started and stopped by the training thread; everything else runs on
// the I/O thread. No error leaves it: an exception or a final rejection detaches telemetry with one
// log line, and training continues.
#pragma once

#include "agent/src/uplink/channel.h"

#include <muster/common/clock.h>
#include <muster/common/expected.h>
#include <muster/common/ids.h>

#include <chrono>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace muster::agent {

struct UplinkOptions {
  std::string host;
  std::string port;
  Identity identity;
  int world_size{1};
  std::string token;
  MetricSchema schema;
  // Computes the values of a sample, [schema.metrics.size()], on the I/O thread.
  std::function<void(const StepSample& sample, std::span<float> values)> fill;
  std::size_t outbox_bytes_max{std::size_t{8} << 20};
  std::filesystem::path spool_directory;  // if empty, there is no spool
  std::size_t spool_bytes_max{std::size_t{64} << 20};
  std::uint64_t seed{0};  // of the reconnect jitter

  std::chrono::milliseconds backoff_min{100};
  std::chrono::milliseconds backoff_max{5000};
  std::chrono::milliseconds poll_interval{20};  // of the rings
  std::chrono::milliseconds heartbeat_interval{1000};
  std::chrono::milliseconds io_timeout{
      5000};  // of connect, handshake, a write, and silence after it
  std::chrono::milliseconds flush_timeout{2000};  // at the end of the process
};

// "host:port", "[::1]:port".
[[nodiscard]] Status parse_address(const std::string& address, UplinkOptions& options);

class Uplink {
 public:
  // `channel` and `clock` must outlive the uplink.
  Uplink(UplinkOptions options, Channel& channel, const Clock& clock);
  // Stops without flushing unless `stop` was called.
  ~Uplink();
  Uplink(const Uplink&) = delete;
  Uplink& operator=(const Uplink&) = delete;
  Uplink(Uplink&&) = delete;
  Uplink& operator=(Uplink&&) = delete;

  void start();

  // Sends all pending items, `rest` last, waits for their acknowledgement for at most
  // flush_timeout, and joins the thread. The training thread must no longer use the channel.
  void stop(std::deque<Note> rest);

 private:
  class Worker;
  std::unique_ptr<Worker> worker_;
};

}  // namespace muster::agent
