// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/checkpoint/fixture.h"

#include <algorithm>

namespace muster::checkpoint::testing {

namespace fs = std::filesystem;

class Retention : public CheckpointTest {
 protected:
  [[nodiscard]] std::vector<std::int64_t> steps() const {
    std::vector<std::int64_t> found;
    const std::vector<CheckpointInfo> all = list(root_, "run").value();
    for (const CheckpointInfo& info : all) {
      found.push_back(info.step.value());
    }
    return found;
  }

  void save_step(std::int64_t step, int keep_last, bool pin = false) {
    WriterOptions kept = options();
    kept.keep_last = keep_last;
    const auto rank = writer(kept);
    const OwnedState owned = make_state(0, static_cast<std::uint64_t>(step));
    ASSERT_TRUE(save({rank.get()}, 1, step, {&owned}, pin).ok());
  }
};

using Steps = std::vector<std::int64_t>;

TEST_F(Retention, KeepsTheNewestAndDeletesTheRest) {
  for (const std::int64_t step : {10, 20, 30, 40}) {
    save_step(step, 2);
  }
  EXPECT_EQ(steps(), (Steps{40, 30}));
  EXPECT_FALSE(fs::exists(run_folder() / ".trash-step-10.gen-1"));
}

TEST_F(Retention, KeepsPinnedOnesBesides) {
  save_step(10, 1, true);
  for (const std::int64_t step : {20, 30}) {
    save_step(step, 1);
  }
  EXPECT_EQ(steps(), (Steps{30, 10}));
  EXPECT_TRUE(list(root_, "run")->back().pinned);
}

TEST_F(Retention, DoesNotCountUnfinishedOnes) {
  save_step(10, 1);
  const OwnedState owned = make_state(0, 1);
  const auto rank = writer(options());
  ASSERT_TRUE(rank->begin(1, StepIndex{20}, owned.state).ok());
  ASSERT_TRUE(rank->wait(kWait).ok());
  EXPECT_EQ(steps(), Steps{10});
}

TEST_F(Retention, DoesNotCountDamagedOnesAndNeverDeletesTheLastGoodOne) {
  save_step(10, 3);
  save_step(20, 3);
  save_step(30, 3);
  fs::remove(folder_of(20, 1) / "rank-0.safetensors");
  save_step(40, 2);
  EXPECT_EQ(steps(), (Steps{40, 30, 20}));
}

TEST_F(Retention, DeletesNothingWhileTheNewestIsDamagedInside) {
  class FlippingDisk final : public Disk {
   public:
    Status write(
        const FileDescriptor& fd, std::span<const std::byte> bytes, const fs::path& path) override {
      std::vector<std::byte> copy(bytes.begin(), bytes.end());
      if (path.extension() == ".safetensors") {
        copy.back() ^= std::byte{1};
      }
      return Disk::write(fd, copy, path);
    }
  };

  save_step(10, 1);
  FlippingDisk disk;
  WriterOptions kept = options();
  kept.keep_last = 1;
  const auto rank = writer(kept, disk);
  const OwnedState owned = make_state(0, 20);
  ASSERT_TRUE(save({rank.get()}, 1, 20, {&owned}).ok());
  EXPECT_EQ(steps(), (Steps{20, 10}));
  EXPECT_EQ(newest_verified(root_, "run")->step, StepIndex{10});
}

TEST_F(Retention, ANewGenerationClearsUnfinishedFoldersOfOlderOnes) {
  const OwnedState owned = make_state(0, 1);
  {
    const auto rank = writer(options());
    ASSERT_TRUE(rank->begin(1, StepIndex{20}, owned.state).ok());
    ASSERT_TRUE(rank->wait(kWait).ok());
  }
  ASSERT_TRUE(fs::exists(folder_of(20, 1).string() + ".tmp"));
  fs::create_directory(run_folder() / ".trash-step-5.gen-1");
  generation_ = allocate_generation(root_, "run").value();
  const auto rank = writer(options());
  ASSERT_TRUE(rank->wait(kWait).ok());
  EXPECT_FALSE(fs::exists(folder_of(20, 1).string() + ".tmp"));
  EXPECT_FALSE(fs::exists(run_folder() / ".trash-step-5.gen-1"));
}

}  // namespace muster::checkpoint::testing
