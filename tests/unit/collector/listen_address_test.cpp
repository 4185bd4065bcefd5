// SPDX-License-Identifier: Apache-2.0
#include "collector/src/listen_address.h"

#include <gtest/gtest.h>

namespace muster::collector {
namespace {

TEST(ListenAddress, ReadsHostAndPort) {
  const auto address = parse_listen_address("127.0.0.1:29600");
  ASSERT_TRUE(address.ok());
  EXPECT_EQ(address->host, "127.0.0.1");
  EXPECT_EQ(address->port, 29600);
  EXPECT_EQ(parse_listen_address("localhost:0")->host, "127.0.0.1");
  EXPECT_EQ(parse_listen_address("[::1]:80")->host, "::1");
}

TEST(ListenAddress, NamesWhatItCannotRead) {
  for (const char* text :
       {"",
        ":",
        ":80",
        "127.0.0.1",
        "127.0.0.1:",
        "127.0.0.1:x",
        "127.0.0.1:80x",
        "127.0.0.1:65536",
        "127.0.0.1:-1"}) {
    const auto address = parse_listen_address(text);
    ASSERT_FALSE(address.ok()) << text;
    EXPECT_EQ(address.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(address.status().message().find("HOST:PORT"), std::string::npos);
  }
}

}  // namespace
}  // namespace muster::collector
