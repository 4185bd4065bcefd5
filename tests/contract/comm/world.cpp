// SPDX-License-Identifier: Apache-2.0
#include "tests/contract/comm/world.h"

#include <gtest/gtest.h>

#include <array>
#include <thread>

#if defined(__SANITIZE_THREAD__)
// libgloo is not built with the sanitizer, so its own locking is invisible.
extern "C" const char* __tsan_default_suppressions();

extern "C" const char* __tsan_default_suppressions() {
  return "race:gloo::transport\n";
}
#endif

namespace muster::comm {

std::string to_string(Backend backend) {
  switch (backend) {
    case Backend::kLocal:
      return "local";
    case Backend::kShm:
      return "shm";
    case Backend::kGloo:
      return "gloo";
  }
  return "unknown";
}

std::ostream& operator<<(std::ostream& out, const World& world) {
  return out << to_string(world.backend) << "_" << world.size;
}

ConnectOptions Rendezvous::options(int rank, int size) const {
  ConnectOptions options;
  options.rank = rank;
  options.size = size;
  options.session = folder().filename().string();  // As unique as the folder.
  options.gloo_store_path = folder().string();
  options.heap_bytes_per_rank = std::size_t{256} << 20;
  return options;
}

std::string world_name(const testing::TestParamInfo<World>& info) {
  std::ostringstream name;
  name << info.param;
  return name.str();
}

bool holds(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

Expected<std::unique_ptr<Communicator>> connect(
    Backend backend, const ConnectOptions& options, Deadline deadline) {
  return backend == Backend::kGloo ? connect_gloo(options, deadline)
                                   : connect_shm(options, deadline);
}

namespace {

std::vector<std::string> run_threads(int size, const RankWorkWithSide& work) {
  auto ranks = make_local_group(size);
  auto side = make_local_group(size);
  std::vector<std::string> reports(ranks.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    threads.emplace_back([&, r] { reports[r] = work(*ranks[r], *side[r]); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return reports;
}

}  // namespace

std::vector<std::string> run_world(const World& world, const RankWork& work) {
  if (world.backend == Backend::kLocal) {
    return run_threads(world.size, [&](Communicator& c, Communicator&) { return work(c); });
  }
  const Rendezvous rendezvous;
  const auto work_on = [&](int rank) {
    auto communicator = connect(world.backend, rendezvous.options(rank, world.size), soon());
    return communicator ? work(**communicator) : communicator.status().to_string();
  };
  return test::run_ranks(world.size, work_on);
}

std::vector<std::string> run_world_with_side(const World& world, const RankWorkWithSide& work) {
  if (world.backend == Backend::kLocal) {
    return run_threads(world.size, work);
  }
  const Rendezvous first;
  const Rendezvous second;
  return test::run_ranks(world.size, [&](int rank) {
    auto communicator = connect(world.backend, first.options(rank, world.size), soon());
    auto side = connect_shm(second.options(rank, world.size), soon());
    return communicator && side ? work(**communicator, **side)
                                : communicator.status().to_string() + side.status().to_string();
  });
}

void expect_success(const World& world, const RankWork& work) {
  const std::vector<std::string> reports = run_world(world, work);
  ASSERT_EQ(reports.size(), static_cast<std::size_t>(world.size));
  for (std::size_t r = 0; r < reports.size(); ++r) {
    EXPECT_EQ(reports[r], "") << world << " rank " << r;
  }
}

std::vector<World> worlds_of(int size) {
  std::vector<World> worlds{{Backend::kLocal, size}, {Backend::kShm, size}};
  if (gloo_is_available()) {
    worlds.push_back({Backend::kGloo, size});
  }
  return worlds;
}

std::vector<World> all_worlds() {
  std::vector<World> worlds;
  for (int size = 1; size <= 4; ++size) {
    for (const World& world : worlds_of(size)) {
      worlds.push_back(world);
    }
  }
  return worlds;
}

}  // namespace muster::comm
