// SPDX-License-Identifier: Apache-2.0
// `muster plan optimizer` as a user meets it.
#include "tests/support/scratch_folder.h"
#include "tests/unit/cli/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>

namespace muster::cli::testing {
namespace {

using ::testing::HasSubstr;

ProgramResult plan(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"plan", "optimizer"});
  return muster(arguments);
}

void expect_plan_refused(
    const std::vector<std::string>& arguments, int code, const std::string& part) {
  const ProgramResult result = plan(arguments);
  EXPECT_EQ(result.exit_code, code) << result.err;
  EXPECT_THAT(result.err, HasSubstr(part));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_EQ(result.out, "");
}

TEST(PlanCommand, PrintsAPlanOfAPreset) {
  const ProgramResult result = plan({"--preset", "dense_7b", "--ranks", "64"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("dense_7b: 7.24e9 parameters in 291 tensors, 64 ranks"));
  EXPECT_THAT(result.out, HasSubstr("layout whole"));
  EXPECT_THAT(result.out, HasSubstr("224 matrices, 0 cut"));
}

TEST(PlanCommand, ComparesAllLayoutsWithAnAdvice) {
  const ProgramResult result = plan({"--preset", "dense_7b", "--layout", "all"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* layout :
       {"* whole", "flat_owner", "flat_redundant", "row_shards", "replicated"}) {
    EXPECT_THAT(result.out, HasSubstr(layout));
  }
  EXPECT_THAT(result.out, HasSubstr("is recommended"));
}

TEST(PlanCommand, AModelThatWasPrintedGivesTheSamePlanAsItsPreset) {
  const ProgramResult printed = plan({"--preset", "dense_7b", "--print-model"});
  ASSERT_EQ(printed.exit_code, 0) << printed.err;
  const test::ScratchFolder folder;
  const auto file = folder.path() / "model.yaml";
  std::ofstream{file} << printed.out;
  const ProgramResult from_file = plan({file.string(), "--json"});
  const ProgramResult from_preset = plan({"--preset", "dense_7b", "--json"});
  EXPECT_EQ(from_file.exit_code, 0) << from_file.err;
  EXPECT_EQ(from_file.out, from_preset.out);
}

TEST(PlanCommand, JsonHasEveryQuantityAsANumber) {
  const ProgramResult result =
      plan({"--preset", "moe", "--layout", "all", "--state-type", "int8", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto document = nlohmann::json::parse(result.out);
  EXPECT_EQ(document["model"], "moe");
  EXPECT_EQ(document["ranks"], 1024);
  EXPECT_EQ(document["expert_ranks"], 8);
  EXPECT_EQ(document["recommended"], "whole");
  ASSERT_EQ(document["plans"].size(), 5U);
  for (const auto& one : document["plans"]) {
    EXPECT_EQ(one["hash"].get<std::string>().size(), 16U);
    EXPECT_GT(one["per_rank"]["state_bytes"]["heaviest"].get<double>(), 0);
    EXPECT_EQ(one["regions"].size(), 4U);
  }
}

// Ranks of different builds compare it, so it must not depend on how the code numbers a type.
TEST(PlanCommand, TheHashOfAPlanIsThatOfTheFirstVersion) {
  const test::ScratchFolder folder;
  std::string model = plan({"--preset", "dense_7b", "--print-model"}).out;
  const auto hash = [&] {
    const auto file = folder.path() / "model.yaml";
    std::ofstream{file} << model;
    const ProgramResult result = plan({file.string(), "--ranks", "8", "--json"});
    return nlohmann::json::parse(result.out)["plans"][0]["hash"].get<std::string>();
  };
  EXPECT_EQ(hash(), "89707e8208bce731");
  for (std::size_t at = model.find("bf16"); at != std::string::npos; at = model.find("bf16")) {
    model.replace(at, 4, "fp16");
  }
  EXPECT_EQ(hash(), "de896c2f42bf54c0");
}

TEST(PlanCommand, EightBitStatesTakeAQuarterAndALittle) {
  const auto states = [](const std::string& type) {
    const ProgramResult result =
        plan({"--preset", "dense_7b", "--ranks", "1", "--state-type", type, "--json"});
    return nlohmann::json::parse(result.out)["plans"][0]["per_rank"]["state_bytes"]["heaviest"]
        .get<double>();
  };
  EXPECT_NEAR(states("int8") / states("fp32"), (1 + 4.0 / 256) / 4, 1e-5);
  EXPECT_NEAR(states("bf16") / states("fp32"), 0.5, 1e-12);
}

TEST(PlanCommand, RefusesWhatCannotBePlanned) {
  expect_plan_refused({}, 2, "give a model file or --preset NAME");
  expect_plan_refused({"--preset", "gpt"}, 2, "there are dense_7b, moe");
  expect_plan_refused({"no_such_model.yaml"}, 1, "no such file");
  expect_plan_refused(
      {"--preset", "dense_7b", "--layout", "diagonal"}, 2, "unknown layout 'diagonal'");
  expect_plan_refused({"--preset", "dense_7b", "--state-type", "fp4"}, 2, "fp32, bf16 and int8");
  expect_plan_refused({"--preset", "dense_7b", "--ranks", "0"}, 2, "at least 1 rank");
  expect_plan_refused({"--preset", "dense_7b", "--ranks", "2000000"}, 2, "more than a plan takes");
  expect_plan_refused({"--preset", "moe", "--ranks", "100"}, 2, "do not divide 100 ranks");
  expect_plan_refused({"--preset", "moe", "--ranks", "80"}, 2, "choose --ranks and --expert-ranks");
  expect_plan_refused({"--print-model"}, 2, "--print-model needs --preset");
}

}  // namespace
}  // namespace muster::cli::testing
