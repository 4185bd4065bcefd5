// SPDX-License-Identifier: Apache-2.0
// The collector of a demo: `muster collector` as a child process on free loopback ports.
#pragma once

#include <muster/common/expected.h>
#include <muster/common/file.h>

#include <sys/types.h>

#include <filesystem>
#include <memory>
#include <string>

namespace muster::demo {

// Not thread-safe. The child dies with the thread that started it.
class CollectorService {
 public:
  // Starts it and waits until it has printed its addresses; an error carries what it printed. Its
  // further output goes to `log`.
  [[nodiscard]] static Expected<std::unique_ptr<CollectorService>> start(
      const std::filesystem::path& database,
      const std::string& http,
      const std::filesystem::path& log);

  ~CollectorService();  // stop()
  CollectorService(const CollectorService&) = delete;
  CollectorService& operator=(const CollectorService&) = delete;
  CollectorService(CollectorService&&) = delete;
  CollectorService& operator=(CollectorService&&) = delete;

  [[nodiscard]] const std::string& agent_address() const { return agent_address_; }

  [[nodiscard]] const std::string& url() const { return url_; }

  [[nodiscard]] pid_t pid() const { return pid_; }

  // SIGTERM, and SIGKILL after ten seconds. Idempotent.
  void stop();

 private:
  CollectorService() = default;
  Status spawn(
      const std::filesystem::path& database,
      const std::string& http,
      const std::filesystem::path& log);
  Status await_addresses(const std::filesystem::path& log);

  pid_t pid_{-1};
  std::string agent_address_;
  std::string url_;
};

}  // namespace muster::demo
