// SPDX-License-Identifier: Apache-2.0
#include <muster/common/address.h>

#include <gtest/gtest.h>

#include <string_view>

namespace muster {

namespace {

TEST(Address, SplitsHostAndPort) {
  EXPECT_EQ(*parse_peer_address("127.0.0.1:29600"), (HostPort{"127.0.0.1", 29600}));
  EXPECT_EQ(*parse_peer_address("collector.example:1"), (HostPort{"collector.example", 1}));
  EXPECT_EQ(*parse_peer_address("h:65535"), (HostPort{"h", 65535}));
}

TEST(Address, TakesTheBracketsFromAnIpv6Host) {
  EXPECT_EQ(*parse_peer_address("[::1]:80"), (HostPort{"::1", 80}));
}

TEST(Address, PrintsWhatItParses) {
  for (const std::string_view text : {"127.0.0.1:29600", "[fe80::1]:7", "host:1"}) {
    EXPECT_EQ(to_string(*parse_peer_address(text)), text);
  }
}

TEST(Address, ListenersMayAskForAFreePort) {
  EXPECT_EQ(*parse_listen_address("0.0.0.0:0"), (HostPort{"0.0.0.0", 0}));
  EXPECT_EQ(
      parse_peer_address("0.0.0.0:0").status().message(),
      "address must be HOST:PORT with a port between 1 and 65535, for example 127.0.0.1:29600, got "
      "'0.0.0.0:0'");
}

TEST(Address, ListenersTakeLocalhostAsTheLoopbackAddress) {
  EXPECT_EQ(parse_listen_address("localhost:80")->host, "127.0.0.1");
  EXPECT_EQ(parse_peer_address("localhost:80")->host, "localhost");
}

TEST(Address, RefusesEverythingElse) {
  for (const std::string_view text :
       {"",
        ":",
        "host",
        "host:",
        ":80",
        "host:x",
        "host:80x",
        "host: 80",
        "host:-1",
        "host:+1",
        "host:65536",
        "host:99999999999",
        "[::1]",
        "[::1:80",
        "::1]:80",
        "[]:80"}) {
    const auto peer = parse_peer_address(text);
    ASSERT_FALSE(peer) << text;
    EXPECT_EQ(peer.status().code(), StatusCode::kInvalidArgument) << text;
    EXPECT_FALSE(parse_listen_address(text)) << text;
  }
  EXPECT_EQ(
      parse_listen_address("host").status().message(),
      "address must be HOST:PORT with a port between 0 and 65535, for example 127.0.0.1:29600, got "
      "'host'");
}

}  // namespace
}  // namespace muster
