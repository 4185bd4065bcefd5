// SPDX-License-Identifier: Apache-2.0
// Claim: the training thread is held by a checkpoint only for the copy to the host snapshot.
//   claim snapshot_stall_ratio   stall of Writer::begin / plain memcpy of the same bytes
// Method: one writer saves 256 MiB of tensors again and again, in turn with a memcpy of the same
// bytes into memory that is warm as well (harness.h). The first save, which allocates the snapshot,
// does not count.
#include "benchmarks/harness.h"

#include <muster/checkpoint/checkpoint.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace std::chrono_literals;
using muster::bench::must;
using muster::bench::Series;

constexpr std::size_t kTensors = 64;
constexpr std::size_t kTensorBytes = std::size_t{4} << 20;

muster::checkpoint::RankState make_state(const std::vector<std::vector<std::byte>>& tensors) {
  muster::checkpoint::RankState state;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto count = static_cast<std::int64_t>(tensors[i].size() / sizeof(float));
    state.tensors.push_back(
        {"tensor." + std::to_string(i),
         muster::DType::kFloat32,
         {count},
         {count},
         {0},
         tensors[i]});
  }
  return state;
}

void copy_all(
    const std::vector<std::vector<std::byte>>& from, std::vector<std::vector<std::byte>>& to) {
  for (std::size_t i = 0; i < from.size(); ++i) {
    std::memcpy(to[i].data(), from[i].data(), from[i].size());
  }
}

std::unique_ptr<muster::checkpoint::Writer> make_writer(const std::string& folder) {
  const auto generation = muster::checkpoint::allocate_generation(folder, "bench");
  must(generation.status());
  auto writer = muster::checkpoint::Writer::create(
      {.root = folder,
       .identity = {"bench", *generation, muster::Rank{0}, "bench"},
       .world_size = 1,
       .keep_last = 1});
  must(writer.status());
  return std::move(*writer);
}

}  // namespace

int main() {
  std::string folder = (std::filesystem::temp_directory_path() / "muster-bench-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) {
    must(muster::io_error(folder, errno));
  }
  const auto writer = make_writer(folder);
  std::vector<std::vector<std::byte>> tensors(kTensors, std::vector<std::byte>(kTensorBytes));
  std::vector<std::vector<std::byte>> copy = tensors;
  const auto state = make_state(tensors);
  std::int64_t sequence = 0;
  Series series("saves of 256 MiB", {.budget_s = 25, .rounds_min = 9}, Series::Time::kWall);
  // The writer is idle before each copy and each save.
  const auto plain = series.add("memcpy", [&] { copy_all(tensors, copy); });
  const auto stall = series.add_measured("stall", [&] {
    ++sequence;
    must(writer->begin(sequence, muster::StepIndex{sequence}, state));
    const double seconds = 1e-9 * static_cast<double>(writer->last_stall_ns());
    must(writer->wait(60s));
    writer->commit(sequence, false);
    must(writer->wait(60s));
    return seconds;
  });
  series.add_figure({"snapshot_stall_ratio", 0.05}, [=](std::span<const double> s) {
    return s[stall] / s[plain];
  });
  series.run();
  std::printf("%s", series.report().c_str());
  std::filesystem::remove_all(folder);
  return 0;
}
