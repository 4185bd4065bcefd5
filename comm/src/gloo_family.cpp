#include "src/gloo_family.h"

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
constexpr int kGraceMs = 200;

bool has_ended(int socket) {
  pollfd entry{socket, POLLRDHUP, 0};
  return ::poll(&entry, 1, 0) > 0;
}

}  // namespace

Expected<std::shared_ptr<GlooFamily>> GlooFamily::create() {
  FileDescriptor wake_up{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  if (!wake_up.valid()) {
    return io_error("eventfd", errno);
  }
  std::shared_ptr<GlooFamily> family{new GlooFamily{std::move(wake_up)}};
  family->thread_ = std::thread{[raw = family.get()] { raw->run(); }};
  return family;
}

GlooFamily::GlooFamily(FileDescriptor wake_up) : wake_up_(std::move(wake_up)) {}

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
    const std::lock_guard lock(mutex_);
    key = next_key_++;
    if (!first_error_.ok()) {
      for (const Link& link : links) {
        ::shutdown(link.socket.get(), SHUT_RDWR);
      }
    }
    groups_.push_back({key, std::move(links)});
  }
  wake();
  return key;
}

void GlooFamily::release(int key) {
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(groups_, [key](const Group& group) { return group.key == key; });
  }
  wake();
}

void GlooFamily::abort(const Status& reason) {
  const std::lock_guard lock(mutex_);
  if (!first_error_.ok()) {
    return;
  }
  first_error_ = reason;
  for (const Group& group : groups_) {
    for (const Link& link : group.links) {
      ::shutdown(link.socket.get(), SHUT_RDWR);
    }
  }
}

bool GlooFamily::aborted() const {
  const std::lock_guard lock(mutex_);
  return !first_error_.ok();
}

Status GlooFamily::failure() {
  const std::lock_guard lock(mutex_);
  return std::exchange(told_, true) ? muster::aborted(first_error_.message()) : first_error_;
}

std::string GlooFamily::closed_peers() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> closed;
  for (const Group& group : groups_) {
    for (const Link& link : group.links) {
      if (has_ended(link.socket.get()) &&
          std::find(closed.begin(), closed.end(), link.peer) == closed.end()) {
        closed.push_back(link.peer);
      }
    }
  }
  std::string text;
  for (const std::string& peer : closed) {
    text += (text.empty() ? "" : " and ") + peer;
  }
  return text.empty() ? text : text + " closed the connection: dead, aborted or gone";
}

// Sleeps until a socket ends, the list changes or the family is destroyed. An ended socket stays
// ended, so after the first one the thread looks at intervals of the grace time.
void GlooFamily::run() {
  bool ended_before = false;
  while (!stop_.load()) {
    std::vector<pollfd> entries{{wake_up_.get(), POLLIN, 0}};
    if (!ended_before) {
      const std::lock_guard lock(mutex_);
      for (const Group& group : groups_) {
        for (const Link& link : group.links) {
          entries.push_back({link.socket.get(), POLLRDHUP, 0});
        }
      }
    }
    ::poll(entries.data(), entries.size(), ended_before ? kGraceMs : -1);
    std::uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = ::read(wake_up_.get(), &count, sizeof count);
    const bool was_ended = std::exchange(ended_before, !closed_peers().empty());
    if (was_ended && ended_before && got < 0 && calls_in_flight_.load() > 0 && !aborted()) {
      abort(unavailable(closed_peers()));
    }
  }
}

}  // namespace muster::comm
