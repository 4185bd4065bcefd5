// SPDX-License-Identifier: Apache-2.0
#include "parallel/src/experts/trace/format.h"

#include <muster/parallel/experts/trace.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <utility>

namespace muster::parallel {

namespace {

// Reads fewer bytes at the end of the file.
Expected<std::size_t> read_at(
    int fd, std::int64_t offset, std::span<std::byte> into, const std::string& name) {
  std::size_t done = 0;
  while (done < into.size()) {
    const ssize_t count = ::pread(
        fd, into.data() + done, into.size() - done, offset + static_cast<std::int64_t>(done));
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      return io_error(name, errno);
    }
    if (count == 0) {
      break;
    }
    done += static_cast<std::size_t>(count);
  }
  return done;
}

Status no_trace(const std::string& name, const std::string& why) {
  return data_loss(name, ": ", why, "; give a file that EpTraceWriter wrote");
}

constexpr std::uint32_t kHeaderBytesMax = 4096;

Expected<EpTraceHeader> read_header(int fd, const std::string& name, std::int64_t& bytes) {
  std::vector<std::byte> buffer(kEpTracePrefixBytes);
  MUSTER_ASSIGN_OR_RETURN(std::size_t count, read_at(fd, 0, buffer, name));
  if (count < buffer.size() ||
      std::memcmp(buffer.data(), kEpTraceMagic.data(), kEpTraceMagic.size()) != 0) {
    return no_trace(name, "not a trace of expert plans");
  }
  TraceFields fields{std::span{buffer}.subspan(kEpTraceMagic.size())};
  const auto version = fields.take<std::uint32_t>();
  const auto size = fields.take<std::uint32_t>();
  if (version != kEpTraceVersion) {
    return version_mismatch(
        name,
        ": version ",
        version,
        " of the trace format, this build reads ",
        kEpTraceVersion,
        "; use the build that wrote it");
  }
  if (size > kHeaderBytesMax || size < kEpTracePrefixBytes) {
    return no_trace(name, "its header is damaged (" + std::to_string(size) + " bytes long)");
  }
  buffer.resize(size);
  MUSTER_ASSIGN_OR_RETURN(count, read_at(fd, 0, buffer, name));
  if (count < size) {
    return no_trace(name, "it ends inside its header");
  }
  auto header = decode_header(buffer);
  if (!header.ok()) {
    return no_trace(name, header.status().message());
  }
  bytes = size;
  return header;
}

bool same(const EpTraceHeader& a, const EpTraceHeader& b) {
  std::vector<std::byte> bytes_a;
  std::vector<std::byte> bytes_b;
  encode_header(a, bytes_a);
  encode_header(b, bytes_b);
  return bytes_a == bytes_b;
}

Expected<std::int64_t> size_of(int fd, const std::string& name) {
  struct stat info {};

  if (::fstat(fd, &info) != 0) {
    return io_error(name, errno);
  }
  return std::int64_t{info.st_size};
}

}  // namespace

// --- reader
// ----------------------------------------------------------------------------------------

Expected<EpTraceReader> EpTraceReader::open(const std::filesystem::path& path) {
  EpTraceReader reader;
  reader.name_ = path.string();
  reader.file_ = FileDescriptor{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (!reader.file_.valid()) {
    return errno == ENOENT ? not_found(reader.name_, ": no such file")
                           : io_error(reader.name_, errno);
  }
  MUSTER_ASSIGN_OR_RETURN(reader.size_, size_of(reader.file_.get(), reader.name_));
  MUSTER_ASSIGN_OR_RETURN(
      reader.header_, read_header(reader.file_.get(), reader.name_, reader.offset_));
  return reader;
}

Status EpTraceReader::damaged(const std::string& why) const {
  return data_loss(
      name_,
      ": record ",
      records_,
      ", at byte ",
      offset_,
      ", is damaged: ",
      why,
      ". 'truncate -s ",
      offset_,
      " ",
      name_,
      "' keeps the ",
      records_,
      (records_ == 1 ? " record" : " records"),
      " before it");
}

Expected<bool> EpTraceReader::next(EpTraceRecord& record) {
  if (offset_ == size_) {
    return false;
  }
  buffer_.resize(kEpTraceRecordPrefixBytes);
  MUSTER_ASSIGN_OR_RETURN(std::size_t count, read_at(file_.get(), offset_, buffer_, name_));
  cut_ = count < buffer_.size();
  if (cut_) {
    return damaged("the file ends inside it");
  }
  TraceFields fields{buffer_};
  const auto tag = fields.take<std::uint32_t>();
  const auto bytes = fields.take<std::uint32_t>();
  const auto complement = fields.take<std::uint32_t>();
  if (tag != kEpTraceRecord || bytes != ~complement || bytes > record_bytes_max(header_)) {
    return damaged("no record begins there");
  }
  cut_ = offset_ + bytes > size_;
  if (cut_) {
    return damaged("the file ends inside it");
  }
  buffer_.resize(bytes);
  MUSTER_ASSIGN_OR_RETURN(count, read_at(file_.get(), offset_, buffer_, name_));
  std::string why = "the file ends inside it";
  if (count < bytes || !decode_record(header_, buffer_, record, why)) {
    return damaged(why);
  }
  offset_ += bytes;
  ++records_;
  return true;
}

// --- writer
// ----------------------------------------------------------------------------------------

// Accepts only the damage that a crash leaves: an incomplete last record.
Expected<std::int64_t> EpTraceReader::end_of_records() {
  EpTraceRecord record;
  while (true) {
    const auto more = next(record);
    if (!more.ok() && !cut_) {
      return more.status();
    }
    if (!more.ok() || !*more) {
      return offset_;
    }
  }
}

Expected<EpTraceWriter> EpTraceWriter::open(
    const std::filesystem::path& path, EpTraceHeader header, const EpTraceOptions& options) {
  MUSTER_RETURN_IF_ERROR(check(header.shape, header.balance));
  if (options.every < 1 || options.bytes_max < 1) {
    return invalid_argument(
        path.string(),
        ": trace options every ",
        options.every,
        " and bytes_max ",
        options.bytes_max,
        " must be at least 1");
  }
  if (record_bytes_max(header) > std::numeric_limits<std::uint32_t>::max()) {
    return invalid_argument(
        path.string(),
        ": a record of ",
        header.shape.tokens_max,
        " tokens may be larger than 4 GiB; lower tokens_max");
  }
  EpTraceWriter writer;
  writer.name_ = path.string();
  writer.header_ = std::move(header);
  writer.options_ = options;
  writer.file_ =
      FileDescriptor{::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)};
  if (!writer.file_.valid()) {
    return io_error(writer.name_, errno);
  }
  MUSTER_ASSIGN_OR_RETURN(writer.bytes_, size_of(writer.file_.get(), writer.name_));
  if (writer.bytes_ == 0) {
    encode_header(writer.header_, writer.buffer_);
    MUSTER_RETURN_IF_ERROR(write_all(writer.file_.get(), writer.buffer_, writer.name_));
    writer.bytes_ = static_cast<std::int64_t>(writer.buffer_.size());
    return writer;
  }
  MUSTER_ASSIGN_OR_RETURN(EpTraceReader reader, EpTraceReader::open(path));
  if (!same(reader.header(), writer.header_)) {
    return failed_precondition(
        writer.name_,
        ": records another shape or balance than this run's; name another file, or "
        "move that one away");
  }
  MUSTER_ASSIGN_OR_RETURN(const std::int64_t end, reader.end_of_records());
  if (end < writer.bytes_ && ::ftruncate(writer.file_.get(), end) != 0) {
    return io_error(writer.name_, errno);
  }
  writer.bytes_ = end;
  return writer;
}

Status EpTraceWriter::append(
    int layer, std::int64_t step, const EpPlan& plan, std::span<const std::int32_t> choices) {
  if (step % options_.every != 0) {
    return {};
  }
  if (plan.shape != header_.shape || choices.size() != plan.destinations.size()) {
    return invalid_argument(
        name_,
        ": layer ",
        layer,
        ", step ",
        step,
        ": the plan is of another shape than the file's, or was placed for other choices");
  }
  encode_record(
      layer, step, plan, options_.choices ? choices : std::span<const std::int32_t>{}, buffer_);
  const auto size = static_cast<std::int64_t>(buffer_.size());
  if (bytes_ + size > options_.bytes_max) {
    return resource_exhausted(
        name_,
        ": full with ",
        bytes_,
        " of at most ",
        options_.bytes_max,
        " bytes; raise the limit, record fewer steps, or leave out choices");
  }
  if (Status status = write_all(file_.get(), buffer_, name_); !status.ok()) {
    // The next record must not follow part of this one. If truncation fails too, the reader detects
    // the damage.
    [[maybe_unused]] const int cut = ::ftruncate(file_.get(), bytes_);
    return status;
  }
  bytes_ += size;
  return {};
}

}  // namespace muster::parallel
