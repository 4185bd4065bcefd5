// SPDX-License-Identifier: Apache-2.0
#include "trainer/moe_lm/src/text.h"

#include "tests/unit/trainer/job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

namespace muster::moe_lm {
namespace {

using ::testing::HasSubstr;

void write(const std::filesystem::path& path, const std::string& content) {
  std::ofstream{path, std::ios::binary} << content;
}

TEST(MoeLmText, OrdersRunsOfDigitsAsNumbers) {
  EXPECT_TRUE(natural_less("chapter_2.txt", "chapter_10.txt"));
  EXPECT_FALSE(natural_less("chapter_10.txt", "chapter_2.txt"));
  EXPECT_TRUE(natural_less("a", "b"));
  EXPECT_TRUE(natural_less("a1", "a1b"));
  EXPECT_FALSE(natural_less("a1", "a1"));
  EXPECT_TRUE(natural_less("a007", "a8"));
}

TEST(MoeLmText, JoinsTheChaptersOfAFolderInNumericOrder) {
  const ScratchFolder folder;
  write(folder.path() / "chapter_10.txt", "ten");
  write(folder.path() / "chapter_2.txt", "two ");
  write(folder.path() / "data.txt", "the whole book");
  write(folder.path() / "chapter_2.json", "{}");
  EXPECT_EQ(load_text(folder.path()).value(), "two ten");
}

TEST(MoeLmText, TakesAllTextsOfAFolderWithoutChapters) {
  const ScratchFolder folder;
  write(folder.path() / "b.txt", "2");
  write(folder.path() / "a.txt", "1");
  EXPECT_EQ(load_text(folder.path()).value(), "12");
}

TEST(MoeLmText, ReadsAnyBytesOfAFile) {
  const ScratchFolder folder;
  const std::string bytes{"\0\xff\n\r\x80", 5};
  write(folder.path() / "any", bytes);
  EXPECT_EQ(load_text(folder.path() / "any").value(), bytes);
}

TEST(MoeLmText, NamesAMissingFile) {
  const auto text = load_text("/nowhere/moby.txt");
  EXPECT_EQ(text.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(text.status().message(), HasSubstr("/nowhere/moby.txt"));
}

TEST(MoeLmText, NamesAFolderWithoutTexts) {
  const ScratchFolder folder;
  EXPECT_THAT(load_text(folder.path()).status().message(), HasSubstr(folder.path().string()));
}

TEST(MoeLmText, RanksTakeTheirPartsOfOneGlobalBatch) {
  const BatchSource source{&sample_text(), 5, 8, 16};
  const Batch whole = source.sequences(3, 0, 8);
  std::vector<std::int32_t> parts;
  for (std::int64_t first = 0; first < 8; first += 2) {
    const Batch part = source.sequences(3, first, 2);
    parts.insert(parts.end(), part.tokens.begin(), part.tokens.end());
  }
  EXPECT_EQ(parts, whole.tokens);
}

TEST(MoeLmText, TargetsAreTheBytesThatFollow) {
  const Batch batch = BatchSource{&sample_text(), 5, 8, 16}.sequences(0, 0, 8);
  for (std::size_t i = 0; i + 1 < batch.tokens.size(); ++i) {
    if (i % 16 != 15) {
      EXPECT_EQ(batch.targets[i], batch.tokens[i + 1]);
    }
  }
}

TEST(MoeLmText, BatchesDifferByIndexAndSeed) {
  const BatchSource source{&sample_text(), 5, 8, 16};
  const BatchSource other{&sample_text(), 6, 8, 16};
  EXPECT_NE(source.sequences(0, 0, 8).tokens, source.sequences(1, 0, 8).tokens);
  EXPECT_NE(source.sequences(0, 0, 8).tokens, other.sequences(0, 0, 8).tokens);
}

TEST(MoeLmText, ReachesTheLastByteOfAMinimalText) {
  const std::string text = "0123456789abcdefg";
  const Batch batch = BatchSource{&text, 1, 1, 16}.sequences(0, 0, 1);
  EXPECT_EQ(batch.targets.back(), 'g');
}

}  // namespace
}  // namespace muster::moe_lm
