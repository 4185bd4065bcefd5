// SPDX-License-Identifier: Apache-2.0
// The HTTP server of the dashboard: static pages, a JSON and binary API over store::Query, live
// updates by server-sent events, /metrics. Embedded in `muster collector`.
//
// Threads: one for network I/O, one for queries and callbacks; `stop` joins both. A slow client or
// a slow query never blocks ingestion: the store is only read. Binds to loopback by default.
#pragma once

#include <muster/common/expected.h>
#include <muster/common/telemetry.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

namespace muster::dashboard {

struct ServerOptions {
  std::filesystem::path database;
  std::string listen{"127.0.0.1:29680"};  // port 0 picks a free one
  std::filesystem::path web_root;         // built pages; if empty, the embedded ones are served
  std::string token;                      // operator token; if empty, commands need none

  // Calls into the collector for the buttons and /metrics, made on the query thread. Without them
  // the buttons are off and /metrics is not found.
  std::function<Expected<CommandId>(
      const std::string& run_id, CommandKind kind, double argument, const std::string& reason)>
      issue_command;
  std::function<std::string()> metrics_text;
};

class Server {
 public:
  // kInvalidArgument for a malformed address, kAlreadyExists naming a port in use. The database may
  // appear later: until then the API answers 503.
  [[nodiscard]] static Expected<std::unique_ptr<Server>> start(ServerOptions options);

  Server() = default;
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  Server(Server&&) = delete;
  Server& operator=(Server&&) = delete;
  virtual ~Server() = default;

  // Returns "http://127.0.0.1:29680".
  [[nodiscard]] virtual std::string url() const = 0;
  // Closes every connection and joins the threads. Idempotent; must not be called from a callback.
  virtual void stop() = 0;
};

}  // namespace muster::dashboard
