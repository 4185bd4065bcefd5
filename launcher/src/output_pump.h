// SPDX-License-Identifier: Apache-2.0
// Copies the output of ranks to their log files and, prefixed, to the console.
//
// Its thread reads the ranks' pipes, so a rank never waits for the launcher, and a slow or
// closed console never stops a rank: lines that do not fit its bounded buffer are left out there
// and counted; the log files have them all.
//
// Thread-safety: all functions may be called from any thread.
#pragma once

#include <muster/common/clock.h>
#include <muster/common/file.h>
#include <muster/common/mutex.h>
#include <muster/common/status.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace muster::launcher {

class OutputPump {
 public:
  // `console_fd` is borrowed; -1 disables the console. `clock` must outlive the pump.
  explicit OutputPump(int console_fd, const Clock& clock = Clock::system());
  // Writes pending output, for at most a second.
  ~OutputPump();
  OutputPump(const OutputPump&) = delete;
  OutputPump& operator=(const OutputPump&) = delete;
  OutputPump(OutputPump&&) = delete;
  OutputPump& operator=(OutputPump&&) = delete;

  // Reads `pipe` until its end, into a new file `log_path` (folders are made), lines as "[label]
  // ...".
  [[nodiscard]] Status add(
      std::string label, FileDescriptor pipe, const std::filesystem::path& log_path);

  // A line of the launcher's own, "[muster] ...".
  void announce(std::string_view line);

  // Waits until all pipes have ended, at most until `deadline`; then closes those that another
  // process still holds open.
  void drain(Deadline deadline);

  [[nodiscard]] std::int64_t dropped_line_count() const;

 private:
  struct Source {
    std::string label;
    FileDescriptor pipe;
    FileDescriptor log;
    std::string partial;  // a line without its end yet
    // Text before a carriage return: a whole line if "\n" follows, else a state of a progress bar,
    // of which one a second is shown.
    std::optional<std::string> returned;
    std::optional<MonotonicTime> bar_shown_at;
  };

  void pump();
  void read_source(Source& source) MUSTER_REQUIRES(mutex_);
  void show_lines(Source& source, std::string_view bytes) MUSTER_REQUIRES(mutex_);
  // Ends the line of `source` at `end`, "\n" or "\r".
  void end_line(Source& source, char end) MUSTER_REQUIRES(mutex_);
  void show(std::string_view label, std::string_view line) MUSTER_REQUIRES(mutex_);
  void write_console() MUSTER_REQUIRES(mutex_);

  const Clock& clock_;
  FileDescriptor wake_;  // eventfd
  mutable Mutex mutex_;
  CondVar drained_;
  int console_fd_ MUSTER_GUARDED_BY(mutex_);
  std::vector<Source> sources_ MUSTER_GUARDED_BY(mutex_);
  std::string console_ MUSTER_GUARDED_BY(mutex_);  // not yet written
  std::int64_t dropped_ MUSTER_GUARDED_BY(mutex_){0};
  std::int64_t dropped_reported_ MUSTER_GUARDED_BY(mutex_){0};
  bool stopping_ MUSTER_GUARDED_BY(mutex_){false};
  MonotonicTime stop_by_ MUSTER_GUARDED_BY(mutex_){};
  std::thread thread_;  // Last, so that everything it touches exists.
};

}  // namespace muster::launcher
