// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/checkpoint/fixture.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <limits>

namespace muster::checkpoint::testing {

namespace fs = std::filesystem;

using Writing = CheckpointTest;

TEST_F(Writing, RoundTripsTensorsAndValuesBitForBit) {
  make_checkpoint(40);
  const auto loaded = load_rank(folder_of(40, 1), 0);
  ASSERT_TRUE(loaded) << loaded.status().to_string();
  EXPECT_EQ(loaded->step, StepIndex{40});
  EXPECT_EQ(loaded->generation, generation_);
  EXPECT_TRUE(same(*loaded, make_state(0, 40)));
}

TEST_F(Writing, KeepsNanPayloadsInfinitiesAndBinaryValues) {
  const std::vector<std::uint32_t> patterns{
      0x7fc00000, 0xffc12345, 0x7f800001, 0x7f800000, 0xff800000, 0x80000000, 0x00000001};
  std::vector<std::byte> bytes(patterns.size() * 4);
  std::memcpy(bytes.data(), patterns.data(), bytes.size());
  OwnedState owned;
  owned.memory.reserve(1);
  owned.add("special", "F32", {7}, bytes);
  owned.state.values = {
      {"binary", std::string{"\0\xff\x80 \n\"", 6}}, {"text", "räuber"}, {"none", ""}};
  const auto rank = writer(options());
  ASSERT_TRUE(save({rank.get()}, 1, 3, {&owned}).ok());
  const auto loaded = load_rank(folder_of(3, 1), 0);
  ASSERT_TRUE(loaded) << loaded.status().to_string();
  EXPECT_TRUE(same(*loaded, owned));
}

TEST_F(Writing, KeepsPiecesOfAShardedTensor) {
  OwnedState owned;
  owned.memory.reserve(1);
  owned.add("weight", "F32", {2, 3}, std::vector<std::byte>(24, std::byte{7}));
  owned.state.tensors[0].global_shape = {8, 3};
  owned.state.tensors[0].offset = {6, 0};
  const auto rank = writer(options());
  ASSERT_TRUE(save({rank.get()}, 1, 3, {&owned}).ok());
  const auto details = describe(folder_of(3, 1));
  ASSERT_TRUE(details) << details.status().to_string();
  const TensorSummary& tensor = details->ranks.at(0).tensors.at(0);
  EXPECT_EQ(tensor.global_shape, (std::vector<std::int64_t>{8, 3}));
  EXPECT_EQ(tensor.offset, (std::vector<std::int64_t>{6, 0}));
  EXPECT_EQ(tensor.bytes, 24);
}

TEST_F(Writing, SnapshotIsIndependentOfTheStateAfterBegin) {
  OwnedState owned = make_state(0, 5);
  const auto rank = writer(options());
  ASSERT_TRUE(rank->begin(1, StepIndex{5}, owned.state).ok());
  for (auto& memory : owned.memory) {
    std::fill(memory.begin(), memory.end(), std::byte{0});
  }
  ASSERT_TRUE(rank->wait(kWait).ok());
  rank->commit(1, false);
  ASSERT_TRUE(rank->wait(kWait).ok());
  const auto loaded = load_rank(folder_of(5, 1), 0);
  ASSERT_TRUE(loaded) << loaded.status().to_string();
  EXPECT_TRUE(same(*loaded, make_state(0, 5)));
}

TEST_F(Writing, StaysInvisibleUntilCommitted) {
  const OwnedState owned = make_state(0, 1);
  const auto rank = writer(options());
  ASSERT_TRUE(rank->begin(1, StepIndex{1}, owned.state).ok());
  ASSERT_TRUE(rank->wait(kWait).ok());
  EXPECT_EQ(rank->poll(), SaveState::kPrepared);
  EXPECT_EQ(rank->prepared_sequence(), 1);
  EXPECT_EQ(rank->active_sequence(), 1);
  const auto found = list(root_, "run");
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->empty());
}

TEST_F(Writing, TwoRanksCommitWhenBothArePrepared) {
  const OwnedState first = make_state(0, 9);
  const OwnedState second = make_state(1, 9);
  const auto zero = writer(options(0, 2));
  const auto one = writer(options(1, 2));
  ASSERT_TRUE(save({zero.get(), one.get()}, 1, 9, {&first, &second}).ok());
  EXPECT_EQ(zero->committed_sequence(), 1);
  EXPECT_EQ(one->committed_sequence(), 1);
  EXPECT_EQ(zero->active_sequence(), 0);
  const auto loaded = load_rank(folder_of(9, 1), 1);
  ASSERT_TRUE(loaded) << loaded.status().to_string();
  EXPECT_TRUE(same(*loaded, second));
  EXPECT_TRUE(verify(folder_of(9, 1)).ok());
}

TEST_F(Writing, LatestNamesTheNewestCheckpointAndOthersMayReadIt) {
  make_checkpoint(9);
  make_checkpoint(12);
  EXPECT_EQ(read_bytes(run_folder() / "LATEST"), folder_of(12, 1).filename().string() + "\n");
  const mode_t hidden = ::umask(0);
  ::umask(hidden);
  for (const auto& entry : fs::directory_iterator(folder_of(12, 1))) {
    EXPECT_EQ(
        static_cast<unsigned>(entry.status().permissions()), 0644U & ~static_cast<unsigned>(hidden))
        << entry.path();
  }
}

TEST_F(Writing, RefusesToCommitWithoutTheOtherRank) {
  const OwnedState owned = make_state(0, 9);
  const auto zero = writer(options(0, 2));
  EXPECT_FALSE(save({zero.get()}, 1, 9, {&owned}).ok());
  EXPECT_EQ(zero->poll(), SaveState::kFailed);
  EXPECT_EQ(zero->committed_sequence(), 0);
  EXPECT_NE(zero->last_error().message().find("rank-1.json"), std::string::npos)
      << zero->last_error().to_string();
  EXPECT_FALSE(fs::exists(folder_of(9, 1)));
}

TEST_F(Writing, RefusesToCommitAFileOfAnotherLengthThanItsRankWrote) {
  const OwnedState first = make_state(0, 9);
  const OwnedState second = make_state(1, 9);
  const auto zero = writer(options(0, 2));
  const auto one = writer(options(1, 2));
  for (auto [rank, owned] : {std::pair{zero.get(), &first}, {one.get(), &second}}) {
    ASSERT_TRUE(rank->begin(1, StepIndex{9}, owned->state).ok());
    ASSERT_TRUE(rank->wait(kWait).ok());
  }
  fs::path file;
  for (const auto& entry : fs::recursive_directory_iterator(run_folder())) {
    if (entry.path().filename().string().starts_with("rank-1") &&
        entry.path().extension() == ".safetensors") {
      file = entry.path();
    }
  }
  ASSERT_FALSE(file.empty());
  fs::resize_file(file, fs::file_size(file) - 1);
  zero->commit(1, false);
  const Status refused = zero->wait(kWait);
  EXPECT_NE(refused.message().find("bytes its rank wrote"), std::string::npos)
      << refused.to_string();
  EXPECT_FALSE(fs::exists(folder_of(9, 1)));
}

TEST_F(Writing, RefusesRanksThatDisagreeAboutATensor) {
  const OwnedState first = make_state(0, 9);
  const OwnedState second = make_state(1, 9, 160);
  const auto zero = writer(options(0, 2));
  const auto one = writer(options(1, 2));
  EXPECT_FALSE(save({zero.get(), one.get()}, 1, 9, {&first, &second}).ok());
  EXPECT_NE(zero->last_error().message().find("layers.0.weight"), std::string::npos);
  EXPECT_FALSE(fs::exists(folder_of(9, 1)));
}

TEST_F(Writing, RefusesASecondSaveWhileOneIsInFlight) {
  const OwnedState owned = make_state(0, 1);
  const auto rank = writer(options());
  ASSERT_TRUE(rank->begin(1, StepIndex{1}, owned.state).ok());
  EXPECT_EQ(rank->begin(2, StepIndex{2}, owned.state).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(rank->active_sequence(), 1);
}

TEST_F(Writing, BeginsTheNextSaveRightAfterCommitOnEveryRank) {
  const OwnedState owned = make_state(0, 1);
  const auto rank = writer(options());
  for (std::int64_t sequence = 1; sequence <= 5; ++sequence) {
    ASSERT_TRUE(rank->begin(sequence, StepIndex{sequence}, owned.state).ok());
    ASSERT_TRUE(rank->wait(kWait).ok());
    rank->commit(sequence, false);
  }
  ASSERT_TRUE(rank->wait(kWait).ok());
  EXPECT_EQ(rank->committed_sequence(), 5);
}

TEST_F(Writing, AbandonRemovesTheFilesOfAllRanks) {
  const OwnedState owned = make_state(0, 1);
  const auto zero = writer(options(0, 2));
  const auto one = writer(options(1, 2));
  for (Writer* rank : {zero.get(), one.get()}) {
    ASSERT_TRUE(rank->begin(1, StepIndex{1}, owned.state).ok());
    ASSERT_TRUE(rank->wait(kWait).ok());
  }
  for (Writer* rank : {zero.get(), one.get()}) {
    rank->abandon(1);
    ASSERT_TRUE(rank->wait(kWait).ok());
    EXPECT_EQ(rank->poll(), SaveState::kIdle);
    EXPECT_EQ(rank->active_sequence(), 0);
  }
  EXPECT_FALSE(fs::exists(folder_of(1, 1).string() + ".tmp"));
}

TEST_F(Writing, SavesAgainRightAfterAbandonWhileTheOldOneDrains) {
  const OwnedState large = make_state(0, 1, std::size_t{1} << 20);
  const OwnedState next = make_state(0, 2, std::size_t{1} << 20);
  const auto rank = writer(options());
  ASSERT_TRUE(rank->begin(1, StepIndex{1}, large.state).ok());
  rank->abandon(1);
  ASSERT_TRUE(rank->begin(2, StepIndex{2}, next.state).ok());
  ASSERT_TRUE(rank->wait(kWait).ok());
  rank->commit(2, false);
  ASSERT_TRUE(rank->wait(kWait).ok());
  const auto loaded = load_rank(folder_of(2, 1), 0);
  ASSERT_TRUE(loaded) << loaded.status().to_string();
  EXPECT_TRUE(same(*loaded, next));
  EXPECT_FALSE(fs::exists(folder_of(1, 1).string() + ".tmp"));
}

TEST_F(Writing, ReportsBytesAndStallOfTheSnapshot) {
  const OwnedState owned = make_state(0, 1);
  const auto rank = writer(options());
  ASSERT_TRUE(rank->begin(1, StepIndex{1}, owned.state).ok());
  EXPECT_EQ(rank->last_snapshot_bytes(), 5 + 96 * 4 + 48 + 8);
  EXPECT_GT(rank->last_stall_ns(), 0);
}

TEST_F(Writing, RefusesAPieceWithTheWrongByteCountByName) {
  OwnedState owned = make_state(0, 1);
  owned.state.tensors[1].shape[0] += 1;
  owned.state.tensors[1].global_shape[0] += 1;
  const auto rank = writer(options());
  const Status status = rank->begin(1, StepIndex{1}, owned.state);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("layers.0.weight"), std::string::npos);
  EXPECT_EQ(rank->poll(), SaveState::kFailed);
  EXPECT_EQ(rank->active_sequence(), 1);
}

TEST_F(Writing, RefusesTwoPiecesOfOneName) {
  OwnedState owned = make_state(0, 1);
  owned.state.tensors[4].name = "flags";
  const auto rank = writer(options());
  EXPECT_EQ(rank->begin(1, StepIndex{1}, owned.state).code(), StatusCode::kInvalidArgument);
}

TEST_F(Writing, RefusesAPieceOutsideItsGlobalShape) {
  OwnedState owned = make_state(0, 1);
  owned.state.tensors[2].offset = {1, 0};
  const auto rank = writer(options());
  EXPECT_EQ(rank->begin(1, StepIndex{1}, owned.state).code(), StatusCode::kInvalidArgument);
}

TEST_F(Writing, RefusesSequencesThatDoNotAscend) {
  const OwnedState owned = make_state(0, 1);
  const auto rank = writer(options());
  ASSERT_TRUE(save({rank.get()}, 4, 1, {&owned}).ok());
  EXPECT_EQ(rank->begin(4, StepIndex{2}, owned.state).code(), StatusCode::kInvalidArgument);
}

TEST_F(Writing, RefusesCommitOfASequenceThatIsNotPrepared) {
  const auto rank = writer(options());
  rank->commit(7, false);
  EXPECT_EQ(rank->last_error().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(rank->committed_sequence(), 0);
}

TEST_F(Writing, RefusesARunIdThatLeavesTheRoot) {
  WriterOptions bad = options();
  bad.identity.run_id = "../elsewhere";
  EXPECT_EQ(Writer::create(bad).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(Writing, NamesTheRankOutsideItsWorld) {
  EXPECT_EQ(Writer::create(options(2, 2)).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(Writing, AlignsEveryPieceToItsElementSize) {
  make_checkpoint(1);
  const std::string file = read_bytes(folder_of(1, 1) / "rank-0.safetensors");
  const auto header_bytes =
      static_cast<unsigned char>(file[0]) + 256U * static_cast<unsigned char>(file[1]);
  EXPECT_EQ(header_bytes % 8, 0U);
  EXPECT_EQ(file[8], '{');
  EXPECT_NE(file.find("\"moment\":{\"data_offsets\":[0,48]"), std::string::npos)
      << file.substr(8, 600);
}

}  // namespace muster::checkpoint::testing
