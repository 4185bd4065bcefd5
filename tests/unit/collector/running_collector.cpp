// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/collector/running_collector.h"

#include "collector/src/history.h"
#include "tests/support/eventually.h"

#include <muster/common/check.h>

#include <utility>

namespace muster::collector {

using test::eventually;

RunningCollector::RunningCollector() {
  options.listen = "127.0.0.1:0";
  options.database = folder_ / "muster.db";
  service.commit_interval = std::chrono::milliseconds{20};
  service.tick_interval = std::chrono::milliseconds{5};
  service.linger_timeout = std::chrono::milliseconds{100};
}

const Clock& RunningCollector::clock() const {
  return manual_clock != nullptr ? *manual_clock : Clock::system();
}

void RunningCollector::start() {
  if (manual_clock != nullptr) {
    service.commit_interval = std::chrono::milliseconds{0};  // This clock may never move.
  }
  const std::filesystem::path database = options.database;
  const StoreOpener open_store = [this]() -> Expected<std::unique_ptr<store::Store>> {
    if (fake_store != nullptr) {
      return std::unique_ptr<store::Store>{std::make_unique<FakeStore>(fake_store)};
    }
    return store::Store::open(options.database, clock());
  };
  const HistoryReader read = [database, fake = fake_store != nullptr](const std::string& run_id) {
    return fake ? History{} : read_history(database, run_id);
  };
  auto started = start_service(options, service, policy, clock(), open_store, read);
  MUSTER_CHECK(started.ok(), started.status().to_string());
  collector_ = std::move(started).value();
}

void RunningCollector::stop() {
  collector_->stop();
}

void RunningCollector::restart() {
  collector_.reset();
  start();
}

void RunningCollector::crash_and_restart() {
  const std::filesystem::path left = options.database;
  const std::filesystem::path found = folder_ / "found.db";
  std::filesystem::copy_file(left, found);
  std::filesystem::copy_file(left.string() + "-wal", found.string() + "-wal");
  collector_.reset();
  options.database = found;
  start();
}

ScriptedClient RunningCollector::join(const wire::Hello& hello) {
  ScriptedClient client{collector_->address()};
  client.send(hello);
  const auto welcome = client.receive_next<wire::Welcome>();
  MUSTER_CHECK(welcome.has_value(), "no Welcome");
  return client;
}

ScriptedClient RunningCollector::join_rank(std::int32_t rank, std::int64_t generation) {
  ScriptedClient client = join(agent_hello(rank, generation));
  client.send(wire::SchemaMessage{job_schema()});
  return client;
}

std::unique_ptr<store::Query> RunningCollector::query() {
  auto query = store::Query::open(options.database);
  MUSTER_CHECK(query.ok(), query.status().to_string());
  return std::move(query).value();
}

std::vector<store::StoredEvent> RunningCollector::wait_for_events(
    const std::string& kind, std::size_t count) {
  const std::unique_ptr<store::Query> reader = query();
  std::vector<store::StoredEvent> found;
  static_cast<void>(eventually([&] {
    found.clear();
    const auto events = reader->events("run-1", 0, 10'000);
    for (const store::StoredEvent& stored : events.value_or({})) {
      if (stored.event.kind == kind) {
        found.push_back(stored);
      }
    }
    return found.size() >= count;
  }));
  return found;
}

std::string RunningCollector::metric(const std::string& sample) {
  const std::string text = "\n" + collector_->metrics_text();
  const std::size_t begin = text.find("\n" + sample + " ");
  if (begin == std::string::npos) {
    return "";
  }
  const std::size_t value = begin + sample.size() + 2;
  return text.substr(value, text.find('\n', value) - value);
}

bool RunningCollector::wait_for_metric(const std::string& sample, const std::string& wanted) {
  return eventually([&] { return metric(sample) == wanted; });
}

}  // namespace muster::collector
