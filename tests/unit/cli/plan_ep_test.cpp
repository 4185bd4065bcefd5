// SPDX-License-Identifier: Apache-2.0
// `muster plan ep` as a user meets it: the calculator, and traces replayed under another planner.
#include "cli/plan/ep/replay.h"
#include "tests/support/scratch_folder.h"
#include "tests/unit/cli/program.h"

#include <muster/parallel/experts/trace.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace muster::cli::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

ProgramResult ep(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"plan", "ep"});
  return muster(arguments);
}

void expect_ep_refused(
    const std::vector<std::string>& arguments, int code, const std::string& part) {
  const ProgramResult result = ep(arguments);
  EXPECT_EQ(result.exit_code, code) << result.err;
  EXPECT_THAT(result.err, HasSubstr(part));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_EQ(result.out, "");
}

const std::vector<std::string> kWorked{
    "--experts",
    "384",
    "--ranks",
    "8",
    "--top-k",
    "8",
    "--tokens",
    "8192",
    "--hidden",
    "7168",
    "--ffn",
    "2048",
    "--padding",
    "128"};

TEST(PlanEpCommand, PrintsTheWorkedNumbers) {
  const ProgramResult result = ep(kWorked);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* part :
       {"384 experts on 8 ranks (48 each), top 8, 8,192 tokens per rank",
        "1.11 GB",
        "4.23 GB",
        "8.46 GB",
        "543 MB",
        "88.1 MB",
        "176 MB",
        "18.6 %",
        "5.28 ranks",
        "319 MB",
        "--gemm-flops and --link add times"}) {
    EXPECT_THAT(result.out, HasSubstr(part));
  }
}

TEST(PlanEpCommand, RatesAddTimesAndWhenBalancingPays) {
  std::vector<std::string> arguments = kWorked;
  arguments.insert(
      arguments.end(),
      {"--gemm-flops",
       "700T",
       "--link",
       "450G",
       "--copies-out",
       "1",
       "--plan-us",
       "0",
       "--imbalance",
       "1.46"});
  const ProgramResult result = ep(arguments);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* part : {"8.25 ms", "1.21 ms", "196 us", "1.021", "TOKENS AT 1.46"}) {
    EXPECT_THAT(result.out, HasSubstr(part));
  }
}

TEST(PlanEpCommand, JsonHasNumbersForPrograms) {
  const ProgramResult result =
      ep({"--preset",
          "moe_896",
          "--gemm-flops",
          "1.75P",
          "--link",
          "450G",
          "--imbalance",
          "1.1",
          "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto document = nlohmann::json::parse(result.out);
  EXPECT_EQ(document["experts"], 896);
  EXPECT_EQ(document["slots"], 112);
  EXPECT_NEAR(document["dispatch_bytes"].get<double>(), 727e6, 1e6);
  EXPECT_NEAR(document["distinct_ranks"].get<double>(), 7.07, 0.01);
  EXPECT_GT(document["with_backward"]["imbalance"].get<double>(), 1);
  EXPECT_GT(document["forward"]["tokens"].get<double>(), 0);
}

TEST(PlanEpCommand, FlagsOverrideAPreset) {
  const ProgramResult result =
      ep({"--preset", "moe_384", "--type", "fp32", "--slots", "4", "--mode", "none", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto document = nlohmann::json::parse(result.out);
  EXPECT_EQ(document["slots"], 4);
  EXPECT_EQ(document["mode"], "none");
  EXPECT_EQ(document["expert_bytes"], document["expert_gradient_bytes"]);
  EXPECT_EQ(document["receive_rows"].get<std::int64_t>() / 65'536, 8);  // all rows of all ranks
}

TEST(PlanEpCommand, InferenceHasNoGradients) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--preset", "inference"},
        {"--preset", "moe_384", "--slots", "4"},
        {"--preset", "moe_384", "--inference"}}) {
    const ProgramResult result = ep(arguments);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, Not(HasSubstr("pool, gradients")));
    EXPECT_THAT(result.out, Not(HasSubstr("own gradients")));
    EXPECT_THAT(result.out, Not(HasSubstr("reduction of a copy")));
    EXPECT_THAT(result.out, HasSubstr("Inference: no gradients. Training needs 48 slots."));
  }
  const ProgramResult timed =
      ep({"--preset", "inference", "--gemm-flops", "700T", "--link", "450G", "--json"});
  ASSERT_EQ(timed.exit_code, 0) << timed.err;
  const auto document = nlohmann::json::parse(timed.out);
  EXPECT_EQ(document["pool_gradient_bytes"], 0);
  EXPECT_EQ(document["inference"], true);
  EXPECT_TRUE(document.contains("forward"));
  EXPECT_FALSE(document.contains("with_backward"));
}

TEST(PlanEpCommand, HelpNamesPresetsUnitsAndReplay) {
  const ProgramResult result = ep({"--help"});
  EXPECT_EQ(result.exit_code, 0);
  for (const char* part : {"moe_384_wide", "such as 450G", "replay", "Examples:", "--imbalance"}) {
    EXPECT_THAT(result.out, HasSubstr(part));
  }
}

TEST(PlanEpCommand, RefusesWhatItCannotCalculate) {
  expect_ep_refused({"--experts", "384", "--ranks", "8"}, 2, "--top-k, --tokens, --hidden, --ffn");
  expect_ep_refused({"--preset", "moe"}, 2, "must be one of moe_384");
  expect_ep_refused({"--preset", "moe_384", "--ranks", "7"}, 2, "multiple of the 7 ranks");
  expect_ep_refused({"--preset", "moe_384", "--link", "450G"}, 2, "given together");
  expect_ep_refused(
      {"--preset", "moe_384", "--link", "fast", "--gemm-flops", "1T"}, 2, "such as 450G");
  expect_ep_refused({"--preset", "moe_384", "--imbalance", "2"}, 2, "need --gemm-flops");
  expect_ep_refused({"--preset", "moe_384", "--mode", "even"}, 2, "one of none, exact, tolerant");
  expect_ep_refused({"--preset", "moe_384", "--mode", "tolerant"}, 2, "needs --tolerance");
  expect_ep_refused(
      {"--preset", "moe_384", "--mode", "exact", "--tolerance", "0.1"}, 2, "goes with --mode");
  expect_ep_refused({"--preset", "moe_384", "--type", "fp8"}, 2, "must be fp32 or bf16");
}

// A trace of 2 layers and 3 steps on 4 ranks; layer 1 sends every token to expert 0 and one other.
class PlanEpReplay : public ::testing::Test {
 protected:
  void SetUp() override {
    header_.shape.ranks = 4;
    header_.shape.experts = 16;
    header_.shape.top_k = 2;
    header_.shape.tokens_max = 64;
  }

  [[nodiscard]] std::string path() const { return (folder_ / "rank0.ep").string(); }

  static std::vector<std::int32_t> choices(int layer, int step, int rank) {
    std::vector<std::int32_t> result;
    for (int token = 0; token < 64; ++token) {
      const int other = 1 + (token * 7 + rank * 3 + step) % 15;
      result.push_back(layer == 1 ? 0 : other == 15 ? 0 : other + 1);
      result.push_back(other);
    }
    return result;
  }

  void record(const parallel::EpTraceOptions& options = {}) {
    parallel::EpPlanner planner{header_.shape, header_.balance};
    parallel::EpPlan plan{header_.shape, header_.balance};
    auto writer = parallel::EpTraceWriter::open(path(), header_, options).value();
    for (int step = 10; step < 13; ++step) {
      for (int layer = 0; layer < 2; ++layer) {
        std::vector<std::int32_t> counts(4 * 16, 0);
        for (int rank = 0; rank < 4; ++rank) {
          for (const std::int32_t expert : choices(layer, step, rank)) {
            ++counts[static_cast<std::size_t>(rank * 16 + expert)];
          }
        }
        const auto own = choices(layer, step, 0);
        ASSERT_TRUE(planner.plan(counts, plan).ok());
        ASSERT_TRUE(planner.place(0, own, plan).ok());
        ASSERT_TRUE(writer.append(layer, step, plan, own).ok());
      }
    }
  }

  test::ScratchFolder scratch_;
  fs::path folder_{scratch_.path()};
  parallel::EpTraceHeader header_;
};

TEST_F(PlanEpReplay, WithoutOptionsIsTheRecordedPlan) {
  record();
  const EpReplayReport report = replay(path(), {}).value();
  EXPECT_EQ(report.records, 6);
  EXPECT_EQ(report.reproduced, 6);
  ASSERT_EQ(report.layers.size(), 2U);
  for (const EpReplayLayer& layer : report.layers) {
    EXPECT_EQ(layer.steps, 3);
    EXPECT_EQ(layer.recorded.copies, layer.replayed.copies);
    EXPECT_EQ(layer.recorded.wire_rows, layer.replayed.wire_rows);
    EXPECT_EQ(layer.replayed.imbalance_after_max, 1);
  }
  EXPECT_GT(report.layers[1].imbalance_before_max, 2);
  const ProgramResult result = ep({"replay", path()});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("6 plans of 2 layers, steps 10 to 12, recorded by rank 0"));
  EXPECT_THAT(result.out, Not(HasSubstr("->")));
  EXPECT_THAT(result.out, HasSubstr("all "));
}

TEST_F(PlanEpReplay, OtherPlannersStandBesideTheRecordedOne) {
  record();
  EpReplayOptions options;
  options.mode = parallel::EpBalanceMode::kNone;
  const EpReplayReport none = replay(path(), options).value();
  EXPECT_EQ(none.layers[1].replayed.copies, 0);
  EXPECT_EQ(none.layers[1].replayed.imbalance_after_max, none.layers[1].imbalance_before_max);
  options = {};
  options.tolerance = 0.1;
  const EpReplayReport tolerant = replay(path(), options).value();
  EXPECT_LE(tolerant.layers[1].replayed.imbalance_after_max, 1.1);
  EXPECT_LE(tolerant.layers[1].replayed.copies, tolerant.layers[1].recorded.copies);
  options = {};
  options.slots = 0;
  options.padding = 8;
  const EpReplayReport bare = replay(path(), options).value();
  EXPECT_EQ(bare.layers[1].replayed.copies, 0);
  EXPECT_GT(bare.layers[1].replayed.overflow, 0);
  EXPECT_GT(bare.layers[1].replayed.pad_rows, 0);
  EXPECT_EQ(bare.layers[1].recorded.pad_rows, 0);
  const ProgramResult result = ep({"replay", path(), "--mode", "none", "--hidden", "512"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("replayed  no balancing"));
  EXPECT_THAT(result.out, HasSubstr("->"));
  EXPECT_THAT(result.out, HasSubstr("kB"));
}

// Ordinary expert parallelism, where it can be counted by hand: rank 0 holds experts 0..3.
TEST_F(PlanEpReplay, WireRowsAreThoseThatLeaveTheRank) {
  record();
  EpReplayOptions options;
  options.mode = parallel::EpBalanceMode::kNone;
  std::int64_t once = 0;
  std::int64_t each = 0;
  for (int step = 10; step < 13; ++step) {
    const auto own = choices(0, step, 0);
    for (std::size_t token = 0; token < 64; ++token) {
      const int first = own[2 * token] / 4;
      const int second = own[2 * token + 1] / 4;
      once += (first != 0 ? 1 : 0) + (second != 0 && second != first ? 1 : 0);
      each += (first != 0 ? 1 : 0) + (second != 0 ? 1 : 0);
    }
  }
  const EpReplayReport report = replay(path(), options).value();
  EXPECT_EQ(report.layers[0].replayed.wire_rows, once);
  EXPECT_EQ(report.layers[0].replayed.wire_tokens, 3 * 64);
  fs::remove(path());
  parallel::EpTraceOptions counts_only;
  counts_only.choices = false;
  record(counts_only);
  const EpReplayReport counted = replay(path(), options).value();
  EXPECT_FALSE(counted.deduplicated);
  EXPECT_EQ(counted.layers[0].replayed.wire_rows, each);
  EXPECT_THAT(to_text(counted), HasSubstr("choices were not recorded"));
}

TEST_F(PlanEpReplay, JsonHasBothPlannersPerLayer) {
  record();
  const ProgramResult result = ep({"replay", path(), "--tolerance", "0.1", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto document = nlohmann::json::parse(result.out);
  EXPECT_EQ(document["records"], 6);
  EXPECT_EQ(document["reproduced"], 6);
  ASSERT_EQ(document["layers"].size(), 2U);
  EXPECT_GT(document["layers"][1]["recorded"]["copies_mean"].get<double>(), 0);
  EXPECT_EQ(document["all"]["steps"], 6);
}

TEST_F(PlanEpReplay, SaysWhichPlansAPlannerCannotMake) {
  record();
  const ProgramResult result = ep({"replay", path(), "--speeds", "1,0,0,0"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("cannot be made with these options; the first: layer "));
  EXPECT_THAT(result.out, HasSubstr("raise homes_max"));
  const ProgramResult more = ep({"replay", path(), "--speeds", "1,0,0,0", "--homes-max", "3"});
  EXPECT_THAT(more.out, Not(HasSubstr("cannot be made")));
}

TEST_F(PlanEpReplay, RefusesDamageAndOptionsInOneSentence) {
  record();
  expect_ep_refused({"replay", path(), "--slots", "9"}, 2, "slots must be 0..4 ");
  expect_ep_refused({"replay", path(), "--speeds", "1,1"}, 2, "one for each of the 4 ranks");
  expect_ep_refused({"replay", (folder_ / "none.ep").string()}, 1, "no such file");
  std::fstream file{path(), std::ios::in | std::ios::out | std::ios::binary};
  file.seekp(static_cast<std::streamoff>(fs::file_size(path()) / 2));
  file.put('?');
  file.close();
  expect_ep_refused({"replay", path()}, 1, "is damaged: its hash does not match. 'truncate -s");
}

}  // namespace
}  // namespace muster::cli::testing
