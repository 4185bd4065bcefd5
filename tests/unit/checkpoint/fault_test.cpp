// SPDX-License-Identifier: Apache-2.0
// Every disk operation of a save is made to fail, to kill the process and to lose power. The oracle
// is the same each time: the previous checkpoint or the new one, bit for bit, never a mixture.
#include "tests/unit/checkpoint/faulty_disk.h"
#include "tests/unit/checkpoint/fixture.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

namespace muster::checkpoint::testing {

namespace fs = std::filesystem;

namespace {

constexpr std::int64_t kOldStep = 10;
constexpr std::int64_t kNewStep = 20;
constexpr int kKilled = 42;
constexpr std::int64_t kOperationsMax = 500;  // More than any save here has.

}  // namespace

class Faults : public CheckpointTest {
 protected:
  void SetUp() override {
    CheckpointTest::SetUp();
    make_checkpoint(kOldStep);
    writer_.reset();
  }

  // Deletes everything and starts over with the old checkpoint.
  void start_over() {
    CheckpointTest::TearDown();
    sequence_ = 0;
    SetUp();
  }

  // Saves kNewStep through `disk`, retention included (only one checkpoint is kept).
  Status save_new(Disk& disk, std::int64_t* committed = nullptr) {
    WriterOptions one_kept = options();
    one_kept.keep_last = 1;
    auto rank = create_writer(one_kept, disk, clock_);
    MUSTER_RETURN_IF_ERROR(rank.status());
    const OwnedState owned = make_state(0, kNewStep);
    Status status = save({rank->get()}, 1, kNewStep, {&owned});
    if (committed != nullptr) {
      *committed = (*rank)->committed_sequence();
    }
    return status;
  }

  // The newest intact checkpoint's step, after checking that it is bitwise what was saved.
  std::int64_t surviving_step() {
    const auto newest = newest_verified(root_, "run");
    EXPECT_TRUE(newest) << newest.status().to_string();
    if (!newest) {
      return -1;
    }
    const auto loaded = load_rank(newest->path, 0);
    EXPECT_TRUE(loaded) << loaded.status().to_string();
    const std::int64_t step = newest->step.value();
    EXPECT_TRUE(step == kOldStep || step == kNewStep) << step;
    EXPECT_TRUE(loaded && same(*loaded, make_state(0, static_cast<std::uint64_t>(step))));
    return step;
  }
};

class FaultsByError : public Faults, public ::testing::WithParamInterface<int> {};

TEST_P(FaultsByError, LeaveThePreviousCheckpointAndLetTheNextSaveSucceed) {
  bool fired = true;
  for (std::int64_t k = 1; fired; ++k) {
    ASSERT_LT(k, kOperationsMax);
    start_over();
    OperationCounter counter{k};
    Operation failed{};
    GatedDisk disk{[&](Operation operation, const fs::path& path) {
      if (counter.next()) {
        failed = operation;
        return io_error(path.string(), GetParam());
      }
      return Status{};
    }};
    std::int64_t committed = 0;
    const Status status = save_new(disk, &committed);
    fired = counter.reached();
    SCOPED_TRACE(
        "operation " + std::to_string(k) + " of kind " + std::to_string(static_cast<int>(failed)) +
        ": " + status.to_string());
    EXPECT_EQ(committed, status.ok() ? 1 : 0);
    const std::int64_t survivor = surviving_step();
    if (status.ok()) {
      EXPECT_EQ(survivor, kNewStep);
    }
    const OwnedState later = make_state(0, 30);
    const auto rank = writer(options());
    EXPECT_TRUE(save({rank.get()}, 2, 30, {&later}).ok());
  }
}

INSTANTIATE_TEST_SUITE_P(EveryOperation, FaultsByError, ::testing::Values(EIO, ENOSPC));

TEST_F(Faults, AFailedSaveLeavesNoUnfinishedFolderAndTheWriterSavesAgain) {
  bool broken = true;
  GatedDisk disk{[&](Operation operation, const fs::path& path) {
    return broken && operation == Operation::kFsync ? io_error(path.string(), ENOSPC) : Status{};
  }};
  const auto rank = writer(options(), disk);
  const OwnedState owned = make_state(0, kNewStep);
  ASSERT_TRUE(rank->begin(1, StepIndex{kNewStep}, owned.state).ok());
  EXPECT_EQ(rank->wait(kWait).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(rank->poll(), SaveState::kFailed);
  EXPECT_EQ(rank->prepared_sequence(), 0);
  EXPECT_FALSE(fs::exists(folder_of(kNewStep, 1).string() + ".tmp"));
  broken = false;
  rank->abandon(1);
  EXPECT_TRUE(save({rank.get()}, 2, kNewStep, {&owned}).ok());
  EXPECT_EQ(surviving_step(), kNewStep);
}

TEST_F(Faults, TooLittleSpaceFailsTheSaveBeforeAByteIsWritten) {
  class FullDisk final : public Disk {
   public:
    Expected<std::uint64_t> free_bytes(const fs::path& /*path*/) override {
      return std::uint64_t{5 + 96 * 4 + 48 + 8};
    }
  };

  FullDisk disk;
  const auto rank = writer(options(), disk);
  const OwnedState owned = make_state(0, kNewStep);
  EXPECT_EQ(
      rank->begin(1, StepIndex{kNewStep}, owned.state).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(rank->poll(), SaveState::kFailed);
  EXPECT_EQ(rank->active_sequence(), 1);
  EXPECT_FALSE(fs::exists(folder_of(kNewStep, 1).string() + ".tmp"));
}

TEST_F(Faults, BytesDamagedOnTheWayToTheDiskAreFound) {
  class FlippingDisk final : public Disk {
   public:
    Status write(
        const FileDescriptor& fd, std::span<const std::byte> bytes, const fs::path& path) override {
      std::vector<std::byte> copy(bytes.begin(), bytes.end());
      if (path.extension() == ".safetensors" && ++writes_ == 2) {
        copy[copy.size() / 2] ^= std::byte{1};
      }
      return Disk::write(fd, copy, path);
    }

   private:
    int writes_{0};
  };

  FlippingDisk disk;
  ASSERT_TRUE(save_new(disk).ok());
  const Status status = verify(folder_of(kNewStep, 1));
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_NE(status.message().find("layers.0.weight"), std::string::npos) << status.to_string();
}

TEST_F(Faults, AKillAtAnyOperationLeavesTheOldOrTheNewCheckpoint) {
  bool killed = true;
  int old_count = 0;
  int new_count = 0;
  for (std::int64_t k = 1; killed; ++k) {
    ASSERT_LT(k, kOperationsMax);
    start_over();
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      OperationCounter counter{k};
      GatedDisk disk{[&](Operation, const fs::path&) -> Status {
        if (counter.next()) {
          ::_exit(kKilled);
        }
        return {};
      }};
      ::_exit(save_new(disk).ok() ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    killed = WEXITSTATUS(status) == kKilled;
    ASSERT_TRUE(killed || WEXITSTATUS(status) == 0);
    SCOPED_TRACE("killed at operation " + std::to_string(k));
    const std::int64_t survivor = surviving_step();
    ++(survivor == kOldStep ? old_count : new_count);
    if (!killed) {
      EXPECT_EQ(survivor, kNewStep);
    }
    // Leftovers of the dead process do not disturb the next generation, which removes them.
    const auto next = allocate_generation(root_, "run");
    ASSERT_TRUE(next);
    generation_ = *next;
    const auto rank = writer(options());
    ASSERT_TRUE(rank->wait(kWait).ok());
    for (const auto& entry : fs::directory_iterator{run_folder()}) {
      const std::string name = entry.path().filename().string();
      EXPECT_FALSE(name.starts_with("step-") && name.ends_with(".tmp")) << name;
      EXPECT_FALSE(name.starts_with(".trash-")) << name;
    }
  }
  EXPECT_GT(old_count, 10);
  EXPECT_GT(new_count, 5);
}

struct Loss {
  bool data;
  bool names;
};

class PowerLoss : public Faults, public ::testing::WithParamInterface<Loss> {};

TEST_P(PowerLoss, AtAnyOperationLeavesTheOldOrTheNewCheckpoint) {
  bool lost = true;
  for (std::int64_t k = 1; lost; ++k) {
    ASSERT_LT(k, kOperationsMax);
    start_over();
    OperationCounter counter{k};
    bool off = false;
    VolatileDisk disk{
        [&](Operation, const fs::path& path) {
          off = counter.next() || off;
          return off ? io_error(path.string(), EIO) : Status{};
        },
        true};
    std::int64_t committed = 0;
    static_cast<void>(save_new(disk, &committed));
    lost = counter.reached();
    disk.lose_power(root_, GetParam().data, GetParam().names);
    SCOPED_TRACE("power lost at operation " + std::to_string(k));
    const std::int64_t survivor = surviving_step();
    if (committed == 1) {
      EXPECT_EQ(survivor, kNewStep) << "a checkpoint reported as committed is gone";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Losing, PowerLoss, ::testing::Values(Loss{true, true}, Loss{true, false}, Loss{false, true}));

// The sweep above is worth something only if it would notice a missing fsync.
TEST_F(Faults, WithoutFsyncACommittedCheckpointDoesNotSurviveALossOfPower) {
  for (const bool names : {false, true}) {
    start_over();
    VolatileDisk disk{[](Operation, const fs::path&) { return Status{}; }, false};
    ASSERT_TRUE(save_new(disk).ok());
    disk.lose_power(root_, !names, names);
    const auto newest = newest_verified(root_, "run");
    EXPECT_TRUE(!newest || newest->step != StepIndex{kNewStep});
  }
}

TEST_F(Faults, AKillOfTwoRanksAtAnyOperationNeverMixesThem) {
  bool killed = true;
  for (std::int64_t k = 1; killed; ++k) {
    ASSERT_LT(k, kOperationsMax);
    CheckpointTest::TearDown();
    CheckpointTest::SetUp();
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      OperationCounter counter{k};
      GatedDisk disk{[&](Operation, const fs::path&) -> Status {
        if (counter.next()) {
          ::_exit(kKilled);
        }
        return {};
      }};
      const auto zero = create_writer(options(0, 2), disk, clock_);
      const auto one = create_writer(options(1, 2), disk, clock_);
      const OwnedState first = make_state(0, kNewStep);
      const OwnedState second = make_state(1, kNewStep);
      ::_exit(save({zero->get(), one->get()}, 1, kNewStep, {&first, &second}).ok() ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    killed = WEXITSTATUS(status) == kKilled;
    ASSERT_TRUE(killed || WEXITSTATUS(status) == 0);
    const std::vector<CheckpointInfo> all = list(root_, "run").value();
    for (const CheckpointInfo& info : all) {
      EXPECT_TRUE(verify(info.path).ok()) << "killed at operation " << k;
      for (const int rank : {0, 1}) {
        const auto loaded = load_rank(info.path, rank);
        EXPECT_TRUE(loaded && same(*loaded, make_state(rank, kNewStep)));
      }
    }
  }
}

}  // namespace muster::checkpoint::testing
