// SPDX-License-Identifier: Apache-2.0
#include "collector/src/history.h"
#include "collector/src/server.h"
#include "collector/src/service.h"
#include "collector/src/task_queue.h"
#include "collector/src/writer.h"

#include <muster/collector/collector.h>
#include <muster/common/log.h>

#include <csignal>
#include <future>
#include <utility>

namespace muster::collector {

namespace {

// Members in the order of their lifetimes: the writer answers the server, the server feeds the
// queue.
class Service final : public Collector {
 public:
  Service(const ServiceOptions& options, Policy policy)
      : options_(options),
        policy_(std::move(policy)),
        queue_(options_.queue_tasks_max, options_.queue_bytes_max) {}

  ~Service() override { halt(); }

  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;
  Service(Service&&) = delete;
  Service& operator=(Service&&) = delete;

  [[nodiscard]] Status start(
      const CollectorOptions& options,
      const Clock& clock,
      const StoreOpener& open_store,
      HistoryReader read_history) {
    MUSTER_ASSIGN_OR_RETURN(
        server_, Server::listen(options.listen, options.token, options_, clock, metrics_, queue_));
    MUSTER_ASSIGN_OR_RETURN(std::unique_ptr<store::Store> store, open_store());
    MUSTER_ASSIGN_OR_RETURN(const std::vector<store::RunLine> lines, store->lines());
    server_->load(lines);
    writer_ = std::make_unique<Writer>(
        std::move(store),
        policy_,
        clock,
        metrics_,
        std::move(read_history),
        queue_,
        *server_,
        options_);
    writer_->start();
    server_->start();
    log_info("event=collector_started address=" + server_->address());
    return {};
  }

  [[nodiscard]] std::string address() const override { return server_->address(); }

  [[nodiscard]] Expected<CommandId> issue(
      const std::string& run_id,
      CommandKind kind,
      double argument,
      const std::string& reason) override {
    IssueRequest request;
    request.request = {run_id, kind, argument, -1, reason, "operator"};
    std::future<Expected<CommandId>> stored = request.promise.get_future();
    if (!queue_.push(Task{nullptr, std::move(request)})) {
      return unavailable("the collector is stopping; the command was not stored");
    }
    return stored.get();
  }

  [[nodiscard]] std::string metrics_text() override { return metrics_.text(); }

  void stop() override { halt(); }

 private:
  // Sessions first: what they have read is still stored and committed.
  void halt() {
    if (server_ != nullptr) {
      server_->stop();
    }
    if (writer_ != nullptr) {
      writer_->stop();
    }
  }

  const ServiceOptions options_;
  const Policy policy_;
  Metrics metrics_;
  TaskQueue queue_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<Writer> writer_;
};

}  // namespace

Expected<std::unique_ptr<Collector>> start_service(
    const CollectorOptions& options,
    const ServiceOptions& service_options,
    const Policy& policy,
    const Clock& clock,
    const StoreOpener& open_store,
    HistoryReader read_history) {
  auto service = std::make_unique<Service>(service_options, policy);
  MUSTER_RETURN_IF_ERROR(service->start(options, clock, open_store, std::move(read_history)));
  return std::unique_ptr<Collector>{std::move(service)};
}

Expected<std::unique_ptr<Collector>> Collector::start(
    const CollectorOptions& options, const Clock& clock) {
  Policy policy = policy::default_policy();
  if (!options.policy.empty()) {
    MUSTER_ASSIGN_OR_RETURN(policy, policy::load_policy(options.policy));
  }
  // A peer that is gone must be an error of one write, not the end of the process.
  std::signal(SIGPIPE, SIG_IGN);
  const std::filesystem::path database = options.database;
  return start_service(
      options,
      ServiceOptions{},
      policy,
      clock,
      [&] { return store::Store::open(database, clock); },
      [database](const std::string& run_id) { return read_history(database, run_id); });
}

}  // namespace muster::collector
