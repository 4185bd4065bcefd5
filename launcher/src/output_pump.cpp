// SPDX-License-Identifier: Apache-2.0
#include "launcher/src/output_pump.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <span>
#include <utility>

namespace muster::launcher {

namespace {

constexpr std::size_t kConsoleBytesMax = std::size_t{1} << 20;
constexpr std::size_t kLineBytesMax = 8192;  // Longer lines are cut on the console.
// A pipe that polls writable takes this much without blocking.
constexpr std::size_t kConsoleWriteBytes = 4096;
constexpr auto kLastOutput = std::chrono::seconds{1};
constexpr auto kBarInterval = std::chrono::seconds{1};

void block_signals() {
  // Handlers belong to the launcher's thread; a closed console is an error code here, no SIGPIPE.
  sigset_t all;
  sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

}  // namespace

OutputPump::OutputPump(int console_fd, const Clock& clock)
    : clock_(clock),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      console_fd_(console_fd),
      thread_([this] {
        block_signals();
        pump();
      }) {}

OutputPump::~OutputPump() {
  {
    const MutexLock lock{mutex_};
    stopping_ = true;
    stop_by_ = clock_.now() + kLastOutput;
  }
  ::eventfd_write(wake_.get(), 1);
  thread_.join();
}

Status OutputPump::add(
    std::string label, FileDescriptor pipe, const std::filesystem::path& log_path) {
  MUSTER_RETURN_IF_ERROR(muster::create_directories(log_path.parent_path()));
  FileDescriptor log{::open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)};
  if (!log.valid() || ::fcntl(pipe.get(), F_SETFL, O_NONBLOCK) != 0) {
    return io_error(log_path.string(), errno);
  }
  {
    const MutexLock lock{mutex_};
    sources_.push_back({std::move(label), std::move(pipe), std::move(log), {}, {}, {}});
  }
  ::eventfd_write(wake_.get(), 1);
  return {};
}

void OutputPump::announce(std::string_view line) {
  {
    const MutexLock lock{mutex_};
    show("muster", line);
  }
  ::eventfd_write(wake_.get(), 1);
}

void OutputPump::drain(Deadline deadline) {
  const MutexLock lock{mutex_};
  while (!sources_.empty() && clock_.wait_until(drained_, mutex_, deadline.at)) {
  }
  sources_.clear();
}

std::int64_t OutputPump::dropped_line_count() const {
  const MutexLock lock{mutex_};
  return dropped_;
}

void OutputPump::pump() {
  MutexLock lock{mutex_};
  while (true) {
    const bool last_words = !console_.empty() && clock_.now() < stop_by_;
    if (stopping_ && !last_words) {
      return;
    }
    std::vector<pollfd> watched{{wake_.get(), POLLIN, 0}};
    if (!console_.empty()) {
      watched.push_back({console_fd_, POLLOUT, 0});
    }
    for (const Source& source : sources_) {
      watched.push_back({source.pipe.get(), POLLIN, 0});
    }
    const int timeout_ms = stopping_ ? 100 : -1;
    lock.unlock();
    ::poll(watched.data(), watched.size(), timeout_ms);
    eventfd_t ignored = 0;
    ::eventfd_read(wake_.get(), &ignored);
    lock.lock();
    for (Source& source : sources_) {
      read_source(source);
    }
    std::erase_if(sources_, [](const Source& source) { return !source.pipe.valid(); });
    if (sources_.empty()) {
      drained_.notify_all();
    }
    write_console();
  }
}

// One read per turn, so that a rank that prints without pause does not starve the others.
void OutputPump::read_source(Source& source) {
  std::array<char, 65536> buffer{};
  const ssize_t count = ::read(source.pipe.get(), buffer.data(), buffer.size());
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) {
    return;
  }
  if (count <= 0) {
    if (!source.partial.empty() || source.returned) {
      end_line(source, '\n');
    }
    source.pipe = FileDescriptor{};
    return;
  }
  const std::span bytes{buffer.data(), static_cast<std::size_t>(count)};
  if (source.log.valid() && !write_all(source.log.get(), std::as_bytes(bytes), "log").ok()) {
    show("muster", "the log of rank " + source.label + " cannot be written any more");
    source.log = FileDescriptor{};
  }
  show_lines(source, {bytes.data(), bytes.size()});
}

void OutputPump::show_lines(Source& source, std::string_view bytes) {
  while (!bytes.empty()) {
    const std::size_t end = bytes.find_first_of("\r\n");
    const std::size_t room = kLineBytesMax - source.partial.size();
    const std::size_t taken = std::min({end, bytes.size(), room});
    source.partial += bytes.substr(0, taken);
    bytes.remove_prefix(taken);
    if (!bytes.empty() && (bytes.front() == '\n' || bytes.front() == '\r')) {
      end_line(source, bytes.front());
      bytes.remove_prefix(1);
    } else if (source.partial.size() == kLineBytesMax) {
      show(source.label, source.partial);
      source.partial.clear();
      source.returned.reset();
    }
  }
}

void OutputPump::end_line(Source& source, char end) {
  const bool whole = end == '\n' && source.partial.empty() && source.returned;
  if (source.returned && !whole && !source.returned->empty()) {
    // Overwritten: a state of a progress bar.
    const MonotonicTime now = clock_.now();
    if (!source.bar_shown_at || now - *source.bar_shown_at >= kBarInterval) {
      show(source.label, *source.returned);
      source.bar_shown_at = now;
    }
  }
  if (end == '\n') {
    show(source.label, whole ? *source.returned : source.partial);
    source.returned.reset();
  } else {
    source.returned = source.partial;
  }
  source.partial.clear();
}

void OutputPump::show(std::string_view label, std::string_view line) {
  if (console_fd_ < 0) {
    return;
  }
  if (console_.size() + label.size() + line.size() + 4 > kConsoleBytesMax) {
    ++dropped_;
    return;
  }
  console_.append("[").append(label).append("] ").append(line).append("\n");
}

void OutputPump::write_console() {
  if (console_fd_ < 0 || console_.empty()) {
    return;
  }
  pollfd ready{console_fd_, POLLOUT, 0};
  std::size_t written = 0;
  while (written < console_.size() && ::poll(&ready, 1, 0) == 1 && console_fd_ >= 0) {
    const std::size_t size = std::min(kConsoleWriteBytes, console_.size() - written);
    const ssize_t count = ::write(console_fd_, console_.data() + written, size);
    if (count < 0 && errno != EAGAIN && errno != EINTR) {
      console_fd_ = -1;  // Closed; logs are still written.
    }
    if (count <= 0) {
      break;
    }
    written += static_cast<std::size_t>(count);
  }
  console_.erase(0, console_fd_ < 0 ? console_.size() : written);
  if (dropped_ > dropped_reported_ && console_.empty()) {
    dropped_reported_ = dropped_;
    show(
        "muster",
        std::to_string(dropped_) + " lines so far were left out here; the logs have them");
  }
}

}  // namespace muster::launcher
