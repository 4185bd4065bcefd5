// SPDX-License-Identifier: Apache-2.0
// Reads all series of a metric at one step: a matrix, not a curve. A frame that is not transposed
// yet is read once for all series of its sender.
#pragma once

#include "collector/store/src/chunk_codec.h"
#include "collector/store/src/connection.h"
#include "collector/store/src/schema_table.h"

#include <muster/store/query.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

namespace muster::store {

class StepReader {
 public:
  explicit StepReader(Connection& connection) : connection_(connection) {}

  // See Query::at_step; `run_id` is the run's row. Needs a read transaction of the caller's.
  [[nodiscard]] Expected<StepValues> read(
      std::int64_t run_id, const std::string& metric, std::int64_t generation, std::int64_t step);

 private:
  // The series of one sender in the generation, a stretch of StepValues::values.
  struct Sender {
    std::int64_t rank{0};
    std::int64_t stream_id{-1};  // -1: it has sent nothing in the generation.
    std::size_t begin{0};
    std::size_t end{0};
  };

  [[nodiscard]] Status find_series(
      std::int64_t run_id, const std::string& metric, StepValues& found);
  [[nodiscard]] Status find_steps(std::int64_t run_id, StepValues& found);
  [[nodiscard]] Expected<bool> read_frame(
      const Sender& sender, std::int64_t run_id, StepValues& found);
  [[nodiscard]] Status read_chunks(const Sender& sender, StepValues& found);

  // The columns of a schema as a sender's frames have them; they never change once they are there.
  [[nodiscard]] Expected<const std::vector<SchemaColumn>*> columns_of(
      std::int64_t schema_id, std::int64_t run_id, std::int64_t rank);

  Connection& connection_;
  ChunkCodec codec_;
  // By schema, run and sender. A page that follows a run asks for the same ones again and again.
  std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t>, std::vector<SchemaColumn>>
      columns_;
  // Of the read in progress.
  std::vector<Sender> senders_;
  std::vector<std::int64_t> slots_;  // [values]
};

}  // namespace muster::store
