// SPDX-License-Identifier: Apache-2.0
// A launcher over small shell programs, its output caught in a pipe.
#pragma once

#include "tests/support/scratch_folder.h"

#include <muster/launcher/launcher.h>

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace muster::launcher::testing {

// Keeps what it was told.
struct EventLog {
  std::mutex mutex;
  std::vector<Event> events;

  [[nodiscard]] std::vector<std::string> kinds();
};

class RecordingSink final : public EventSink {
 public:
  explicit RecordingSink(std::shared_ptr<EventLog> log) : log_(std::move(log)) {}

  void report(Generation generation, Event event) override;

 private:
  std::shared_ptr<EventLog> log_;
};

class LauncherTest : public ::testing::Test {
 protected:
  void TearDown() override;

  // `script` for /bin/sh on `count` ranks, with short waits.
  [[nodiscard]] LauncherOptions shell(const std::string& script, int count = 1) const;

  // Runs to the end; the exit code, or -1 with a test failure.
  int run(LauncherOptions options);
  // Starts `run` in a thread; `join` waits for it.
  void start(LauncherOptions options);
  int join();

  // Blocks until `path` exists (a rank says so by making it); false after a minute.
  [[nodiscard]] static bool wait_for_file(const std::filesystem::path& path);
  [[nodiscard]] static std::string read(const std::filesystem::path& path);

  // A committed checkpoint of one rank.
  void commit_checkpoint(std::int64_t step);

  [[nodiscard]] std::string console() const { return console_; }

  test::ScratchFolder scratch_;
  std::filesystem::path root_{scratch_.path()};
  std::shared_ptr<EventLog> log_ = std::make_shared<EventLog>();
  std::unique_ptr<Launcher> launcher_;
  LauncherSnapshot end_;  // after `run`

 private:
  void create(LauncherOptions options);
  void destroy();

  std::string console_;
  int console_read_{-1};
  int console_write_{-1};
  std::thread reader_;
  std::thread runner_;
  int exit_code_{-1};
};

}  // namespace muster::launcher::testing
