// SPDX-License-Identifier: Apache-2.0
// The collector service: ingest, store, detect, decide, command. `muster collector` runs one.
//
// Threads: one for network I/O, one for the store; both end in stop(). The dashboard is handed in
// as an HTTP handler so that the collector does not include it.
#pragma once

#include <muster/common/clock.h>
#include <muster/common/expected.h>
#include <muster/common/telemetry.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace muster::collector {

struct CollectorOptions {
  std::filesystem::path database;
  std::string listen{"127.0.0.1:29600"};  // agents; port 0 picks a free one
  std::filesystem::path policy;           // if empty, the built-in default policy is used
  std::string token;                      // if not empty, agents and operators must present it
};

class Collector {
 public:
  // Opens database and port; errors name the file or the port and the remedy.
  [[nodiscard]] static Expected<std::unique_ptr<Collector>> start(
      const CollectorOptions& options, const Clock& clock);

  Collector() = default;
  Collector(const Collector&) = delete;
  Collector& operator=(const Collector&) = delete;
  Collector(Collector&&) = delete;
  Collector& operator=(Collector&&) = delete;
  virtual ~Collector() = default;

  // Returns the address that agents connect to, "127.0.0.1:41234".
  [[nodiscard]] virtual std::string address() const = 0;

  // Issues a command as an operator (the dashboard's buttons). Blocks until the command is stored.
  // Callable from any thread.
  [[nodiscard]] virtual Expected<CommandId> issue(
      const std::string& run_id, CommandKind kind, double argument, const std::string& reason) = 0;

  // Returns the Prometheus exposition text. Callable from any thread.
  [[nodiscard]] virtual std::string metrics_text() = 0;

  // Closes sessions, commits, joins threads. Idempotent.
  virtual void stop() = 0;
};

}  // namespace muster::collector
