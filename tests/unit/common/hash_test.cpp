// SPDX-License-Identifier: Apache-2.0
#include <muster/common/hash.h>

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace muster {

namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span{text.data(), text.size()});
}

TEST(Hash, EmptyInputHasThePublishedValues) {
  EXPECT_EQ(hash64({}), 0x2d06800538d394c2U);
  EXPECT_EQ(to_hex(hash128(std::string_view{})), "99aa06d3014798d86001c324468d497f");
}

TEST(Hash, HexFormPutsTheHighWordFirstAndKeepsZeros) {
  EXPECT_EQ(
      to_hex(Hash128{0x0123456789abcdef, 0x00000000000000f0}), "00000000000000f00123456789abcdef");
}

TEST(Hash, OneFlippedBitChangesIt) {
  std::string text(1000, 'a');
  const Hash128 before = hash128(bytes_of(text));
  text[777] ^= 1;
  EXPECT_NE(hash128(bytes_of(text)), before);
}

TEST(Hasher128, StreamedPiecesGiveTheHashOfTheWhole) {
  std::string text;
  for (int i = 0; i < 5000; ++i) {
    text += static_cast<char>(i * 31 % 251);
  }
  for (const std::size_t piece : {1UL, 7UL, 256UL, 1023UL, 5000UL}) {
    Hasher128 hasher;
    for (std::size_t at = 0; at < text.size(); at += piece) {
      hasher.update(bytes_of(std::string_view{text}.substr(at, piece)));
    }
    EXPECT_EQ(hasher.digest(), hash128(bytes_of(text))) << "pieces of " << piece;
  }
}

TEST(Hasher128, DigestDoesNotEndTheStream) {
  Hasher128 hasher;
  hasher.update(bytes_of("mus"));
  static_cast<void>(hasher.digest());
  hasher.update(bytes_of("ter"));
  Hasher128 moved = std::move(hasher);
  EXPECT_EQ(moved.digest(), hash128(bytes_of("muster")));
}

}  // namespace

}  // namespace muster
