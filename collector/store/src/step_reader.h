// Reads all series of a metric at one step: a matrix, not a curve. A frame that is not transposed
// yet is read once for all series of its sender.
#pragma once

#include "src/chunk_codec.h"
#include "src/connection.h"

#include <muster/store/query.h>

#include <cstdint>
#include <string>
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

  Connection& connection_;
  ChunkCodec codec_;
  // Of the read in progress.
  std::vector<Sender> senders_;
  std::vector<std::int64_t> slots_;  // [values]
};

}  // namespace muster::store
