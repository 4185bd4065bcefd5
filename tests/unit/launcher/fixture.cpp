// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/launcher/fixture.h"

#include <muster/checkpoint/checkpoint.h>
#include <muster/common/clock.h>
#include <muster/common/file.h>

#include <poll.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <array>
#include <utility>

namespace muster::launcher::testing {

namespace fs = std::filesystem;

std::vector<std::string> EventLog::kinds() {
  const std::lock_guard lock(mutex);
  std::vector<std::string> out;
  for (const Event& event : events) {
    out.push_back(event.kind);
  }
  return out;
}

void RecordingSink::report(Generation /*generation*/, Event event) {
  const std::lock_guard lock(log_->mutex);
  log_->events.push_back(std::move(event));
}

void LauncherTest::TearDown() {
  if (runner_.joinable()) {
    launcher_->request_stop();
    launcher_->request_stop();
    join();
  }
}

LauncherOptions LauncherTest::shell(const std::string& script, int count) const {
  LauncherOptions options;
  options.program = {"/bin/sh", "-c", script};
  options.process_count = count;
  options.run_id = "run";
  options.checkpoint_root = root_;
  options.grace = std::chrono::seconds{20};
  options.failure_grace = std::chrono::seconds{20};
  options.backoff_first = std::chrono::milliseconds{1};
  options.environment["DIR"] = root_.string();
  return options;
}

void LauncherTest::create(LauncherOptions options) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  console_read_ = ends[0];
  console_write_ = ends[1];
  reader_ = std::thread{[this] {
    std::array<char, 4096> buffer{};
    for (ssize_t count = 0; (count = ::read(console_read_, buffer.data(), buffer.size())) > 0;) {
      console_.append(buffer.data(), static_cast<std::size_t>(count));
    }
  }};
  options.console_fd = console_write_;
  auto created = Launcher::create(std::move(options), std::make_unique<RecordingSink>(log_));
  ASSERT_TRUE(created) << created.status().to_string();
  launcher_ = std::move(created).value();
}

void LauncherTest::destroy() {
  end_ = launcher_->snapshot();
  launcher_.reset();
  ::close(console_write_);
  reader_.join();
  ::close(console_read_);
}

int LauncherTest::run(LauncherOptions options) {
  start(std::move(options));
  return join();
}

void LauncherTest::start(LauncherOptions options) {
  create(std::move(options));
  runner_ = std::thread{[this] { exit_code_ = launcher_->run().value_or(-1); }};
}

int LauncherTest::join() {
  runner_.join();
  destroy();
  return exit_code_;
}

bool LauncherTest::wait_for_file(const fs::path& path) {
  const FileDescriptor watch{::inotify_init1(IN_CLOEXEC)};
  ::inotify_add_watch(watch.get(), path.parent_path().c_str(), IN_CREATE | IN_MOVED_TO);
  const Deadline deadline = Deadline::after(std::chrono::minutes{1});
  while (!fs::exists(path)) {
    pollfd ready{watch.get(), POLLIN, 0};
    if (deadline.expired() || ::poll(&ready, 1, 60'000) != 1) {
      return false;
    }
    std::array<char, 4096> events{};
    static_cast<void>(!::read(watch.get(), events.data(), events.size()));
  }
  return true;
}

std::string LauncherTest::read(const fs::path& path) {
  return read_file(path).value_or("(no file " + path.string() + ")");
}

void LauncherTest::commit_checkpoint(std::int64_t step) {
  checkpoint::WriterOptions options;
  options.root = root_;
  options.identity.run_id = "run";
  options.identity.generation = checkpoint::allocate_generation(root_, "run").value();
  auto writer = checkpoint::Writer::create(options).value();
  ASSERT_TRUE(writer->begin(1, StepIndex{step}, {}).ok());
  ASSERT_TRUE(writer->wait(std::chrono::seconds{20}).ok());
  writer->commit(1, false);
  ASSERT_TRUE(writer->wait(std::chrono::seconds{20}).ok());
}

}  // namespace muster::launcher::testing
