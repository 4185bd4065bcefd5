// SPDX-License-Identifier: Apache-2.0
// The sink against a collector played by the test on a loopback socket.
#include <muster/launcher/wire_event_sink.h>
#include <muster/wire/codec.h>

#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <optional>

namespace muster::launcher {

namespace {

// One connection, blocking.
class Peer {
 public:
  explicit Peer(int fd) : fd_(fd) {}

  std::optional<wire::Message> receive() {
    while (true) {
      auto message = reader_.next();
      if (message && *message) {
        return std::move(**message);
      }
      std::array<std::byte, 4096> buffer{};
      const ssize_t count = ::recv(fd_.get(), buffer.data(), buffer.size(), 0);
      if (count <= 0) {
        return std::nullopt;
      }
      reader_.feed(std::span{buffer.data(), static_cast<std::size_t>(count)});
    }
  }

  void send(const wire::Message& message) {
    std::vector<std::byte> frame;
    ASSERT_TRUE(wire::append_frame(message, frame).ok());
    ASSERT_TRUE(write_all(fd_.get(), frame, "peer").ok());
  }

  template <typename T>
  T expect() {
    const auto message = receive();
    const T* content = message ? std::get_if<T>(&*message) : nullptr;
    EXPECT_NE(content, nullptr);
    return content == nullptr ? T{} : *content;
  }

 private:
  FileDescriptor fd_;
  wire::FrameReader reader_;
};

class Listener {
 public:
  Listener() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    address_.sin_family = AF_INET;
    address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(fd_.get(), reinterpret_cast<sockaddr*>(&address_), sizeof(address_)), 0);
    socklen_t size = sizeof(address_);
    ::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&address_), &size);
    EXPECT_EQ(::listen(fd_.get(), 8), 0);
  }

  [[nodiscard]] std::string address() const {
    return "127.0.0.1:" + std::to_string(ntohs(address_.sin_port));
  }

  Peer accept() { return Peer{::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC)}; }

 private:
  FileDescriptor fd_;
  sockaddr_in address_{};
};

Event event(const std::string& reason) {
  Event out;
  out.kind = event_kind::kRestart;
  out.reason = reason;
  return out;
}

WireEventSinkOptions options(const std::string& address) {
  return {address, "secret", "moby", "abc", 4};
}

}  // namespace

TEST(WireEventSink, IntroducesItselfAndDeliversInOrder) {
  Listener listener;
  WireEventSink sink{options(listener.address())};
  sink.report(Generation{3}, event("first"));
  sink.report(Generation{3}, event("second"));
  Peer peer = listener.accept();
  const auto hello = peer.expect<wire::Hello>();
  EXPECT_EQ(hello.role, wire::PeerRole::kLauncher);
  EXPECT_EQ(hello.identity, (Identity{"moby", Generation{3}, Rank{-1}, "abc"}));
  EXPECT_EQ(hello.token, "secret");
  peer.send(wire::Welcome{});
  for (const std::uint64_t seq : {1U, 2U}) {
    const auto message = peer.expect<wire::EventMessage>();
    EXPECT_EQ(message.seq, seq);
    EXPECT_EQ(message.event.reason, seq == 1 ? "first" : "second");
    peer.send(wire::Ack{seq});
  }
}

TEST(WireEventSink, SendsAgainWhatWasNotAcked) {
  Listener listener;
  WireEventSink sink{options(listener.address())};
  sink.report(Generation{1}, event("only"));
  {
    Peer lost = listener.accept();
    static_cast<void>(lost.expect<wire::Hello>());
    lost.send(wire::Welcome{});
    EXPECT_EQ(lost.expect<wire::EventMessage>().seq, 1U);
  }
  Peer peer = listener.accept();
  static_cast<void>(peer.expect<wire::Hello>());
  peer.send(wire::Welcome{});
  EXPECT_EQ(peer.expect<wire::EventMessage>().seq, 1U);
  peer.send(wire::Ack{1});
}

TEST(WireEventSink, LeavesOutWhatTheCollectorAlreadyHas) {
  Listener listener;
  WireEventSink sink{options(listener.address())};
  sink.report(Generation{1}, event("stored"));
  sink.report(Generation{1}, event("new"));
  Peer peer = listener.accept();
  static_cast<void>(peer.expect<wire::Hello>());
  wire::Welcome welcome;
  welcome.acked_seq = 1;
  peer.send(welcome);
  const auto message = peer.expect<wire::EventMessage>();
  EXPECT_EQ(message.seq, 2U);
  EXPECT_EQ(message.event.reason, "new");
  peer.send(wire::Ack{2});
}

TEST(WireEventSink, OpensASessionPerGeneration) {
  Listener listener;
  WireEventSink sink{options(listener.address())};
  sink.report(Generation{1}, event("old"));
  sink.report(Generation{2}, event("new"));
  for (const std::int64_t generation : {1, 2}) {
    Peer peer = listener.accept();
    EXPECT_EQ(peer.expect<wire::Hello>().identity.generation, Generation{generation});
    peer.send(wire::Welcome{});
    EXPECT_EQ(peer.expect<wire::EventMessage>().seq, 1U);
    peer.send(wire::Ack{1});
    if (generation == 1) {
      static_cast<void>(peer.expect<wire::Goodbye>());
    }
  }
}

TEST(WireEventSink, ReportsWithoutWaitingWhenNobodyListens) {
  const auto started = std::chrono::steady_clock::now();
  {
    WireEventSink sink{options("127.0.0.1:1")};
    for (int i = 0; i < 5000; ++i) {
      sink.report(Generation{1}, event("into the void"));
    }
    EXPECT_LT(std::chrono::steady_clock::now() - started, std::chrono::seconds{20});
  }
  // The last words of the destructor are bounded.
  EXPECT_LT(std::chrono::steady_clock::now() - started, std::chrono::seconds{60});
}

}  // namespace muster::launcher
