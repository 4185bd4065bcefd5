// SPDX-License-Identifier: Apache-2.0
// Claim: gradients that live in the communicator's memory are reduced at the speed of memory.
//   claim shm_all_reduce_memcpy_ratio   all_reduce of 64 MiB in place over a memcpy of 64 MiB by
//                                       every rank, 2 ranks
// Method: the operations take turns in one group (harness.h). The same table is
// printed for 4 ranks and for Gloo on loopback.
#include "benchmarks/harness.h"
#include "tests/contract/comm/world.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <span>
#include <utility>

namespace muster::comm {

namespace {

using bench::must;
using bench::Series;

std::vector<World> measured_worlds() {
  std::vector<World> worlds{{Backend::kShm, 2}, {Backend::kShm, 4}};
  if (gloo_is_available()) {
    worlds.push_back({Backend::kGloo, 2});
    worlds.push_back({Backend::kGloo, 4});
  }
  return worlds;
}

std::string measure(Communicator& c) {
  constexpr std::size_t kCount = std::size_t{16} << 20;  // 64 MiB of float32.
  const Deadline limit = Deadline::after(std::chrono::minutes{2});
  const auto memory = c.allocate<float>(kCount, limit);
  if (!memory) {
    return memory.status().to_string();
  }
  std::fill(memory->begin(), memory->end(), 1.0F);
  std::vector<float> own(kCount, 1.0F);
  std::vector<float> copy(kCount, 2.0F);
  std::vector<double> lanes(200, 1.0);
  const auto size = static_cast<std::size_t>(c.size());
  const std::vector<std::size_t> counts(size, kCount / size);
  Series series(
      "operations",
      {.budget_s = 12, .rounds_min = 9},
      Series::Time::kWall,
      bench::Machine::system(),
      [&](double value) {
        must(c.all_reduce(std::span{&value, 1}, ReduceOp::kSum, limit));
        return value;
      });
  const auto add = [&](const char* name, int repeats, std::function<Status()> operation) {
    return series.add(name, [repeats, operation = std::move(operation)] {
      for (int i = 0; i < repeats; ++i) {
        must(operation());
      }
    });
  };
  add("100 barriers", 100, [&] { return c.barrier(limit); });
  add("100 all_reduce, 200 float64", 100, [&] {
    return c.all_reduce(std::span{lanes}, ReduceOp::kMax, limit);
  });
  const auto plain = add("64 MiB memcpy by every rank", 1, [&] {
    MUSTER_RETURN_IF_ERROR(c.barrier(limit));
    std::memcpy(copy.data(), own.data(), kCount * sizeof(float));
    return c.barrier(limit);
  });
  const auto reduced = add("64 MiB all_reduce in place", 1, [&] {
    return c.all_reduce(*memory, ReduceOp::kSum, limit);
  });
  add("64 MiB all_reduce private", 1, [&] {
    return c.all_reduce(std::span{own}, ReduceOp::kMax, limit);
  });
  add("64 MiB reduce_scatter in place", 1, [&] {
    return c.reduce_scatter(*memory, counts, ReduceOp::kMax, limit);
  });
  add("64 MiB all_gather in place", 1, [&] { return c.all_gather(*memory, counts, limit); });
  if (c.backend() == "shm" && c.size() == 2) {
    series.add_figure(
        {.name = "shm_all_reduce_memcpy_ratio", .tolerance = 0.1, .digits = 2},
        [=](std::span<const double> s) { return s[reduced] / s[plain]; });
  }
  series.run();
  return series.report();
}

}  // namespace

}  // namespace muster::comm

int main() {
  using namespace muster::comm;
  for (const World& world : measured_worlds()) {
    std::printf("%s, %d ranks\n", to_string(world.backend).c_str(), world.size);
    std::fflush(stdout);
    std::printf("%s", run_world(world, measure).at(0).c_str());
  }
  return 0;
}
