// SPDX-License-Identifier: Apache-2.0
// Claim: the training thread is held by a checkpoint only for the copy to the host snapshot.
//   claim snapshot_stall_ratio   stall of Writer::begin / plain memcpy of the same bytes
// Method: one writer saves 256 MiB of tensors again and again; each save is paired with a memcpy of
// the same bytes into memory that is warm as well. Median of the pairs' ratios. The first save,
// which allocates the snapshot, is printed apart.
#include <muster/checkpoint/checkpoint.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <vector>

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kTensors = 64;
constexpr std::size_t kTensorBytes = std::size_t{4} << 20;
constexpr int kPairs = 15;

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

double memcpy_ns(
    const std::vector<std::vector<std::byte>>& from, std::vector<std::vector<std::byte>>& to) {
  const auto begin = Clock::now();
  for (std::size_t i = 0; i < from.size(); ++i) {
    std::memcpy(to[i].data(), from[i].data(), from[i].size());
  }
  return static_cast<double>((Clock::now() - begin).count());
}

int fail(const muster::Status& status) {
  std::fprintf(stderr, "bench_snapshot: %s\n", status.to_string().c_str());
  return 1;
}

}  // namespace

int main() {
  std::string folder = (std::filesystem::temp_directory_path() / "muster-bench-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) {
    return fail(muster::io_error(folder, errno));
  }
  const auto generation = muster::checkpoint::allocate_generation(folder, "bench");
  if (!generation) {
    return fail(generation.status());
  }
  auto writer = muster::checkpoint::Writer::create(
      {.root = folder,
       .identity = {"bench", *generation, muster::Rank{0}, "bench"},
       .world_size = 1,
       .keep_last = 1});
  if (!writer) {
    return fail(writer.status());
  }
  std::vector<std::vector<std::byte>> tensors(kTensors, std::vector<std::byte>(kTensorBytes));
  std::vector<std::vector<std::byte>> copy = tensors;
  const auto state = make_state(tensors);
  std::vector<double> ratios;
  for (std::int64_t sequence = 1; sequence <= kPairs + 1; ++sequence) {
    const double plain = memcpy_ns(tensors, copy);
    if (const auto begun = (*writer)->begin(sequence, muster::StepIndex{sequence}, state);
        !begun.ok()) {
      return fail(begun);
    }
    const double stall = static_cast<double>((*writer)->last_stall_ns());
    if (const auto waited = (*writer)->wait(60s); !waited.ok()) {
      return fail(waited);
    }
    (*writer)->commit(sequence, false);
    if (const auto waited = (*writer)->wait(60s); !waited.ok()) {
      return fail(waited);
    }
    if (sequence == 1) {
      std::printf("first save, with allocation: %.2f x memcpy\n", stall / plain);
    } else {
      ratios.push_back(stall / plain);
    }
  }
  std::sort(ratios.begin(), ratios.end());
  std::printf(
      "%zu MiB, %d saves: ratio min %.3f, max %.3f\n",
      kTensors * kTensorBytes >> 20,
      kPairs,
      ratios.front(),
      ratios.back());
  std::printf("claim snapshot_stall_ratio %.3f\n", ratios[ratios.size() / 2]);
  std::filesystem::remove_all(folder);
  return 0;
}
