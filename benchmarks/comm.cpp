// SPDX-License-Identifier: Apache-2.0
// Claim: gradients that live in the communicator's memory are reduced at the speed of memory.
//   claim shm_all_reduce_memcpy_ratio   all_reduce of 64 MiB in place over a memcpy of 64 MiB by
//   every
//                                       rank, 2 ranks, medians of 9 turns
// Method: the operations take turns in one run, so that drift hits all alike. The same table is
// printed for 4 ranks and for Gloo on loopback.
#include "tests/contract/comm/world.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <map>

namespace muster::comm {

namespace {

using std::chrono::steady_clock;

std::vector<World> measured_worlds() {
  std::vector<World> worlds{{Backend::kShm, 2}, {Backend::kShm, 4}};
  if (gloo_is_available()) {
    worlds.push_back({Backend::kGloo, 2});
    worlds.push_back({Backend::kGloo, 4});
  }
  return worlds;
}

// Times of named actions; the report has minimum and median of each in microseconds.
class Stopwatch {
 public:
  void time(const std::string& name, int repeats, const std::function<Status()>& action) {
    for (int i = 0; i < repeats; ++i) {
      const auto start = steady_clock::now();
      if (const Status status = action(); !status.ok()) {
        report_ += status.to_string() + "\n";
      }
      times_us_[name].push_back(
          std::chrono::duration<double, std::micro>(steady_clock::now() - start).count());
    }
  }

  [[nodiscard]] double median_us(const std::string& name) {
    std::vector<double>& times = times_us_.at(name);
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

  [[nodiscard]] std::string report() {
    for (auto& [name, times] : times_us_) {
      std::sort(times.begin(), times.end());
      std::array<char, 128> line{};
      std::snprintf(
          line.data(),
          line.size(),
          "  %-32s min %10.2f us  median %10.2f us\n",
          name.c_str(),
          times.front(),
          times[times.size() / 2]);
      report_ += line.data();
    }
    return report_;
  }

 private:
  std::map<std::string, std::vector<double>> times_us_;
  std::string report_;
};

std::string measure(Communicator& c) {
  constexpr std::size_t kCount = std::size_t{16} << 20;  // 64 MiB of float32.
  const Deadline limit = Deadline::after(std::chrono::seconds{60});
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
  Stopwatch watch;
  const int small_repeats = c.backend() == "gloo" ? 200 : 2000;
  watch.time("barrier", small_repeats, [&] { return c.barrier(limit); });
  watch.time("all_reduce, 200 float64", small_repeats, [&] {
    return c.all_reduce(std::span{lanes}, ReduceOp::kMax, limit);
  });
  for (int turn = 0; turn < 9; ++turn) {
    watch.time("64 MiB memcpy by every rank", 1, [&] {
      MUSTER_RETURN_IF_ERROR(c.barrier(limit));
      std::memcpy(copy.data(), own.data(), kCount * sizeof(float));
      return c.barrier(limit);
    });
    watch.time("64 MiB all_reduce in place", 1, [&] {
      return c.all_reduce(*memory, ReduceOp::kSum, limit);
    });
    watch.time("64 MiB all_reduce private", 1, [&] {
      return c.all_reduce(std::span{own}, ReduceOp::kMax, limit);
    });
    watch.time("64 MiB reduce_scatter in place", 1, [&] {
      return c.reduce_scatter(*memory, counts, ReduceOp::kMax, limit);
    });
    watch.time(
        "64 MiB all_gather in place", 1, [&] { return c.all_gather(*memory, counts, limit); });
  }
  std::string report = watch.report();
  if (c.backend() == "shm" && c.size() == 2) {
    std::array<char, 64> line{};
    std::snprintf(
        line.data(),
        line.size(),
        "claim shm_all_reduce_memcpy_ratio %.2f\n",
        watch.median_us("64 MiB all_reduce in place") /
            watch.median_us("64 MiB memcpy by every rank"));
    report += line.data();
  }
  return report;
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
