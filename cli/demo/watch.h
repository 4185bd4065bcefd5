// SPDX-License-Identifier: Apache-2.0
// Queries of the demo to the collector's database, during the job and after its end.
#pragma once

#include "cli/demo/options.h"

#include <muster/common/expected.h>
#include <muster/store/query.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace muster::demo {

inline constexpr const char* kRunId = "demo";

// One look at the job.
struct Glimpse {
  std::int64_t generation{0};
  std::int64_t step{-1};  // last finished step of that generation
  double loss{0};
  double tokens_per_second{0};
  int ranks_alive{0};
  std::string last_event;
};

// Not thread-safe: it owns a read-only connection.
class Watch {
 public:
  explicit Watch(std::filesystem::path database) : database_(std::move(database)) {}

  // Nothing before the first sample is stored.
  [[nodiscard]] std::optional<Glimpse> look();

  // True if the samples of all ranks for `step` of the newest generation are stored.
  [[nodiscard]] bool has_all_of(std::int64_t step, int ranks);

  // Fills everything but the launcher's part and the restarts' durations.
  [[nodiscard]] Status collect(DemoFacts& facts);

 private:
  Status open();
  // `rank` and `layer` are -1 for a series that has none.
  std::optional<double> value_at(
      const std::string& name,
      int rank,
      std::int64_t generation,
      std::int64_t step,
      int layer = -1);
  [[nodiscard]] Expected<std::vector<store::Bucket>> values(
      const std::string& name, int rank, std::int64_t generation);
  std::int64_t series_id(const std::string& name, int rank, int layer);
  Status collect_losses(DemoFacts& facts);
  Status collect_events(DemoFacts& facts);
  void collect_attention(std::int64_t generation, DemoFacts& facts);

  std::filesystem::path database_;
  std::unique_ptr<store::Query> query_;
  std::vector<store::SeriesInfo> series_;
  std::int64_t last_event_id_{0};
  std::string last_event_;
};

}  // namespace muster::demo
