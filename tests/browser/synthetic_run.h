// SPDX-License-Identifier: Apache-2.0
// Writes runs that look like training into a store, for the browser tests and the pictures.
//
// Every value is a function of (metric, generation, rank, step), so two processes write the same.
// Not thread-safe.
#pragma once

#include <muster/common/telemetry.h>
#include <muster/store/store.h>

#include <cstdint>
#include <string>
#include <vector>

namespace muster::browser {

struct RunShape {
  std::string run_id;
  std::int32_t ranks{4};
  std::int32_t layers{4};
  std::int32_t heads{4};
  std::int32_t experts{8};
  std::int64_t spike_step{-1};      // one step with a large loss and gradient norm
  std::int64_t nonfinite_step{-1};  // one step whose loss and gradient norm are NaN
  // The step from which on all layers but the last choose blocks; -1 keeps all of them full.
  std::int64_t blocks_from_step{-1};
};

class SyntheticRun {
 public:
  // `store` must outlive this.
  SyntheticRun(store::Store& store, RunShape shape);

  // Starts the next launch of the job; its first step is `step`.
  [[nodiscard]] Status launch(std::int64_t step);

  // Adds `count` steps of every rank. `wall_unix_ns` is the time of the last one.
  [[nodiscard]] Status advance(std::int64_t count, std::int64_t wall_unix_ns);

  [[nodiscard]] Status add_event(Event event, std::int32_t rank);

  // Adds a rank's report on a command.
  [[nodiscard]] Status report(std::int32_t rank, const CommandReport& report);

  // The rank sends nothing more until the next launch.
  void lose_rank(std::int32_t rank);

  [[nodiscard]] std::int64_t next_step() const { return next_step_; }

  [[nodiscard]] const RunShape& shape() const { return shape_; }

 private:
  [[nodiscard]] Identity identity(std::int32_t rank) const;
  [[nodiscard]] SampleFrame frame(std::int32_t rank, std::int64_t step) const;

  store::Store* store_;
  RunShape shape_;
  std::vector<MetricSchema> schemas_;  // [ranks]
  std::int64_t generation_{0};
  std::int64_t next_step_{0};
  std::vector<std::uint64_t> seqs_;  // [ranks]
  std::vector<bool> lost_;           // [ranks]
};

}  // namespace muster::browser
