// SPDX-License-Identifier: Apache-2.0
// An abort shuts down the socket of one connection, never one that several connections share.
#include "comm/src/gloo/sockets.h"
#include "tests/support/scratch_folder.h"

#include <muster/comm/backends.h>

#include <gtest/gtest.h>

#include <netinet/in.h>
#include <sys/socket.h>

namespace muster::comm {

namespace {

using NameOf = int (*)(int, sockaddr*, socklen_t*);

sockaddr_storage name_of(NameOf function, const FileDescriptor& socket) {
  sockaddr_storage name{};
  socklen_t length = sizeof name;
  EXPECT_EQ(function(socket.get(), reinterpret_cast<sockaddr*>(&name), &length), 0);
  return name;
}

FileDescriptor tcp_socket() {
  return FileDescriptor{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
}

// Several connections to one listening socket, as Gloo has them since 2023.
class GlooSockets : public ::testing::Test {
 protected:
  struct Connection {
    FileDescriptor active;
    FileDescriptor passive;
  };

  void SetUp() override {
    sockaddr_in loopback{};
    loopback.sin_family = AF_INET;
    loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&loopback), sizeof loopback), 0);
    ASSERT_EQ(::listen(listener_.get(), 4), 0);
  }

  Connection connect() {
    Connection connection{tcp_socket(), FileDescriptor{}};
    const sockaddr_storage address = name_of(::getsockname, listener_);
    EXPECT_EQ(
        ::connect(
            connection.active.get(),
            reinterpret_cast<const sockaddr*>(&address),
            sizeof(sockaddr_in)),
        0);
    connection.passive = FileDescriptor{::accept(listener_.get(), nullptr, nullptr)};
    return connection;
  }

  FileDescriptor listener_{tcp_socket()};
};

// True if a byte sent from `other_end` arrives at `socket`.
bool receives_from(const FileDescriptor& socket, const FileDescriptor& other_end) {
  char byte = 'x';
  return ::send(other_end.get(), &byte, 1, MSG_NOSIGNAL) == 1 &&
         ::recv(socket.get(), &byte, 1, MSG_DONTWAIT) == 1;
}

TEST_F(GlooSockets, FindsEachOfTheConnectionsThatShareAListener) {
  const Connection first = connect();
  const Connection second = connect();
  for (const Connection* connection : {&first, &second}) {
    const FileDescriptor found = duplicate_connected_socket(
        name_of(::getsockname, connection->passive), name_of(::getpeername, connection->passive));
    ASSERT_TRUE(found.valid());
    EXPECT_TRUE(receives_from(found, connection->active));
  }
}

TEST_F(GlooSockets, FindsTheEndThatHasConnected) {
  const Connection connection = connect();
  const FileDescriptor found = duplicate_connected_socket(
      name_of(::getsockname, connection.active), name_of(::getpeername, connection.active));
  ASSERT_TRUE(found.valid());
  EXPECT_TRUE(receives_from(found, connection.passive));
}

TEST_F(GlooSockets, NeverTakesTheListenerForAConnection) {
  const sockaddr_storage listening = name_of(::getsockname, listener_);
  EXPECT_FALSE(duplicate_connected_socket(listening, sockaddr_storage{}).valid());
  EXPECT_FALSE(duplicate_connected_socket(listening, listening).valid());
}

TEST_F(GlooSockets, FindsNothingOnceTheConnectionIsClosed) {
  sockaddr_storage own{};
  sockaddr_storage peer{};
  {
    const Connection connection = connect();
    own = name_of(::getsockname, connection.passive);
    peer = name_of(::getpeername, connection.passive);
  }
  EXPECT_FALSE(duplicate_connected_socket(own, peer).valid());
}

TEST(GlooInterface, ANameThatThisHostLacksIsRefusedWithThoseItHas) {
  const test::ScratchFolder store;
  for (const char* name : {"ib7", "^lo,docker"}) {
    ConnectOptions options;
    options.session = "interface";
    options.gloo_store_path = store.path().string();
    options.gloo_interface = name;
    const auto refused = connect_gloo(options, Deadline::after(std::chrono::seconds{20}));
    ASSERT_FALSE(refused.ok()) << name;
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(refused.status().message().find(name), std::string::npos);
    EXPECT_NE(refused.status().message().find("lo"), std::string::npos);
  }
}

}  // namespace

}  // namespace muster::comm
