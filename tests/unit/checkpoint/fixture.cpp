// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/checkpoint/fixture.h"

#include <muster/checkpoint/pieces.h>
#include <muster/common/random.h>

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

namespace muster::checkpoint::testing {

namespace fs = std::filesystem;

namespace {

std::vector<std::byte> random_bytes(Random& random, std::size_t size) {
  std::vector<std::byte> bytes(size);
  std::generate(
      bytes.begin(), bytes.end(), [&] { return static_cast<std::byte>(random.below(256)); });
  return bytes;
}

// Memory where there is some: the sweeps save hundreds of times, and what a real disk does in an
// fsync is not what they test.
fs::path temporary_root() {
  const fs::path memory = "/dev/shm";
  return ::access(memory.c_str(), W_OK) == 0 ? memory : fs::temp_directory_path();
}

}  // namespace

void OwnedState::add(
    std::string name,
    const std::string& dtype,
    std::vector<std::int64_t> shape,
    std::vector<std::byte> bytes) {
  memory.push_back(std::move(bytes));
  const std::vector<std::int64_t> zeros(shape.size(), 0);
  state.tensors.push_back(
      {std::move(name),
       parse_safetensors_dtype(dtype).value(),
       shape,
       shape,
       zeros,
       std::span{memory.back()}});
}

OwnedState make_state(int rank, std::uint64_t salt, std::size_t floats) {
  Random random{salt, static_cast<std::uint64_t>(rank)};
  OwnedState owned;
  owned.memory.reserve(8);  // Spans point into it.
  const auto rows = static_cast<std::int64_t>(floats / 8);
  owned.add("flags", "U8", {5}, random_bytes(random, 5));
  owned.add("layers.0.weight", "F32", {rows, 8}, random_bytes(random, floats / 8 * 8 * 4));
  owned.add("moment", "F64", {3, 2}, random_bytes(random, 48));
  owned.add("empty", "F32", {0, 4}, {});
  owned.add("scalar", "I64", {}, random_bytes(random, 8));
  owned.state.values = {
      {"data_cursor", std::to_string(salt)}, {"rng", std::to_string(random.next_u64())}};
  return owned;
}

Expected<LoadedState> load_rank(const fs::path& checkpoint, int rank) {
  MUSTER_ASSIGN_OR_RETURN(const auto pieces, Pieces::open(checkpoint));
  MUSTER_ASSIGN_OR_RETURN(const CheckpointDetails details, describe(checkpoint));
  LoadedState state{pieces->step(), pieces->generation(), {}, pieces->values(rank)};
  for (const TensorSummary& tensor : details.ranks.at(static_cast<std::size_t>(rank)).tensors) {
    std::vector<std::byte> data(static_cast<std::size_t>(tensor.bytes));
    MUSTER_RETURN_IF_ERROR(pieces->read_part(tensor.name, rank, data));
    state.tensors.push_back({tensor, std::move(data)});
  }
  return state;
}

bool same(const LoadedState& loaded, const OwnedState& expected) {
  const auto& tensors = expected.state.tensors;
  return loaded.values == expected.state.values && loaded.tensors.size() == tensors.size() &&
         std::equal(
             tensors.begin(),
             tensors.end(),
             loaded.tensors.begin(),
             [](const TensorPiece& a, const LoadedTensor& b) {
               return a.name == b.summary.name && safetensors_name(a.dtype) == b.summary.dtype &&
                      a.shape == b.summary.shape && a.global_shape == b.summary.global_shape &&
                      a.offset == b.summary.offset &&
                      std::equal(a.data.begin(), a.data.end(), b.data.begin(), b.data.end());
             });
}

void CheckpointTest::SetUp() {
  root_ = scratch_.emplace(temporary_root()).path();
  const auto allocated = allocate_generation(root_, "run");
  ASSERT_TRUE(allocated) << allocated.status().to_string();
  generation_ = *allocated;
}

void CheckpointTest::TearDown() {
  writer_.reset();
  scratch_.reset();
}

WriterOptions CheckpointTest::options(int rank, int world_size) const {
  return WriterOptions{root_, {"run", generation_, Rank{rank}, "incarnation"}, world_size, 3};
}

std::unique_ptr<Writer> CheckpointTest::writer(const WriterOptions& options) {
  static Disk disk;
  return writer(options, disk);
}

std::unique_ptr<Writer> CheckpointTest::writer(const WriterOptions& options, Disk& disk) {
  auto created = create_writer(options, disk, clock_);
  EXPECT_TRUE(created) << created.status().to_string();
  return created ? std::move(created).value() : nullptr;
}

fs::path CheckpointTest::folder_of(std::int64_t step, std::int64_t generation) const {
  return run_folder() / ("step-" + std::to_string(step) + ".gen-" + std::to_string(generation));
}

Status CheckpointTest::save(
    const std::vector<Writer*>& ranks,
    std::int64_t sequence,
    std::int64_t step,
    const std::vector<const OwnedState*>& states,
    bool pin) {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    MUSTER_RETURN_IF_ERROR(ranks[i]->begin(sequence, StepIndex{step}, states[i]->state));
  }
  for (Writer* rank : ranks) {
    MUSTER_RETURN_IF_ERROR(rank->wait(kWait));
  }
  for (Writer* rank : ranks) {
    rank->commit(sequence, pin);
  }
  for (Writer* rank : ranks) {
    MUSTER_RETURN_IF_ERROR(rank->wait(kWait));
  }
  return {};
}

void CheckpointTest::make_checkpoint(std::int64_t step) {
  if (!writer_) {
    writer_ = writer(options());
  }
  const OwnedState owned = make_state(0, static_cast<std::uint64_t>(step));
  const Status saved = save({writer_.get()}, ++sequence_, step, {&owned});
  ASSERT_TRUE(saved.ok()) << saved.to_string();
}

std::string read_bytes(const fs::path& path) {
  std::ifstream file{path, std::ios::binary};
  return {std::istreambuf_iterator<char>{file}, {}};
}

void write_bytes(const fs::path& path, const std::string& bytes) {
  std::ofstream{path, std::ios::binary | std::ios::trunc}.write(
      bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace muster::checkpoint::testing
