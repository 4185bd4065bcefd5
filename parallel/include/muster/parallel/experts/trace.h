// SPDX-License-Identifier: Apache-2.0
// Recorded expert plans, to evaluate another planner on afterwards: `muster plan ep replay FILE`.
//
// One file per rank and expert group, little-endian, append-only:
//
//   header   "MUSTEREP", u32 version, u32 bytes of the whole header, shape and balance, hash64
//   record   u32 "REC1", u32 bytes of the whole record, u32 ~bytes, layer, rank, step, tokens,
//            plan hash, statistics of the plan, counts i32 [R, E], choices [tokens, K] (u16 if
//            E <= 65536, else i32; absent if they are left out), hash64 of all before it
//
// A file may end after any record. A file that ends inside a record was cut by a crash: the writer
// drops that record when it reopens the file, and the reader reports where it begins.
#pragma once

#include <muster/common/file.h>
#include <muster/parallel/experts/plan.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace muster::parallel {

// Options of the recorded plans.
struct EpTraceHeader {
  EpShape shape;
  EpBalance balance;
};

struct EpTraceOptions {
  // Largest size of the file. A record of 8 ranks, 384 experts and 8192 tokens with 8 choices takes
  // 144 KB, or 12 KB without choices.
  std::int64_t bytes_max{std::int64_t{1} << 30};
  // Records this rank's choices, so that a replay can deduplicate the rows of a token.
  bool choices{true};
  // Records every such step.
  std::int64_t every{1};
};

struct EpTraceRecord {
  int layer{0};
  std::int64_t step{0};
  int rank{0};
  std::int64_t tokens{0};
  std::uint64_t plan_hash{0};
  EpPlanStatistics statistics;
  std::vector<std::int32_t> counts;   // [R, E]
  std::vector<std::int32_t> choices;  // [tokens * K] or empty
};

// Thread-safety: one thread at a time.
class EpTraceWriter {
 public:
  // Creates `path`, or appends to a file with an equal header after cutting off its incomplete last
  // record. kFailedPrecondition if the header differs, kDataLoss if the file is not a trace or is
  // damaged before its end.
  [[nodiscard]] static Expected<EpTraceWriter> open(
      const std::filesystem::path& path, EpTraceHeader header, const EpTraceOptions& options);

  // Appends a plan after EpPlanner::place, with the choices it was placed for, in one write without
  // fsync. Succeeds without a record for a step that `every` leaves out. kResourceExhausted naming
  // the limit if the file would become too large; this and later calls then write nothing.
  [[nodiscard]] Status append(
      int layer, std::int64_t step, const EpPlan& plan, std::span<const std::int32_t> choices);

  [[nodiscard]] std::int64_t bytes() const { return bytes_; }

 private:
  EpTraceWriter() = default;

  std::string name_;
  FileDescriptor file_;
  EpTraceHeader header_;
  EpTraceOptions options_;
  std::int64_t bytes_{0};
  std::vector<std::byte> buffer_;
};

// Thread-safety: one thread at a time.
class EpTraceReader {
 public:
  // kNotFound, kDataLoss (not a trace, damaged header), kVersionMismatch.
  [[nodiscard]] static Expected<EpTraceReader> open(const std::filesystem::path& path);

  [[nodiscard]] const EpTraceHeader& header() const { return header_; }

  // Returns false at the end. kDataLoss names the file, the record, its byte, and the command that
  // keeps the records before it; later records cannot be read.
  [[nodiscard]] Expected<bool> next(EpTraceRecord& record);

  // Offset of the record that next() reads.
  [[nodiscard]] std::int64_t offset() const { return offset_; }

 private:
  friend class EpTraceWriter;
  EpTraceReader() = default;

  [[nodiscard]] Status damaged(const std::string& why) const;
  [[nodiscard]] Expected<std::int64_t> end_of_records();

  std::string name_;
  FileDescriptor file_;
  EpTraceHeader header_;
  std::int64_t offset_{0};
  std::int64_t size_{0};
  std::int64_t records_{0};
  bool cut_{false};  // true if the last error was a file that ends inside a record
  std::vector<std::byte> buffer_;
};

}  // namespace muster::parallel
