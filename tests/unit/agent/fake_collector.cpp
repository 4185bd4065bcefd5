// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/agent/fake_collector.h"

#include <muster/common/check.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>

namespace muster::agent {

struct FakeCollector::Client {
  int fd{-1};
  std::int32_t rank{-1};
  wire::FrameReader reader;

  Client() = default;
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  Client(Client&&) = delete;
  Client& operator=(Client&&) = delete;

  ~Client() { ::close(fd); }
};

std::uint64_t FakeCollector::Received::contiguous() const {
  std::uint64_t seq = 0;
  for (const auto& [next, message] : by_seq) {
    if (next != seq + 1) {
      break;
    }
    seq = next;
  }
  return seq;
}

std::vector<SampleFrame> FakeCollector::Received::frames() const {
  std::vector<SampleFrame> out;
  for (const auto& [seq, message] : by_seq) {
    if (const auto* batch = std::get_if<wire::SampleBatch>(&message)) {
      out.push_back(batch->frames.front());
    }
  }
  return out;
}

std::vector<Event> FakeCollector::Received::events() const {
  std::vector<Event> out;
  for (const auto& [seq, message] : by_seq) {
    if (const auto* event = std::get_if<wire::EventMessage>(&message)) {
      out.push_back(event->event);
    }
  }
  return out;
}

std::vector<CommandReport> FakeCollector::Received::reports() const {
  std::vector<CommandReport> out;
  for (const auto& [seq, message] : by_seq) {
    if (const auto* report = std::get_if<wire::CommandReportMessage>(&message)) {
      out.push_back(report->report);
    }
  }
  return out;
}

FakeCollector::FakeCollector() = default;

FakeCollector::~FakeCollector() {
  stop();
}

void FakeCollector::start(Behaviour behaviour) {
  behaviour_ = std::move(behaviour);
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int yes = 1;
  ::setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (!behaviour_.reads) {
    const int small = 4096;  // So that a peer that is not read from notices soon.
    ::setsockopt(listener_, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port_);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* generic = reinterpret_cast<sockaddr*>(&address);  // NOLINT: the socket interface
  MUSTER_CHECK(::bind(listener_, generic, sizeof address) == 0, "bind to loopback");
  MUSTER_CHECK(::listen(listener_, 16) == 0, "listen");
  socklen_t size = sizeof address;
  ::getsockname(listener_, generic, &size);
  port_ = ntohs(address.sin_port);
  std::array<int, 2> pipe{};
  MUSTER_CHECK(::pipe(pipe.data()) == 0, "pipe");
  wake_read_ = pipe[0];
  wake_write_ = pipe[1];
  thread_ = std::thread{[this] { serve(); }};
}

void FakeCollector::stop() {
  if (!thread_.joinable()) {
    return;
  }
  MUSTER_CHECK(::write(wake_write_, "x", 1) == 1, "wake");
  thread_.join();
  const std::lock_guard lock{mutex_};
  clients_.clear();
  for (const int fd : {listener_, wake_read_, wake_write_}) {
    ::close(fd);
  }
}

std::string FakeCollector::address() const {
  return "127.0.0.1:" + std::to_string(port_);
}

void FakeCollector::send(std::int32_t rank, const wire::Message& message) {
  const std::lock_guard lock{mutex_};
  for (const auto& client : clients_) {
    if (client->rank == rank) {
      transmit(*client, message);
    }
  }
}

bool FakeCollector::wait(const std::function<bool(const State&)>& condition) {
  std::unique_lock lock{mutex_};
  return changed_.wait_for(lock, std::chrono::seconds{20}, [&] { return condition(state_); });
}

FakeCollector::State FakeCollector::state() const {
  const std::lock_guard lock{mutex_};
  return state_;
}

void FakeCollector::serve() {
  while (true) {
    std::vector<pollfd> polled{{wake_read_, POLLIN, 0}, {listener_, POLLIN, 0}};
    {
      const std::lock_guard lock{mutex_};
      for (const auto& client : clients_) {
        polled.push_back({client->fd, static_cast<short>(behaviour_.reads ? POLLIN : 0), 0});
      }
    }
    ::poll(polled.data(), polled.size(), -1);
    if (polled[0].revents != 0) {
      return;
    }
    const std::lock_guard lock{mutex_};
    for (std::size_t i = polled.size(); i-- > 2;) {
      const auto client = clients_.begin() + static_cast<std::ptrdiff_t>(i - 2);
      if (polled[i].revents != 0 && !read_from(**client)) {
        clients_.erase(client);
      }
    }
    if (polled[1].revents != 0) {
      accept_one();
    }
    changed_.notify_all();
  }
}

void FakeCollector::accept_one() {
  auto client = std::make_unique<Client>();
  client->fd = ::accept(listener_, nullptr, nullptr);
  if (client->fd >= 0) {
    if (!behaviour_.reads) {
      transmit(*client, wire::Welcome{behaviour_.version, behaviour_.epoch, 0});
    }
    clients_.push_back(std::move(client));
  }
}

bool FakeCollector::read_from(Client& client) {
  std::array<std::byte, 65536> buffer{};
  const ssize_t size = ::recv(client.fd, buffer.data(), buffer.size(), 0);
  if (size <= 0) {
    return false;
  }
  client.reader.feed(std::span{buffer}.first(static_cast<std::size_t>(size)));
  while (true) {
    const auto message = client.reader.next();
    if (!message) {
      return false;
    }
    if (!message->has_value()) {
      break;
    }
    if (!handle(client, **message)) {
      return false;
    }
  }
  if (client.rank >= 0 && behaviour_.acks) {
    const std::uint64_t seq = state_[client.rank].contiguous();
    transmit(client, wire::Ack{behaviour_.acks_nonsense ? seq + 1000 : seq});
  }
  return true;
}

bool FakeCollector::handle(Client& client, const wire::Message& message) {
  if (const auto* hello = std::get_if<wire::Hello>(&message)) {
    return greet(client, *hello);
  }
  Received& received = state_[client.rank];
  if (const auto* schema = std::get_if<wire::SchemaMessage>(&message)) {
    ++received.schemas;
    received.schema = schema->schema;
  } else if (const auto* batch = std::get_if<wire::SampleBatch>(&message)) {
    MUSTER_CHECK(batch->schema_hash == received.schema.hash(), "samples follow their schema");
    for (std::size_t i = 0; i < batch->frames.size(); ++i) {
      const std::uint64_t seq = batch->first_seq + i;
      store(client, seq, wire::SampleBatch{seq, batch->schema_hash, {batch->frames[i]}});
    }
  } else if (const auto* event = std::get_if<wire::EventMessage>(&message)) {
    store(client, event->seq, *event);
  } else if (const auto* report = std::get_if<wire::CommandReportMessage>(&message)) {
    store(client, report->seq, *report);
  } else if (const auto* heartbeat = std::get_if<wire::Heartbeat>(&message)) {
    received.last_heartbeat = *heartbeat;
  } else if (std::holds_alternative<wire::Goodbye>(message)) {
    received.said_goodbye = true;
    return false;
  }
  return true;
}

bool FakeCollector::greet(Client& client, const wire::Hello& hello) {
  client.rank = hello.identity.rank.value();
  Received& received = state_[client.rank];
  ++received.hellos;
  received.last_hello = hello;
  if (!behaviour_.refusal.empty()) {
    transmit(client, wire::Goodbye{behaviour_.refusal, false});
    return false;
  }
  transmit(client, wire::Welcome{behaviour_.version, behaviour_.epoch, received.contiguous()});
  return true;
}

void FakeCollector::store(Client& client, std::uint64_t seq, wire::Message message) {
  Received& received = state_[client.rank];
  if (!behaviour_.stores) {
    ++received.forgotten;
    return;
  }
  if (!received.by_seq.emplace(seq, std::move(message)).second) {
    ++received.duplicates;
  }
}

void FakeCollector::transmit(Client& client, const wire::Message& message) {
  std::vector<std::byte> bytes;
  MUSTER_CHECK(wire::append_frame(message, bytes).ok(), "a message of the test fits");
  // Small enough for the socket's buffer; a peer that has gone shows at the next read.
  static_cast<void>(::send(client.fd, bytes.data(), bytes.size(), MSG_NOSIGNAL));
}

}  // namespace muster::agent
