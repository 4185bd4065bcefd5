// SPDX-License-Identifier: Apache-2.0
// The bytes of every message are frozen in tests/golden/wire: an unplanned change of the format
// fails here. MUSTER_GOLDEN_UPDATE=1 rewrites the files when the change is meant.
#include "tests/unit/wire/message_samples.h"

#include <muster/wire/codec.h>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace muster::wire {
namespace {

std::string to_hex_lines(const std::vector<std::byte>& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const auto byte = std::to_integer<unsigned>(bytes[i]);
    text += kDigits[byte >> 4U];
    text += kDigits[byte & 15U];
    text += (i % 16 == 15 || i + 1 == bytes.size()) ? '\n' : ' ';
  }
  return text;
}

std::vector<std::byte> parse_hex(const std::string& text) {
  std::vector<std::byte> bytes;
  std::istringstream words{text};
  unsigned value = 0;
  while (words >> std::hex >> value) {
    bytes.push_back(static_cast<std::byte>(value));
  }
  return bytes;
}

std::filesystem::path golden_path(const std::string& name) {
  return std::filesystem::path{MUSTER_GOLDEN_DIR} / (name + ".hex");
}

std::string read_golden(const std::string& name) {
  std::ifstream file{golden_path(name)};
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(Golden, BytesOfEveryMessageAreFrozen) {
  const bool update = std::getenv("MUSTER_GOLDEN_UPDATE") != nullptr;
  for (const auto& [name, message] : all_messages()) {
    std::vector<std::byte> frame;
    ASSERT_TRUE(append_frame(message, frame).ok()) << name;
    if (update) {
      std::ofstream{golden_path(name)} << to_hex_lines(frame);
    }
    EXPECT_EQ(to_hex_lines(frame), read_golden(name)) << name;
  }
}

TEST(Golden, FrozenBytesStillDecode) {
  for (const auto& [name, message] : all_messages()) {
    FrameReader reader;
    reader.feed(parse_hex(read_golden(name)));
    const auto received = reader.next();
    ASSERT_TRUE(received.ok() && received->has_value()) << name;
    EXPECT_EQ((**received).index(), message.index()) << name;
  }
}

}  // namespace
}  // namespace muster::wire
