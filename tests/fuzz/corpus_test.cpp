// SPDX-License-Identifier: Apache-2.0
// Runs the fuzz targets over their seeds and over every input that once broke one of them.
#include "tests/fuzz/seeds.h"

#include <muster/common/file.h>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

// Each is the LLVMFuzzerTestOneInput of fuzz_<name>.cpp, renamed by CMakeLists.txt.
extern "C" int fuzz_checkpoint(const std::uint8_t* data, std::size_t size);
extern "C" int fuzz_plan_trace(const std::uint8_t* data, std::size_t size);
extern "C" int fuzz_policy(const std::uint8_t* data, std::size_t size);
extern "C" int fuzz_safetensors(const std::uint8_t* data, std::size_t size);
extern "C" int fuzz_wire(const std::uint8_t* data, std::size_t size);

namespace muster::fuzz {
namespace {

using Target = int (*)(const std::uint8_t*, std::size_t);

const std::map<std::string, Target> kTargets{
    {"checkpoint", fuzz_checkpoint},
    {"plan_trace", fuzz_plan_trace},
    {"policy", fuzz_policy},
    {"safetensors", fuzz_safetensors},
    {"wire", fuzz_wire}};

void run(Target target, const std::string& input) {
  const std::vector<std::uint8_t> bytes(input.begin(), input.end());
  target(bytes.data(), bytes.size());
}

TEST(FuzzCorpus, EveryTargetTakesItsSeedsWholeAndCut) {
  const auto seeds = all_seeds();
  ASSERT_EQ(seeds.size(), kTargets.size());
  for (const auto& [name, inputs] : seeds) {
    for (const std::string& input : inputs) {
      for (const std::size_t size : {input.size(), input.size() / 2, std::size_t{0}}) {
        SCOPED_TRACE(name + ", the first " + std::to_string(size) + " bytes of a seed");
        EXPECT_NO_THROW(run(kTargets.at(name), input.substr(0, size)));
      }
    }
  }
}

// regressions/<target>/<what it was>: copied from a crash file of make fuzz.
TEST(FuzzCorpus, EveryInputThatBrokeATargetIsTaken) {
  namespace fs = std::filesystem;
  for (const auto& entry : fs::recursive_directory_iterator{MUSTER_FUZZ_REGRESSIONS}) {
    if (!entry.is_regular_file()) {
      continue;
    }
    SCOPED_TRACE(entry.path().string());
    const std::string target = entry.path().parent_path().filename().string();
    ASSERT_TRUE(kTargets.contains(target)) << "no such fuzz target";
    EXPECT_NO_THROW(run(kTargets.at(target), read_file(entry.path()).value()));
  }
}

}  // namespace
}  // namespace muster::fuzz
