// SPDX-License-Identifier: Apache-2.0
// Fixture of the checkpoint tests: a temporary folder, states that are easy to distinguish, and the
// three calls that make a checkpoint.
#pragma once

#include "checkpoint/src/writer.h"
#include "tests/support/scratch_folder.h"

#include <muster/checkpoint/checkpoint.h>
#include <muster/common/clock.h>
#include <muster/common/file.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace muster::checkpoint::testing {

// RankState with the memory its pieces point into.
struct OwnedState {
  std::vector<std::vector<std::byte>> memory;
  RankState state;

  void add(
      std::string name,
      const std::string& dtype,
      std::vector<std::int64_t> shape,
      std::vector<std::byte> bytes);
};

// A few tensors of several dtypes and shapes, different for every (rank, salt); `floats` sizes the
// largest one.
[[nodiscard]] OwnedState make_state(int rank, std::uint64_t salt, std::size_t floats = 96);

// One rank's pieces and values, read back and hash-checked.
struct LoadedTensor {
  TensorSummary summary;
  std::vector<std::byte> data;
};

struct LoadedState {
  StepIndex step;
  Generation generation;
  std::vector<LoadedTensor> tensors;
  std::map<std::string, std::string> values;
};

[[nodiscard]] Expected<LoadedState> load_rank(const std::filesystem::path& checkpoint, int rank);

[[nodiscard]] bool same(const LoadedState& loaded, const OwnedState& expected);

class CheckpointTest : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  [[nodiscard]] WriterOptions options(int rank = 0, int world_size = 1) const;
  [[nodiscard]] std::unique_ptr<Writer> writer(const WriterOptions& options);
  [[nodiscard]] std::unique_ptr<Writer> writer(const WriterOptions& options, Disk& disk);

  [[nodiscard]] std::filesystem::path run_folder() const { return root_ / "run"; }

  [[nodiscard]] std::filesystem::path folder_of(std::int64_t step, std::int64_t generation) const;

  // begin, wait, commit on the given ranks; the first error.
  static Status save(
      const std::vector<Writer*>& ranks,
      std::int64_t sequence,
      std::int64_t step,
      const std::vector<const OwnedState*>& states,
      bool pin = false);

  // A committed checkpoint of one rank at `step`, with make_state(0, step).
  void make_checkpoint(std::int64_t step);

  std::optional<test::ScratchFolder> scratch_;  // A new one after each SetUp.
  std::filesystem::path root_;
  Generation generation_;
  std::unique_ptr<Writer> writer_;  // Of make_checkpoint.
  std::int64_t sequence_{0};
  SystemClock clock_;
};

inline constexpr auto kWait = std::chrono::seconds{20};

[[nodiscard]] std::string read_bytes(const std::filesystem::path& path);
void write_bytes(const std::filesystem::path& path, const std::string& bytes);

}  // namespace muster::checkpoint::testing
