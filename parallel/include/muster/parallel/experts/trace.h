// Record of expert plans, to ask afterwards what another planner would have done:
// `muster plan ep replay FILE`.
//
// One file per rank and group of expert parallelism, little-endian, append-only:
//
//   header   "MUSTEREP", u32 version, u32 bytes of the whole header, shape and balance, hash64
//   record   u32 "REC1", u32 bytes of the whole record, u32 ~bytes, layer, rank, step, tokens,
//            plan hash, statistics of the plan, counts i32 [R, E], choices [tokens, K] (u16 while
//            E <= 65536, else i32; none where they are left out), hash64 of all before it
//
// A file ends after any record. One that ends inside a record was cut by a crash: the writer drops
// that record when it opens the file again, the reader says where it begins.
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

// What the recorded plans were made with.
struct EpTraceHeader {
  EpShape shape;
  EpBalance balance;
};

struct EpTraceOptions {
  // The file is not made larger. A layer of 8 ranks, 384 experts and 8192 tokens of 8 choices takes
  // 144 KB, 12 KB without choices.
  std::int64_t bytes_max{std::int64_t{1} << 30};
  // This rank's choices: with them a replay knows which rows of a token travel together.
  bool choices{true};
  // Steps that this divides.
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
  std::vector<std::int32_t> choices;  // [tokens * K], or empty
};

// Thread-safety: one thread at a time.
class EpTraceWriter {
 public:
  // Creates `path`, or goes on with a file of the same header, whose incomplete last record is cut
  // off. kFailedPrecondition when its header is another, kDataLoss when it is no trace or damaged
  // before its end.
  [[nodiscard]] static Expected<EpTraceWriter> open(
      const std::filesystem::path& path, EpTraceHeader header, const EpTraceOptions& options);

  // Of a plan after EpPlanner::place, with the choices it was placed for. One write, not synced; a
  // step that `every` leaves out is a success. kResourceExhausted, naming the limit, when the file
  // would be too large: nothing is written then, and a later call says so again.
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
  // kNotFound, kDataLoss (no trace, damaged header), kVersionMismatch.
  [[nodiscard]] static Expected<EpTraceReader> open(const std::filesystem::path& path);

  [[nodiscard]] const EpTraceHeader& header() const { return header_; }

  // False at the end. kDataLoss names the file, the record, its byte and what keeps the records
  // before it; no later record can be read then.
  [[nodiscard]] Expected<bool> next(EpTraceRecord& record);

  // Of the record that `next` reads next.
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
  bool cut_{false};  // the last error: the file ends inside a record
  std::vector<std::byte> buffer_;
};

}  // namespace muster::parallel
