// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/trainer/job.h"

#include <muster/comm/backends.h>
#include <muster/common/random.h>

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <fstream>
#include <iterator>
#include <optional>
#include <thread>

namespace muster::moe_lm {

const std::string& sample_text() {
  static const std::string text = [] {
    constexpr std::array<const char*, 8> kWords{
        "whale ", "sea ", "the ", "white ", "ship ", "harpoon ", "and ", "captain.\n"};
    Random random{3};
    std::string made;
    while (made.size() < 4000) {
      made += kWords[random.below(kWords.size())];
    }
    return made;
  }();
  return text;
}

TrainOptions small_options() {
  TrainOptions options;
  options.model = {2, 16, 2, 4, 2, 12, 16};
  options.steps = 10;
  options.batch = 8;
  options.ep_size = 1;
  options.warmup = 3;
  options.learning_rate = 1e-2;
  options.seed = 7;
  options.print_every = 0;
  return options;
}

std::vector<Expected<TrainResult>> run_job(
    int ranks, const TrainOptions& options, const std::function<void(TrainSetup&)>& adjust) {
  const auto group = comm::make_local_group(ranks);
  std::vector<std::optional<Expected<TrainResult>>> slots(group.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < group.size(); ++rank) {
    threads.emplace_back([&, rank] {
      TrainSetup setup;
      setup.options = options;
      setup.text = &sample_text();
      setup.agent.identity = {
          "test", Generation{1}, Rank{static_cast<std::int32_t>(rank)}, "incarnation"};
      setup.agent.world_size = ranks;
      setup.agent.telemetry = false;
      if (adjust) {
        adjust(setup);
      }
      slots[rank].emplace(train(*group[rank], setup));
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  std::vector<Expected<TrainResult>> results;
  for (auto& slot : slots) {
    results.push_back(std::move(*slot));
  }
  return results;
}

std::vector<double> losses_of_job(int ranks, const TrainOptions& options) {
  const auto results = run_job(ranks, options);
  for (const auto& result : results) {
    EXPECT_TRUE(result.ok()) << result.status().to_string();
    if (!result.ok()) {
      return {};
    }
    EXPECT_EQ(result->losses, results.front()->losses);
  }
  return results.front()->losses;
}

void expect_learns(const std::vector<double>& losses) {
  ASSERT_FALSE(losses.empty());
  for (const double loss : losses) {
    EXPECT_TRUE(std::isfinite(loss));
  }
  EXPECT_LT(losses.back(), losses.front() - 0.5);
}

std::string final_bits(
    int ranks, TrainOptions options, const std::function<void(TrainSetup&)>& adjust) {
  const ScratchFolder folder;
  options.dump_params = folder.path() / "params";
  for (const auto& result : run_job(ranks, options, adjust)) {
    EXPECT_TRUE(result.ok()) << result.status().to_string();
  }
  std::string bits;
  for (int rank = 0; rank < ranks; ++rank) {
    bits += bytes_of(folder.path() / ("params.rank-" + std::to_string(rank)));
  }
  return bits;
}

std::string bytes_of(const std::filesystem::path& file) {
  std::ifstream stream{file, std::ios::binary};
  EXPECT_TRUE(stream) << file;
  return {std::istreambuf_iterator<char>{stream}, std::istreambuf_iterator<char>{}};
}

}  // namespace muster::moe_lm
