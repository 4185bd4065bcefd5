// SPDX-License-Identifier: Apache-2.0
// One group of ranks of any backend: threads for local, forked processes for shm and gloo.
#pragma once

#include "tests/support/deadlines.h"
#include "tests/support/forked_ranks.h"
#include "tests/support/scratch_folder.h"

#include <muster/comm/backends.h>

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

namespace muster::comm {

enum class Backend { kLocal, kShm, kGloo };

[[nodiscard]] std::string to_string(Backend backend);

struct World {
  Backend backend;
  int size;
};

std::ostream& operator<<(std::ostream& out, const World& world);

// The name of a case that runs in a world.
[[nodiscard]] std::string world_name(const testing::TestParamInfo<World>& info);

[[nodiscard]] bool holds(std::string_view text, std::string_view part);

// The work of one rank; returns a description of the failure, or "" for success.
using RankWork = std::function<std::string(Communicator&)>;

// A folder and a session name that no other test uses; the folder goes with the object.
class Rendezvous {
 public:
  [[nodiscard]] ConnectOptions options(int rank, int size) const;

  [[nodiscard]] const std::filesystem::path& folder() const { return folder_.path(); }

 private:
  test::ScratchFolder folder_;
};

// Only shm and gloo, whose ranks are processes.
[[nodiscard]] Expected<std::unique_ptr<Communicator>> connect(
    Backend backend, const ConnectOptions& options, Deadline deadline);

// Runs `work` on every rank and returns what each of them reported.
[[nodiscard]] std::vector<std::string> run_world(const World& world, const RankWork& work);

// Also connects a second group of the same ranks, which errors of the first do not affect: for
// tests in which a rank stays away from the first.
using RankWorkWithSide = std::function<std::string(Communicator&, Communicator& side)>;
[[nodiscard]] std::vector<std::string> run_world_with_side(
    const World& world, const RankWorkWithSide& work);

// Adds a test failure for every rank that reported one.
void expect_success(const World& world, const RankWork& work);

using test::soon;

// local, shm and, where the build has it, gloo, each with 1 to 4 ranks.
[[nodiscard]] std::vector<World> all_worlds();
[[nodiscard]] std::vector<World> worlds_of(int size);

}  // namespace muster::comm
