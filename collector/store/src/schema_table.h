// SPDX-License-Identifier: Apache-2.0
// Registered layouts of frames, and which series their columns belong to.
#pragma once

#include "collector/store/src/connection.h"

#include <muster/common/expected.h>
#include <muster/common/telemetry.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

namespace muster::store {

struct SchemaInfo {
  std::int64_t schema_id{0};
  std::size_t metric_count{0};
  std::size_t rank_metric_count{0};  // Without the job-scope ones, which rank 0 alone sends.
  std::optional<std::size_t> loss_position;  // Of the job's loss.
};

class SchemaTable {
 public:
  explicit SchemaTable(Connection& connection) : connection_(connection) {}

  // Stores the schema unless it is known, and makes the series of this run and rank.
  // kInvalidArgument when ids are not 0..n-1 in order, kResourceExhausted when the rank has no slot
  // left.
  [[nodiscard]] Status add(const MetricSchema& schema, std::int64_t run_id, std::int32_t rank);

  // kFailedPrecondition when it was never registered.
  [[nodiscard]] Expected<const SchemaInfo*> find(std::uint64_t hash);

  // Forgets what may not have been committed.
  void clear() { known_.clear(); }

 private:
  [[nodiscard]] Status check_slots(std::int64_t run_id, std::int32_t rank);
  [[nodiscard]] Status insert(const MetricSchema& schema, std::uint64_t hash);
  [[nodiscard]] Expected<std::optional<SchemaInfo>> read(std::uint64_t hash);

  Connection& connection_;
  std::unordered_map<std::uint64_t, SchemaInfo> known_;
};

// One column of a frame that belongs to a series.
struct SchemaColumn {
  std::size_t position{0};
  std::int64_t series_id{0};
  std::int64_t slot{0};  // Index of the series among those of its sender.
};

// The columns of a schema as sent by a rank, ascending by slot.
[[nodiscard]] Expected<std::vector<SchemaColumn>> read_columns(
    Connection& connection, std::int64_t schema_id, std::int64_t run_id, std::int64_t rank);

}  // namespace muster::store
