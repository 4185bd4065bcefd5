// SPDX-License-Identifier: Apache-2.0
// Checkpoints of N ranks, read by M, through real files.
#include "tests/unit/checkpoint/fixture.h"

#include <muster/checkpoint/pieces.h>
#include <muster/common/hash.h>
#include <muster/common/random.h>

#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <numeric>

namespace muster::checkpoint::testing {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

namespace {

constexpr std::uint64_t kSeed = 5;

// A tensor as one rank alone would hold it.
struct Whole {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::size_t element_bytes{0};
  std::vector<std::byte> bytes;

  [[nodiscard]] std::int64_t elements() const {
    return static_cast<std::int64_t>(bytes.size() / element_bytes);
  }
};

Whole make_whole(
    std::string name, std::string dtype, std::vector<std::int64_t> shape, std::size_t element) {
  const std::int64_t elements =
      std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>{});
  Random random{kSeed, hash64(std::as_bytes(std::span{name.data(), name.size()}))};
  std::vector<std::byte> bytes(static_cast<std::size_t>(elements) * element);
  std::generate(
      bytes.begin(), bytes.end(), [&] { return static_cast<std::byte>(random.below(256)); });
  return {std::move(name), std::move(dtype), std::move(shape), element, std::move(bytes)};
}

// fp32, bf16, bytes and integers; prime sizes; one smaller than most worlds, one empty.
std::vector<Whole> make_model() {
  return {
      make_whole("muon_momentum/w", "F32", {13, 7}, 4),
      make_whole("adamw_m/e", "BF16", {101}, 2),
      make_whole("adamw_v/e", "U8", {257}, 1),
      make_whole("steps", "I64", {2}, 8),
      make_whole("none", "F32", {0, 4}, 4)};
}

// Random cuts of `total` elements between `ranks`; some parts are empty.
std::vector<std::int64_t> random_cuts(std::int64_t total, int ranks, Random& random) {
  std::vector<std::int64_t> cuts{0, total};
  for (int i = 1; i < ranks; ++i) {
    cuts.push_back(static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(total) + 1)));
  }
  std::sort(cuts.begin(), cuts.end());
  return cuts;
}

// A flat piece of `whole`, its bytes owned by `state`.
void add_piece(OwnedState& state, const Whole& whole, std::int64_t begin, std::int64_t end) {
  const auto at = [&](std::int64_t element) {
    return whole.bytes.begin() + element * static_cast<std::ptrdiff_t>(whole.element_bytes);
  };
  state.add(whole.name, whole.dtype, {end - begin}, {at(begin), at(end)});
  state.state.tensors.back().global_shape = {whole.elements()};
  state.state.tensors.back().offset = {begin};
}

class Resharding : public CheckpointTest {
 protected:
  // Saves what `states` has of each rank as a checkpoint of `step`.
  void save_ranks(std::int64_t step, const std::vector<OwnedState>& states) {
    std::vector<std::unique_ptr<Writer>> writers;
    std::vector<Writer*> ranks;
    std::vector<const OwnedState*> pointers;
    const int world = static_cast<int>(states.size());
    for (int rank = 0; rank < world; ++rank) {
      writers.push_back(writer(options(rank, world)));
      ranks.push_back(writers.back().get());
      pointers.push_back(&states[static_cast<std::size_t>(rank)]);
    }
    const Status saved = save(ranks, 1, step, pointers);
    ASSERT_TRUE(saved.ok()) << saved.to_string();
  }

  // One tensor of 20 elements in two pieces.
  void save_two(
      std::int64_t step,
      std::int64_t first_end,
      std::int64_t second_begin,
      std::int64_t second_end) {
    std::vector<OwnedState> states(2);
    add_piece(states[0], whole_, 0, first_end);
    add_piece(states[1], whole_, second_begin, second_end);
    save_ranks(step, states);
  }

  [[nodiscard]] Status read_all(std::int64_t step, std::size_t cache = Pieces::kCacheBytes) const {
    const auto pieces = Pieces::open(folder_of(step, 1), cache);
    MUSTER_RETURN_IF_ERROR(pieces.status());
    std::vector<std::byte> out(whole_.bytes.size());
    MUSTER_RETURN_IF_ERROR((*pieces)->read(whole_.name, 0, out));
    EXPECT_EQ(out, whole_.bytes);
    return {};
  }

  const Whole whole_ = make_whole("param/w", "F32", {20}, 4);
};

// Bytes that each of `ranks` reads from `source` with random cuts of every tensor.
std::vector<OwnedState> take_over(
    Pieces& source, const std::vector<Whole>& model, int ranks, Random& random) {
  std::vector<OwnedState> states(static_cast<std::size_t>(ranks));
  for (const Whole& whole : model) {
    const auto cuts = random_cuts(whole.elements(), ranks, random);
    for (std::size_t rank = 0; rank < states.size(); ++rank) {
      const std::int64_t begin = cuts[rank];
      const std::int64_t end = cuts[rank + 1];
      std::vector<std::byte> bytes(static_cast<std::size_t>(end - begin) * whole.element_bytes);
      const Status read = source.read(whole.name, begin, bytes);
      EXPECT_TRUE(read.ok()) << read.to_string();
      states[rank].add(whole.name, whole.dtype, {end - begin}, std::move(bytes));
      states[rank].state.tensors.back().global_shape = {whole.elements()};
      states[rank].state.tensors.back().offset = {begin};
    }
  }
  return states;
}

}  // namespace

TEST_F(Resharding, FourRanksToTwoToThreeToOneKeepsEveryBit) {
  const std::vector<Whole> model = make_model();
  Random random{kSeed};
  std::vector<OwnedState> states(4);
  for (const Whole& whole : model) {
    const auto cuts = random_cuts(whole.elements(), 4, random);
    for (std::size_t rank = 0; rank < 4; ++rank) {
      add_piece(states[rank], whole, cuts[rank], cuts[rank + 1]);
    }
  }
  std::int64_t step = 1;
  save_ranks(step, states);
  for (const int ranks : {2, 3, 1, 4}) {
    const auto source = Pieces::open(folder_of(step, 1));
    ASSERT_TRUE(source) << source.status().to_string();
    states = take_over(**source, model, ranks, random);
    save_ranks(++step, states);
    EXPECT_TRUE(verify(folder_of(step, 1)).ok());
  }
  const auto last = Pieces::open(folder_of(step, 1));
  ASSERT_TRUE(last) << last.status().to_string();
  for (const Whole& whole : model) {
    std::vector<std::byte> bytes(whole.bytes.size());
    ASSERT_TRUE((*last)->read(whole.name, 0, bytes).ok());
    EXPECT_EQ(bytes, whole.bytes) << whole.name;
  }
}

TEST_F(Resharding, RowShardsAndFlatPiecesOfOneTensorAreTheSameElements) {
  const Whole matrix = make_whole("param/m", "F32", {5, 4}, 4);
  std::vector<OwnedState> states(2);
  add_piece(states[0], matrix, 0, 12);
  states[0].state.tensors[0].shape = {3, 4};
  states[0].state.tensors[0].global_shape = {5, 4};
  states[0].state.tensors[0].offset = {0, 0};
  add_piece(states[1], matrix, 12, 20);
  states[1].state.tensors[0].shape = {2, 4};
  states[1].state.tensors[0].global_shape = {5, 4};
  states[1].state.tensors[0].offset = {3, 0};
  save_ranks(1, states);
  const auto pieces = Pieces::open(folder_of(1, 1));
  ASSERT_TRUE(pieces) << pieces.status().to_string();
  ASSERT_NE((*pieces)->find("param/m"), nullptr);
  EXPECT_EQ((*pieces)->find("param/m")->global_shape, (std::vector<std::int64_t>{5, 4}));
  std::vector<std::byte> middle(std::size_t{4} * 5);
  ASSERT_TRUE((*pieces)->read("param/m", 10, middle).ok());
  EXPECT_TRUE(std::equal(middle.begin(), middle.end(), matrix.bytes.begin() + 40));
}

TEST_F(Resharding, EveryRangeReadsTheSameWithAndWithoutACache) {
  save_two(1, 7, 7, 20);
  for (const std::size_t cache : {std::size_t{0}, std::size_t{30}, Pieces::kCacheBytes}) {
    const auto pieces = Pieces::open(folder_of(1, 1), cache);
    ASSERT_TRUE(pieces) << pieces.status().to_string();
    for (std::int64_t begin = 0; begin <= 20; ++begin) {
      for (std::int64_t end = begin; end <= 20; ++end) {
        std::vector<std::byte> out(static_cast<std::size_t>(end - begin) * 4);
        ASSERT_TRUE((*pieces)->read("param/w", begin, out).ok());
        ASSERT_TRUE(std::equal(out.begin(), out.end(), whole_.bytes.begin() + begin * 4))
            << begin << " to " << end;
      }
    }
  }
}

TEST_F(Resharding, APieceIsReadAndHashedOnceForManySmallReads) {
  save_two(1, 7, 7, 20);
  const auto cached = Pieces::open(folder_of(1, 1));
  const auto bare = Pieces::open(folder_of(1, 1), 0);
  ASSERT_TRUE(cached && bare);
  std::vector<std::byte> out(8);
  ASSERT_TRUE((*cached)->read("param/w", 1, out).ok());
  ASSERT_TRUE((*bare)->read("param/w", 1, out).ok());
  const fs::path path = folder_of(1, 1) / "rank-0.safetensors";
  std::string bytes = read_bytes(path);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_bytes(path, bytes);
  EXPECT_TRUE((*cached)->read("param/w", 3, out).ok());
  EXPECT_EQ((*bare)->read("param/w", 3, out).code(), StatusCode::kDataLoss);
}

// 10 MB pieces: more than one stretch of reading.
TEST_F(Resharding, PiecesOfManyStretchesReadInParts) {
  const Whole large = make_whole("param/large", "F32", {5'000'001}, 4);
  std::vector<OwnedState> states(2);
  add_piece(states[0], large, 0, 2'400'000);
  add_piece(states[1], large, 2'400'000, large.elements());
  save_ranks(1, states);
  for (const std::size_t cache : {std::size_t{0}, Pieces::kCacheBytes}) {
    const auto pieces = Pieces::open(folder_of(1, 1), cache);
    ASSERT_TRUE(pieces);
    std::vector<std::byte> out(std::size_t{4} * 3'000'000);
    ASSERT_TRUE((*pieces)->read("param/large", 1'200'001, out).ok());
    EXPECT_TRUE(std::equal(out.begin(), out.end(), large.bytes.begin() + 4 * 1'200'001));
  }
}

// Beyond the cache a piece is read in full once; then each read checks the stretches it touches.
TEST_F(Resharding, DamageAfterTheFirstReadIsFoundWhereItIsRead) {
  const Whole large = make_whole("param/large", "F32", {3'000'000}, 4);
  std::vector<OwnedState> states(1);
  add_piece(states[0], large, 0, large.elements());
  save_ranks(1, states);
  const auto pieces = Pieces::open(folder_of(1, 1), 0);
  ASSERT_TRUE(pieces);
  std::vector<std::byte> out(400);
  ASSERT_TRUE((*pieces)->read("param/large", 1'500'000, out).ok());
  const fs::path path = folder_of(1, 1) / "rank-0.safetensors";
  std::string bytes = read_bytes(path);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_bytes(path, bytes);
  ASSERT_TRUE((*pieces)->read("param/large", 1'048'500, out).ok());  // Across two stretches.
  EXPECT_TRUE(std::equal(out.begin(), out.end(), large.bytes.begin() + 4 * 1'048'500));
  const Status status = (*pieces)->read("param/large", 2'900'000, out);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("rank-0.safetensors: tensor 'param/large'"));
}

TEST_F(Resharding, AHoleNamesTensorElementsAndTheFilesAroundIt) {
  save_two(1, 7, 9, 20);
  const Status status = read_all(1);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("tensor 'param/w': elements [7, 9) are in no piece"));
  EXPECT_THAT(status.message(), HasSubstr("rank-0.safetensors"));
  EXPECT_THAT(status.message(), HasSubstr("elements [9, 20) in"));
}

TEST_F(Resharding, AMissingEndIsAHole) {
  save_two(1, 7, 7, 19);
  EXPECT_THAT(read_all(1).message(), HasSubstr("elements [19, 20) are in no piece"));
}

TEST_F(Resharding, ElementsThatTwoRanksSavedAreNamed) {
  save_two(1, 9, 7, 20);
  const Status status = read_all(1);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("elements [7, 9) are there twice"));
  EXPECT_THAT(status.message(), HasSubstr("rank-0.safetensors"));
  EXPECT_THAT(status.message(), HasSubstr("rank-1.safetensors"));
}

// All ranks refuse a tensor with a hole, wherever the hole is.
TEST_F(Resharding, AHoleIsRefusedAlsoByARankThatDoesNotReadThere) {
  save_two(1, 7, 9, 20);
  const auto pieces = Pieces::open(folder_of(1, 1));
  ASSERT_TRUE(pieces);
  std::vector<std::byte> out(8);
  EXPECT_EQ((*pieces)->read("param/w", 0, out).code(), StatusCode::kDataLoss);
}

TEST_F(Resharding, ADamagedPieceIsNamedAndTheOthersStayReadable) {
  save_two(1, 7, 7, 20);
  const fs::path path = folder_of(1, 1) / "rank-1.safetensors";
  std::string bytes = read_bytes(path);
  bytes.back() = static_cast<char>(bytes.back() ^ 0x40);
  write_bytes(path, bytes);
  for (const std::size_t cache : {std::size_t{0}, Pieces::kCacheBytes}) {
    const auto pieces = Pieces::open(folder_of(1, 1), cache);
    ASSERT_TRUE(pieces) << pieces.status().to_string();
    std::vector<std::byte> out(std::size_t{4} * 7);
    EXPECT_TRUE((*pieces)->read("param/w", 0, out).ok());
    out.resize(8);  // Not the damaged byte, but its piece.
    const Status status = (*pieces)->read("param/w", 8, out);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_THAT(status.message(), HasSubstr("tensor 'param/w'"));
    EXPECT_THAT(status.message(), HasSubstr("elements [7, 20)"));
    EXPECT_THAT(status.message(), HasSubstr("rank-1.safetensors"));
  }
}

TEST_F(Resharding, ADamagedHeaderIsFoundBeforeItsOffsetsAreUsed) {
  save_two(1, 7, 7, 20);
  const fs::path path = folder_of(1, 1) / "rank-1.safetensors";
  std::string bytes = read_bytes(path);
  bytes.replace(bytes.find("param/w"), 7, "param/v");
  write_bytes(path, bytes);
  const Status status = read_all(1);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("rank-1.safetensors"));
}

TEST_F(Resharding, AMissingRankFileIsNamed) {
  save_two(1, 7, 7, 20);
  fs::remove(folder_of(1, 1) / "rank-1.safetensors");
  const auto pieces = Pieces::open(folder_of(1, 1));
  EXPECT_EQ(pieces.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(pieces.status().message(), HasSubstr("rank-1.safetensors is missing"));
}

TEST_F(Resharding, AFileThatGoesAwayWhileReadingIsNamed) {
  save_two(1, 7, 7, 20);
  const auto pieces = Pieces::open(folder_of(1, 1));
  ASSERT_TRUE(pieces);
  fs::remove(folder_of(1, 1) / "rank-1.safetensors");
  std::vector<std::byte> out(whole_.bytes.size());
  const Status status = (*pieces)->read("param/w", 0, out);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("rank-1.safetensors is missing"));
}

// Puts a changed record in place and makes the manifest agree with it, as only a faulty program
// would.
void forge_record(
    const fs::path& folder, int rank, const std::string& from, const std::string& to) {
  const auto hex = [](const std::string& text) { return to_hex(hash128(text)); };
  const fs::path path = folder / ("rank-" + std::to_string(rank) + ".json");
  std::string record = read_bytes(path);
  std::string manifest = read_bytes(folder / "MANIFEST.json");
  const std::string old_hash = hex(record);
  record.replace(record.find(from), from.size(), to);
  write_bytes(path, record);
  manifest.replace(manifest.find(old_hash), 32, hex(record));
  const std::size_t own = manifest.rfind("\": \"") + 4;
  manifest.replace(own, 32, 32, '0');
  manifest.replace(own, 32, hex(manifest));
  write_bytes(folder / "MANIFEST.json", manifest);
}

TEST_F(Resharding, PiecesOfDifferentDtypesAreRefusedByName) {
  save_two(1, 7, 7, 20);
  forge_record(folder_of(1, 1), 1, "\"F32\"", "\"I32\"");
  const auto pieces = Pieces::open(folder_of(1, 1));
  EXPECT_EQ(pieces.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(pieces.status().message(), HasSubstr("rank-1.json"));
  EXPECT_THAT(
      pieces.status().message(),
      HasSubstr("tensor 'param/w' has dtype I32 here and F32 in the manifest"));
}

TEST_F(Resharding, ATensorTheManifestDoesNotKnowIsRefusedByName) {
  save_two(1, 7, 7, 20);
  forge_record(folder_of(1, 1), 1, "param/w", "param/x");
  const auto pieces = Pieces::open(folder_of(1, 1));
  EXPECT_EQ(pieces.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(pieces.status().message(), HasSubstr("tensor 'param/x' is not in the manifest"));
}

TEST_F(Resharding, APieceOfSeveralPartRowsIsRefusedWithTheReason) {
  const Whole matrix = make_whole("param/m", "F32", {4, 2}, 4);
  std::vector<OwnedState> states(1);
  add_piece(states[0], matrix, 0, 4);
  states[0].state.tensors[0].shape = {4, 1};
  states[0].state.tensors[0].global_shape = {4, 2};
  states[0].state.tensors[0].offset = {0, 1};
  add_piece(states[0], whole_, 0, 20);
  save_ranks(1, states);
  const auto pieces = Pieces::open(folder_of(1, 1));
  ASSERT_TRUE(pieces);
  std::vector<std::byte> out(4);
  const Status status = (*pieces)->read("param/m", 0, out);
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  EXPECT_THAT(status.message(), HasSubstr("tensor 'param/m'"));
  EXPECT_THAT(status.message(), HasSubstr("not one run"));
  EXPECT_TRUE((*pieces)->read("param/w", 3, out).ok());
  out.resize(16);
  EXPECT_TRUE((*pieces)->read_part("param/m", 0, out).ok());  // As it was saved.
}

TEST_F(Resharding, ARangeOutsideTheTensorIsRefused) {
  save_two(1, 7, 7, 20);
  const auto pieces = Pieces::open(folder_of(1, 1));
  ASSERT_TRUE(pieces);
  std::vector<std::byte> out(8);
  EXPECT_EQ((*pieces)->read("param/w", 19, out).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ((*pieces)->read("param/w", -1, out).code(), StatusCode::kInvalidArgument);
  out.resize(6);  // One element and a half.
  EXPECT_EQ((*pieces)->read("param/w", 0, out).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ((*pieces)->read("param/v", 0, out).code(), StatusCode::kNotFound);
  EXPECT_EQ((*pieces)->find("param/v"), nullptr);
}

TEST_F(Resharding, WhatEveryRankSavesInFullIsReadByRank) {
  const OwnedState first = make_state(0, 3);
  const OwnedState second = make_state(1, 3);
  const auto zero = writer(options(0, 2));
  const auto one = writer(options(1, 2));
  ASSERT_TRUE(save({zero.get(), one.get()}, 1, 3, {&first, &second}).ok());
  const auto pieces = Pieces::open(folder_of(3, 1));
  ASSERT_TRUE(pieces) << pieces.status().to_string();
  EXPECT_EQ((*pieces)->world_size(), 2);
  EXPECT_EQ((*pieces)->step(), StepIndex{3});
  EXPECT_EQ((*pieces)->generation(), generation_);
  EXPECT_EQ((*pieces)->values(0), first.state.values);
  EXPECT_EQ((*pieces)->values(1), second.state.values);
  ASSERT_NE((*pieces)->find_part("moment", 1), nullptr);
  EXPECT_EQ((*pieces)->find_part("moment", 1)->bytes, 48);
  EXPECT_EQ((*pieces)->find_part("moment", 2), nullptr);
  EXPECT_EQ((*pieces)->find_part("momentum", 1), nullptr);
  std::vector<std::byte> out(48);
  ASSERT_TRUE((*pieces)->read_part("moment", 1, out).ok());
  EXPECT_EQ(out, second.memory[2]);
  // By ranges it would be ambiguous whose it is.
  EXPECT_THAT((*pieces)->read("moment", 0, out).message(), HasSubstr("are there twice"));
  out.resize(40);
  EXPECT_EQ((*pieces)->read_part("moment", 1, out).code(), StatusCode::kInvalidArgument);
}

// Four ranks die between prepare and commit; two that come after them find the checkpoint before.
TEST_F(Resharding, ACrashInMidSaveLeavesTheOlderCheckpointToAnyNumberOfRanks) {
  save_two(1, 7, 7, 20);
  {
    std::vector<std::unique_ptr<Writer>> ranks;
    for (int rank = 0; rank < 4; ++rank) {
      ranks.push_back(writer(options(rank, 4)));
      OwnedState state;
      add_piece(state, whole_, rank * 5, rank * 5 + 5);
      ASSERT_TRUE(ranks.back()->begin(1, StepIndex{2}, state.state).ok());
      ASSERT_TRUE(ranks.back()->wait(kWait).ok());
    }
  }
  ASSERT_TRUE(fs::exists(folder_of(2, 1).string() + ".tmp"));
  const auto newest = newest_verified(root_, "run");
  ASSERT_TRUE(newest) << newest.status().to_string();
  EXPECT_EQ(newest->step, StepIndex{1});
  EXPECT_TRUE(read_all(1).ok());
}

}  // namespace muster::checkpoint::testing
