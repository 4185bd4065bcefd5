// SPDX-License-Identifier: Apache-2.0
// Appends frames, step-major, as they arrive.
#pragma once

#include "collector/store/src/connection.h"
#include "collector/store/src/schema_table.h"
#include "collector/store/src/session_table.h"

#include <muster/common/ids.h>
#include <muster/common/telemetry.h>

#include <cstdint>
#include <set>
#include <vector>

namespace muster::store {

// Frames of one rank with one schema, numbered from `first_seq`.
struct FrameBatch {
  const Identity& identity;
  const SchemaInfo& schema;
  std::uint64_t first_seq;
  const std::vector<SampleFrame>& frames;
};

class FrameLog {
 public:
  struct Added {
    std::int64_t frames{0};
    std::int64_t samples{0};
    std::int64_t duplicates{0};
  };

  explicit FrameLog(Connection& connection) : connection_(connection) {}

  // kInvalidArgument for a frame that does not fit the schema or a step outside [0, 2^35): then
  // nothing at all of the batch is stored.
  [[nodiscard]] static Status check(
      const SchemaInfo& schema, std::uint64_t first_seq, const std::vector<SampleFrame>& frames);

  // After `check`. `session` is the one of the batch's identity. Streams that now have something to
  // transpose are put into `ready`.
  [[nodiscard]] Expected<Added> add(
      SessionTable& sessions,
      SessionState& session,
      const FrameBatch& batch,
      std::set<std::int64_t>& ready);

 private:
  // False when the step is stored already.
  [[nodiscard]] Expected<bool> insert(
      const StreamState& stream, std::int64_t schema_id, const SampleFrame& frame);
  [[nodiscard]] Expected<bool> is_transposed(const StreamState& stream, std::int64_t step);

  Connection& connection_;
};

}  // namespace muster::store
