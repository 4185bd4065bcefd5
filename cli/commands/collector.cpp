// SPDX-License-Identifier: Apache-2.0
// muster collector: the collector and its dashboard in one process.
#include "cli/commands/subcommands.h"

#include <muster/collector/collector.h>
#include <muster/common/clock.h>
#include <muster/common/log.h>
#include <muster/common/signals.h>
#include <muster/dashboard/server.h>

#include <CLI/CLI.hpp>

#include <csignal>
#include <cstdio>
#include <memory>
#include <utility>

namespace muster::cli {

namespace {

struct CollectorFlags {
  collector::CollectorOptions options;
  std::string http{"127.0.0.1:29680"};
  std::string token_file;
  std::string log_level{"info"};
};

// Blocked before any thread exists, so that all threads inherit it and only `wait` sees them.
class StopSignals {
 public:
  StopSignals() {
    sigemptyset(&set_);
    for (const int number : {SIGTERM, SIGINT}) {
      if (!ignores_signal(number)) {
        sigaddset(&set_, number);
      }
    }
    ::pthread_sigmask(SIG_BLOCK, &set_, nullptr);
    ::signal(SIGPIPE, SIG_IGN);
  }

  void wait() const {
    int number = 0;
    ::sigwait(&set_, &number);
  }

 private:
  sigset_t set_{};
};

Status serve(CollectorFlags& flags) {
  const StopSignals stop;
  const SystemClock clock;
  MUSTER_ASSIGN_OR_RETURN(flags.options.token, read_token(flags.token_file));
  MUSTER_ASSIGN_OR_RETURN(const auto service, collector::Collector::start(flags.options, clock));
  dashboard::ServerOptions http;
  http.database = flags.options.database;
  http.listen = flags.http;
  http.token = flags.options.token;
  http.issue_command =
      [&](const std::string& run_id, CommandKind kind, double argument, const std::string& reason) {
        return service->issue(run_id, kind, argument, reason);
      };
  http.metrics_text = [&] { return service->metrics_text(); };
  MUSTER_ASSIGN_OR_RETURN(const auto server, dashboard::Server::start(std::move(http)));
  std::printf("collector  %s\ndashboard  %s\n", service->address().c_str(), server->url().c_str());
  std::fflush(stdout);
  stop.wait();
  server->stop();
  service->stop();
  return {};
}

}  // namespace

Action declare_collector(CLI::App& command, const Tail& /*tail*/) {
  const auto flags = std::make_shared<CollectorFlags>();
  command.footer(
      "Runs until SIGTERM or SIGINT. Training goes on while it is down.\n\n"
      "Examples:\n"
      "  muster collector --db muster.db\n"
      "  muster collector --db muster.db --listen 127.0.0.1:0 --policy policy.yaml");
  command.add_option("--db", flags->options.database, "Database file, created when missing")
      ->required();
  command
      .add_option("--listen", flags->options.listen, "HOST:PORT for agents; port 0: any free one")
      ->capture_default_str();
  command.add_option("--http", flags->http, "HOST:PORT of the dashboard; port 0: any free one")
      ->capture_default_str();
  command.add_option("--policy", flags->options.policy, "YAML file of findings and actions")
      ->check(CLI::ExistingFile);
  command.add_option("--token-file", flags->token_file, "Token asked of agents and operators")
      ->check(CLI::ExistingFile);
  command.add_option("--log-level", flags->log_level, "debug, info, warning, error or off")
      ->capture_default_str()
      ->check(CLI::IsMember({"debug", "info", "warning", "error", "off"}));
  return [flags]() -> int {
    init_logging("collector", parse_log_level(flags->log_level));
    const Status status = serve(*flags);
    return status.ok() ? 0 : fail("collector", status);
  };
}

}  // namespace muster::cli
