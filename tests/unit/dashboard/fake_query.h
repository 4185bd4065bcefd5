// SPDX-License-Identifier: Apache-2.0
// A store in memory: what it holds is set by the test, what it was asked is kept.
#pragma once

#include "dashboard/server/query_source.h"

#include <muster/store/query.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace muster::dashboard {

struct FakeStore {
  std::vector<store::RunInfo> runs;
  std::vector<store::Query::GenerationInfo> generations;
  std::vector<store::SeriesInfo> series;
  std::vector<store::StoredEvent> events;
  std::vector<store::RankStatus> ranks;
  std::vector<store::CommandStatus> commands;
  std::int64_t version{1};
  bool broken{false};

  struct RangeCall {
    std::int64_t series{0};
    std::int64_t generation{0};
    std::int64_t begin{0};
    std::int64_t end{0};
    std::int32_t buckets{0};
  };

  std::vector<RangeCall> range_calls;

  struct StepCall {
    std::string metric;
    std::int64_t generation{0};
    std::int64_t step{0};
  };

  std::vector<StepCall> step_calls;
  store::StepValues step_values;
};

// One run "night" of two ranks, generation 2, at step 40.
inline FakeStore night_store() {
  FakeStore fake;
  store::RunInfo run;
  run.run_id = "night";
  run.world_size = 2;
  run.generation = 2;
  run.first_step = 0;
  run.last_step = 40;
  run.last_loss = 2.5;
  fake.runs.push_back(run);
  fake.generations = {{1, 0, 25, 0}, {2, 20, 40, 0}};
  return fake;
}

class FakeQuery final : public store::Query {
 public:
  explicit FakeQuery(FakeStore& fake) : fake_(&fake) {}

  Expected<std::vector<store::RunInfo>> runs() override { return fake_->runs; }

  Expected<store::RunInfo> run(const std::string& run_id) override {
    for (const store::RunInfo& run : fake_->runs) {
      if (run.run_id == run_id) {
        return run;
      }
    }
    return not_found("no run \"" + run_id + "\"");
  }

  Expected<std::vector<GenerationInfo>> generations(const std::string& /*run_id*/) override {
    return fake_->generations;
  }

  Expected<std::vector<store::SeriesInfo>> series(const std::string& /*run_id*/) override {
    return fake_->series;
  }

  Expected<store::SeriesRange> range(
      const std::string& /*run_id*/,
      std::int64_t series_id,
      std::int64_t generation,
      std::int64_t step_begin,
      std::int64_t step_end,
      std::int32_t buckets_max) override {
    fake_->range_calls.push_back({series_id, generation, step_begin, step_end, buckets_max});
    store::SeriesRange range;
    range.series_id = series_id;
    range.generation = generation;
    range.step_begin = step_begin;
    range.step_end = step_end;
    range.buckets.push_back({step_begin, step_begin, 1.0F, 2.0F, 1.5F, 2, 1});
    return range;
  }

  Expected<store::StepValues> at_step(
      const std::string& /*run_id*/,
      const std::string& metric,
      std::int64_t generation,
      std::int64_t step) override {
    fake_->step_calls.push_back({metric, generation, step});
    return fake_->step_values;
  }

  Expected<std::vector<store::StoredEvent>> events(
      const std::string& /*run_id*/, std::int64_t after, std::int32_t limit) override {
    std::vector<store::StoredEvent> found;
    for (const store::StoredEvent& event : fake_->events) {
      if (event.event_id > after && found.size() < static_cast<std::size_t>(limit)) {
        found.push_back(event);
      }
    }
    return found;
  }

  Expected<std::vector<store::RankStatus>> ranks(const std::string& /*run_id*/) override {
    return fake_->ranks;
  }

  Expected<std::vector<store::CommandStatus>> commands(const std::string& /*run_id*/) override {
    return fake_->commands;
  }

  Expected<std::int64_t> data_version() override {
    if (fake_->broken) {
      return unavailable("the database went away");
    }
    return fake_->version;
  }

 private:
  FakeStore* fake_;
};

inline QueryFactory factory_of(FakeStore& fake) {
  return [&fake]() -> Expected<std::unique_ptr<store::Query>> {
    return std::unique_ptr<store::Query>(std::make_unique<FakeQuery>(fake));
  };
}

}  // namespace muster::dashboard
