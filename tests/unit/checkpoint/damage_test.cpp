// SPDX-License-Identifier: Apache-2.0
// Damage is detected and named, and an older checkpoint is used instead.
#include "checkpoint/src/rank_record.h"
#include "tests/unit/checkpoint/fixture.h"

#include <muster/common/hash.h>

#include <sys/stat.h>

#include <algorithm>

namespace muster::checkpoint::testing {

namespace fs = std::filesystem;

class Damage : public CheckpointTest {
 protected:
  void SetUp() override {
    CheckpointTest::SetUp();
    make_checkpoint(10);
    make_checkpoint(20);
    writer_.reset();
    checkpoint_ = folder_of(20, 1);
  }

  // Expects that verify finds it, names `file`, and that step 10 takes over.
  void expect_found(const std::string& file, const std::string& what) {
    const Status status = verify(checkpoint_);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << what;
    EXPECT_NE(status.message().find(file), std::string::npos) << what << ": " << status.to_string();
  }

  void expect_fallback() {
    std::vector<std::string> rejected;
    const auto newest = newest_verified(root_, "run", &rejected);
    ASSERT_TRUE(newest) << newest.status().to_string();
    EXPECT_EQ(newest->step, StepIndex{10});
    ASSERT_EQ(rejected.size(), 1U);
    EXPECT_NE(rejected[0].find("step-20"), std::string::npos) << rejected[0];
  }

  fs::path checkpoint_;
};

TEST_F(Damage, AFifoInPlaceOfAFileIsRefusedAndNotWaitedFor) {
  for (const char* name : {"MANIFEST.json", "rank-0.json", "rank-0.safetensors"}) {
    const std::string whole = read_bytes(checkpoint_ / name);
    fs::remove(checkpoint_ / name);
    ASSERT_EQ(::mkfifo((checkpoint_ / name).c_str(), 0600), 0);
    expect_found(name, "a FIFO");
    expect_fallback();
    fs::remove(checkpoint_ / name);
    write_bytes(checkpoint_ / name, whole);
  }
}

class DamagedFile : public Damage, public ::testing::WithParamInterface<const char*> {};

TEST_P(DamagedFile, TruncatedAnywhereIsRejectedByName) {
  const fs::path path = checkpoint_ / GetParam();
  const std::string whole = read_bytes(path);
  for (const std::size_t size :
       {std::size_t{0},
        std::size_t{1},
        std::size_t{7},
        std::size_t{8},
        std::size_t{9},
        whole.size() / 4,
        whole.size() / 2,
        whole.size() - 1}) {
    write_bytes(path, whole.substr(0, size));
    expect_found(GetParam(), "truncated to " + std::to_string(size));
  }
  expect_fallback();
}

TEST_P(DamagedFile, EveryFlippedBitIsFoundByName) {
  const fs::path path = checkpoint_ / GetParam();
  const std::string whole = read_bytes(path);
  for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    write_bytes(path, flipped);
    const Status status = verify(checkpoint_);
    ASSERT_EQ(status.code(), StatusCode::kDataLoss) << "bit " << bit << ": " << status.to_string();
    ASSERT_NE(status.message().find(GetParam()), std::string::npos) << status.to_string();
  }
  expect_fallback();
}

TEST_P(DamagedFile, AppendedBytesAreFound) {
  const fs::path path = checkpoint_ / GetParam();
  write_bytes(path, read_bytes(path) + "\n");
  expect_found(GetParam(), "appended");
}

TEST_P(DamagedFile, MissingIsFoundByNameAndNotLoaded) {
  fs::remove(checkpoint_ / GetParam());
  expect_found(GetParam(), "removed");
  EXPECT_EQ(load_rank(checkpoint_, 0).status().code(), StatusCode::kDataLoss);
  expect_fallback();
}

TEST_P(DamagedFile, OfAnotherCheckpointIsRejected) {
  fs::copy_file(
      folder_of(10, 1) / GetParam(),
      checkpoint_ / GetParam(),
      fs::copy_options::overwrite_existing);
  EXPECT_EQ(verify(checkpoint_).code(), StatusCode::kDataLoss);
}

INSTANTIATE_TEST_SUITE_P(
    Each,
    DamagedFile,
    ::testing::Values("MANIFEST.json", "rank-0.json", "rank-0.safetensors"),
    [](const auto& file) {
      std::string name = file.param;
      std::replace_if(
          name.begin(), name.end(), [](char c) { return c == '-' || c == '.'; }, 'x');
      return name;
    });

TEST_F(Damage, NamesTheTensorWhoseDataDiffers) {
  const fs::path path = checkpoint_ / "rank-0.safetensors";
  std::string bytes = read_bytes(path);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);  // U8 comes last: "flags".
  write_bytes(path, bytes);
  expect_found("tensor 'flags'", "last byte");
  EXPECT_EQ(load_rank(checkpoint_, 0).status().code(), StatusCode::kDataLoss);
}

TEST_F(Damage, AnExtraShardIsRejectedByName) {
  fs::copy_file(checkpoint_ / "rank-0.json", checkpoint_ / "rank-1.json");
  expect_found("rank-1.json", "extra shard");
}

TEST_F(Damage, AFolderCopiedToAnotherStepIsRejected) {
  fs::copy(checkpoint_, folder_of(30, 1));
  const auto found = list(root_, "run");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->front().validity.code(), StatusCode::kDataLoss);
  const auto newest = newest_verified(root_, "run");
  ASSERT_TRUE(newest);
  EXPECT_EQ(newest->step, StepIndex{20});
}

TEST_F(Damage, ListShowsWhatIsWrongAndStaysUsable) {
  write_bytes(checkpoint_ / "rank-0.safetensors", "short");
  const auto found = list(root_, "run");
  ASSERT_TRUE(found);
  ASSERT_EQ(found->size(), 2U);
  EXPECT_FALSE((*found)[0].validity.ok());
  EXPECT_TRUE((*found)[1].validity.ok());
}

TEST_F(Damage, ADamagedLatestChangesNothing) {
  write_bytes(run_folder() / "LATEST", "step-99.gen-9\n");
  const auto newest = newest_verified(root_, "run");
  ASSERT_TRUE(newest);
  EXPECT_EQ(newest->step, StepIndex{20});
}

TEST_F(Damage, NothingIntactIsNotFound) {
  fs::remove(checkpoint_ / "MANIFEST.json");
  fs::remove(folder_of(10, 1) / "rank-0.json");
  std::vector<std::string> rejected;
  EXPECT_EQ(newest_verified(root_, "run", &rejected).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(rejected.size(), 2U);
}

TEST_F(Damage, ANewerFormatAsksForAnUpgrade) {
  // A manifest of version 2 with a matching hash, as a newer muster would write it.
  const fs::path path = checkpoint_ / "MANIFEST.json";
  std::string text = read_bytes(path);
  text.replace(text.find("\"version\": 1"), 12, "\"version\": 2");
  const std::size_t slot = text.rfind("\": \"") + 4;
  text.replace(slot, 32, 32, '0');
  text.replace(slot, 32, to_hex(hash128(text)));
  write_bytes(path, text);
  EXPECT_EQ(verify(checkpoint_).code(), StatusCode::kVersionMismatch);
}

TEST(RankRecordFormat, ANewerOneAsksForAnUpgrade) {
  std::string text = encode_record(RankRecord{}).value();
  EXPECT_NE(decode_record(text).status().code(), StatusCode::kVersionMismatch);
  const std::size_t at = text.find("\"version\"");
  text.replace(text.find('1', at), 1, "2");
  EXPECT_EQ(decode_record(text).status().code(), StatusCode::kVersionMismatch);
}

TEST_F(Damage, VerifyReportsProgressUpToTheData) {
  std::int64_t last = 0;
  std::int64_t all = 0;
  const Status status =
      verify(checkpoint_, [&](const std::string& file, std::int64_t done, std::int64_t total) {
        EXPECT_EQ(file, "rank-0.safetensors");
        EXPECT_GT(done, last);
        last = done;
        all = total;
      });
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(last, 5 + 96 * 4 + 48 + 8);
  EXPECT_GT(all, last);
}

TEST_F(Damage, ListOfAMissingRunIsNotFound) {
  EXPECT_EQ(list(root_, "nobody").status().code(), StatusCode::kNotFound);
}

}  // namespace muster::checkpoint::testing
