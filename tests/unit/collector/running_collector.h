// SPDX-License-Identifier: Apache-2.0
// A collector on a free port with a database of its own, and what tests ask of it.
#pragma once

#include "collector/src/service.h"
#include "tests/support/scratch_folder.h"
#include "tests/unit/collector/fake_store.h"
#include "tests/unit/collector/scripted_client.h"

#include <muster/collector/collector.h>
#include <muster/common/clock.h>
#include <muster/policy/policy.h>
#include <muster/store/query.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace muster::collector {

using test::ScratchFolder;

class RunningCollector {
 public:
  RunningCollector();

  // Before start(): what differs from the defaults of a test (20 ms commits, no token).
  ServiceOptions service;
  CollectorOptions options;
  Policy policy{policy::default_policy()};
  std::shared_ptr<FakeStoreState> fake_store;  // Set: used instead of SQLite.
  // Sessions and ranks are judged on this clock, if set, instead of the clock of the machine.
  std::shared_ptr<ManualClock> manual_clock;

  void start();
  void stop();
  // An orderly stop and a new start on the same database and another port.
  void restart();
  // A new start on what a killed process would have left on the disk at this moment.
  void crash_and_restart();

  [[nodiscard]] Collector& collector() { return *collector_; }

  // A client that has said Hello and been welcomed.
  [[nodiscard]] ScriptedClient join(const wire::Hello& hello);
  // The same, with the schema sent.
  [[nodiscard]] ScriptedClient join_rank(std::int32_t rank = 0, std::int64_t generation = 1);

  [[nodiscard]] std::unique_ptr<store::Query> query();
  // Events of run-1 whose kind is `kind`, once there are `count` of them or patience is over.
  [[nodiscard]] std::vector<store::StoredEvent> wait_for_events(
      const std::string& kind, std::size_t count);
  // The value of a /metrics sample, once it is `wanted` or patience is over.
  [[nodiscard]] bool wait_for_metric(const std::string& sample, const std::string& wanted);
  [[nodiscard]] std::string metric(const std::string& sample);

 private:
  [[nodiscard]] const Clock& clock() const;

  ScratchFolder folder_;
  std::unique_ptr<Collector> collector_;
};

}  // namespace muster::collector
