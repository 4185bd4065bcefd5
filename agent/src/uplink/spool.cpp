// SPDX-License-Identifier: Apache-2.0
#include "agent/src/uplink/spool.h"

#include <muster/common/hash.h>

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace muster::agent {
namespace {

constexpr std::size_t kHeaderBytes = 12;

void put(std::span<std::byte> out, std::uint64_t value) {
  for (std::byte& byte : out) {
    byte = static_cast<std::byte>(value & 0xFFU);
    value >>= 8U;
  }
}

std::uint64_t get(std::span<const std::byte> in) {
  std::uint64_t value = 0;
  for (std::size_t i = in.size(); i-- > 0;) {
    value = (value << 8U) | std::to_integer<std::uint64_t>(in[i]);
  }
  return value;
}

}  // namespace

Expected<Spool> Spool::open(const std::filesystem::path& path, std::size_t bytes_max) {
  MUSTER_RETURN_IF_ERROR(muster::create_directories(path.parent_path()));
  FileDescriptor file{::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)};
  if (!file.valid()) {
    return io_error("opening " + path.string(), errno);
  }
  return Spool{std::move(file), path, bytes_max};
}

Status Spool::append(std::span<const std::byte> payload) {
  // The consumed head of the file counts too: the bound is what the file takes on disk.
  const std::size_t record_bytes = kHeaderBytes + payload.size();
  if (static_cast<std::size_t>(end_) + record_bytes > bytes_max_) {
    return resource_exhausted(path_.string(), " is full");
  }
  std::vector<std::byte> record(record_bytes);
  put(std::span{record}.first(4), payload.size());
  put(std::span{record}.subspan(4, 8), hash64(payload));
  std::memcpy(record.data() + kHeaderBytes, payload.data(), payload.size());
  std::size_t written = 0;
  while (written < record.size()) {
    const ssize_t count = ::pwrite(
        file_.get(),
        record.data() + written,
        record.size() - written,
        end_ + static_cast<std::int64_t>(written));
    if (count < 0 && errno != EINTR) {
      return io_error("writing " + path_.string(), errno);
    }
    written += count > 0 ? static_cast<std::size_t>(count) : 0;
  }
  end_ += static_cast<std::int64_t>(record.size());
  ++records_;
  return {};
}

Expected<std::vector<std::byte>> Spool::take(std::uint64_t& lost) {
  MUSTER_CHECK(!empty(), "taking from an empty spool");
  std::array<std::byte, kHeaderBytes> header{};
  std::vector<std::byte> payload;
  Status status = read_at(begin_, header);
  const std::uint64_t size = get(std::span{header}.first(4));
  if (status.ok() && size > bytes() - kHeaderBytes) {
    status = data_loss(path_.string(), ": a record's length is damaged");
  }
  if (status.ok()) {
    payload.resize(size);
    status = read_at(begin_ + static_cast<std::int64_t>(kHeaderBytes), payload);
  }
  if (status.ok() && hash64(payload) != get(std::span{header}.subspan(4, 8))) {
    status = data_loss(path_.string(), ": a record's hash does not match");
  }
  if (!status.ok()) {
    lost = records_;
    clear();
    return status;
  }
  begin_ += static_cast<std::int64_t>(kHeaderBytes + size);
  if (--records_ == 0) {
    clear();
  }
  return payload;
}

Status Spool::read_at(std::int64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t count = ::pread(file_.get(), bytes.data(), bytes.size(), offset);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      return io_error("reading " + path_.string(), errno);
    }
    if (count == 0) {
      return data_loss(path_.string(), " ended too early");
    }
    bytes = bytes.subspan(static_cast<std::size_t>(count));
    offset += count;
  }
  return {};
}

void Spool::clear() {
  begin_ = 0;
  end_ = 0;
  records_ = 0;
  // Failing to shrink only keeps the disk space; the next record overwrites from the start.
  static_cast<void>(::ftruncate(file_.get(), 0));
}

}  // namespace muster::agent
