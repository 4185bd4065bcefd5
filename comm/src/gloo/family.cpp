// SPDX-License-Identifier: Apache-2.0
#include "comm/src/gloo/family.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

namespace muster::comm {

namespace {

// After a peer's socket has ended, data that came before may still wait to be read: a peer may
// finish the last call earlier than we do and leave. Only a call that outlives this is broken.
constexpr std::chrono::milliseconds kGraceTime{200};

// The system closes the sockets of a killed process one after the other.
constexpr std::chrono::milliseconds kSettleTime{50};

std::string describe(const std::vector<std::string>& peers) {
  std::string text;
  for (const std::string& peer : peers) {
    text += (text.empty() ? "" : " and ") + peer;
  }
  return text.empty() ? text : text + " closed the connection: dead, aborted or gone";
}

bool has_ended(int socket) {
  pollfd entry{socket, POLLRDHUP, 0};
  return ::poll(&entry, 1, 0) > 0;
}

}  // namespace

Expected<std::shared_ptr<GlooFamily>> GlooFamily::create(const Clock& clock) {
  FileDescriptor wake_up{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  if (!wake_up.valid()) {
    return io_error("eventfd", errno);
  }
  std::shared_ptr<GlooFamily> family{new GlooFamily{std::move(wake_up), clock}};
  family->thread_ = std::thread{[raw = family.get()] { raw->run(); }};
  return family;
}

GlooFamily::GlooFamily(FileDescriptor wake_up, const Clock& clock)
    : wake_up_(std::move(wake_up)), clock_(clock) {}

GlooFamily::~GlooFamily() {
  stop_.store(true);
  wake();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void GlooFamily::wake() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_up_.get(), &one, sizeof one);
}

int GlooFamily::watch(std::vector<Link> links) {
  int key = 0;
  {
    const MutexLock lock{mutex_};
    key = next_key_++;
    if (!first_error_.ok()) {
      for (const Link& link : links) {
        ::shutdown(link.socket.get(), SHUT_RDWR);
      }
    }
    groups_.push_back({key, std::move(links), {}, {}, {}, {}});
  }
  wake();
  return key;
}

void GlooFamily::release(int key) {
  {
    const MutexLock lock{mutex_};
    std::erase_if(groups_, [key](const Group& group) { return group.key == key; });
  }
  wake();
}

void GlooFamily::keep(std::shared_ptr<void> object) {
  const MutexLock lock{mutex_};
  kept_.push_back(std::move(object));
}

void GlooFamily::abort(const Status& reason) {
  const MutexLock lock{mutex_};
  if (!first_error_.ok()) {
    return;
  }
  first_error_ = reason;
  for (const Group& group : groups_) {
    for (const Link& link : group.links) {
      ::shutdown(link.socket.get(), SHUT_RDWR);
    }
    if (group.interrupt) {
      group.interrupt();
    }
  }
}

bool GlooFamily::aborted() const {
  const MutexLock lock{mutex_};
  return !first_error_.ok();
}

Status GlooFamily::failure() {
  const MutexLock lock{mutex_};
  return std::exchange(reported_, true) ? muster::aborted(first_error_.message()) : first_error_;
}

GlooFamily::Group* GlooFamily::find(int key) {
  const auto found = std::find_if(
      groups_.begin(), groups_.end(), [key](const Group& group) { return group.key == key; });
  return found == groups_.end() ? nullptr : &*found;
}

bool GlooFamily::enter(int key, std::function<void()> interrupt) {
  bool is_broken = false;
  {
    const MutexLock lock{mutex_};
    if (!first_error_.ok()) {
      return false;
    }
    Group* group = find(key);
    group->interrupt = std::move(interrupt);
    group->called_at = clock_.now();
    is_broken = !group->closed_first.empty();
  }
  if (is_broken) {
    wake();  // The thread no longer waits for the sockets of this group.
  }
  return true;
}

void GlooFamily::leave(int key) {
  const MutexLock lock{mutex_};
  find(key)->interrupt = nullptr;
}

void GlooFamily::look_for_closed(Group& group) const {
  if (!group.closed_first.empty()) {
    return;
  }
  for (const Link& link : group.links) {
    if (has_ended(link.socket.get())) {
      group.closed_first.push_back(link.peer);
      group.closed_at = clock_.now();
    }
  }
}

std::string GlooFamily::closed_peers(int key) {
  const MutexLock lock{mutex_};
  Group* group = find(key);
  look_for_closed(*group);
  return describe(group->closed_first);
}

void GlooFamily::settle() {
  std::this_thread::sleep_for(kSettleTime);
}

// Whose end has kept a call waiting for longer than the grace time.
std::string GlooFamily::overdue_peers() {
  const MutexLock lock{mutex_};
  for (Group& group : groups_) {
    look_for_closed(group);
    const auto since = std::max(group.closed_at, group.called_at);
    if (group.interrupt && !group.closed_first.empty() && clock_.now() - since >= kGraceTime) {
      return describe(group.closed_first);
    }
  }
  return {};
}

// Sleeps until a socket ends, something changes or the family is destroyed. An ended socket stays
// ended, so a group that has one is looked at from time to time instead, while it is in a call.
void GlooFamily::run() {
  while (!stop_.load()) {
    std::vector<pollfd> entries{{wake_up_.get(), POLLIN, 0}};
    bool waits_for_grace = false;
    {
      const MutexLock lock{mutex_};
      for (const Group& group : groups_) {
        waits_for_grace = waits_for_grace || (group.interrupt && !group.closed_first.empty());
        for (const Link& link : group.links) {
          if (group.closed_first.empty()) {
            entries.push_back({link.socket.get(), POLLRDHUP, 0});
          }
        }
      }
    }
    constexpr int kLookMs = static_cast<int>(kGraceTime.count()) / 4;
    ::poll(entries.data(), entries.size(), waits_for_grace ? kLookMs : -1);
    std::uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = ::read(wake_up_.get(), &count, sizeof count);
    const std::string overdue = overdue_peers();
    if (!overdue.empty() && !aborted()) {
      abort(unavailable(overdue));
    }
  }
}

}  // namespace muster::comm
