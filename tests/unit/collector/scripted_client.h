// SPDX-License-Identifier: Apache-2.0
// A peer of the collector that says exactly what a test tells it to: one blocking socket.
#pragma once

#include <muster/common/file.h>
#include <muster/wire/codec.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace muster::collector {

// Long enough for a loaded machine; only a failing test waits for it.
inline constexpr std::chrono::seconds kPatience{20};

class ScriptedClient {
 public:
  // Connects to "127.0.0.1:PORT"; aborts the test run when it cannot.
  explicit ScriptedClient(const std::string& address);

  void send(const wire::Message& message);
  // What the peer has closed already is not an error here.
  void send_bytes(std::span<const std::byte> bytes);

  // The next message but heartbeats; nullopt when the connection ended or nothing came in time.
  [[nodiscard]] std::optional<wire::Message> receive(
      std::chrono::milliseconds patience = kPatience);

  // The next message of this kind; others before it are dropped.
  template <typename T>
  [[nodiscard]] std::optional<T> receive_next(std::chrono::milliseconds patience = kPatience) {
    while (std::optional<wire::Message> message = receive(patience)) {
      if (auto* wanted = std::get_if<T>(&*message)) {
        return std::move(*wanted);
      }
    }
    return std::nullopt;
  }

  // Reads acks until one reaches this seq; false when one goes beyond it or none comes.
  [[nodiscard]] bool receive_ack(std::uint64_t seq);

  [[nodiscard]] bool receives_heartbeat();

  // True when the collector closes the connection.
  [[nodiscard]] bool sees_end();

  // Closes without a Goodbye, as a killed process does.
  void vanish();

 private:
  [[nodiscard]] std::optional<wire::Message> receive_any(
      std::chrono::steady_clock::time_point until);
  // False at the end of the connection or when nothing came in time.
  [[nodiscard]] bool read_some(std::chrono::steady_clock::time_point until);

  FileDescriptor socket_;
  wire::FrameReader reader_;
  bool ended_{false};
};

// Hello of rank `rank` of run "run-1".
[[nodiscard]] wire::Hello agent_hello(
    std::int32_t rank = 0, std::int64_t generation = 1, std::int32_t world_size = 4);

[[nodiscard]] wire::Hello operator_hello();
[[nodiscard]] wire::Hello launcher_hello();

// loss, gradient norm, non-finite count, skipped, two heads of layer 0, one rank-scope column.
[[nodiscard]] MetricSchema job_schema();

struct StepValues {
  float loss{2.0F};
  float gradient_norm{1.0F};
  float nonfinite_count{0.0F};
  float skipped{0.0F};
  float logit{10.0F};
};

// A run without findings.
[[nodiscard]] StepValues calm(std::int64_t step);

[[nodiscard]] SampleFrame job_frame(std::int64_t step, const StepValues& values);

// Frames of consecutive steps and seqs.
[[nodiscard]] wire::SampleBatch job_batch(
    std::uint64_t first_seq,
    std::int64_t first_step,
    std::size_t count,
    const StepValues& values = {});

}  // namespace muster::collector
