// SPDX-License-Identifier: Apache-2.0
// Which layout is advised, and the table that compares them.
#include "cli/plan/comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

namespace muster::cli {
namespace {

using optimizer::Layout;
using optimizer::PlanReport;
using ::testing::HasSubstr;

std::vector<PlanReport> plans(
    const std::vector<std::vector<std::int64_t>>& shapes, int ranks, const char* rule = "muon") {
  optimizer::OptimizerOptions options;
  options.routes.emplace_back();
  options.routes[0].pattern = "*";
  options.routes[0].rule = optimizer::parse_rule(rule).value();
  std::vector<optimizer::ParameterSpec> specs;
  for (const auto& shape : shapes) {
    specs.emplace_back();
    specs.back().name = "w" + std::to_string(specs.size());
    specs.back().shape = shape;
  }
  std::vector<PlanReport> reports;
  for (const Layout layout :
       {Layout::kWholeMatrices,
        Layout::kFlatOwner,
        Layout::kFlatRedundant,
        Layout::kRowShards,
        Layout::kReplicated}) {
    options.layout = layout;
    reports.push_back(optimizer::report_plan(specs, options, ranks, ranks).value());
  }
  return reports;
}

std::vector<PlanReport> plans_of_equal(std::size_t matrices, int ranks, const char* rule = "muon") {
  return plans(std::vector<std::vector<std::int64_t>>(matrices, {256, 256}), ranks, rule);
}

TEST(LayoutAdvice, KeepsMatricesWholeWhileThereAreEnough) {
  const Advice advice = recommend(plans_of_equal(16, 8)).value();
  EXPECT_EQ(advice.layout, Layout::kWholeMatrices);
  EXPECT_THAT(advice.reason, HasSubstr("at least as many matrices as ranks"));
  EXPECT_THAT(advice.reason, HasSubstr("16 replicated matrices fp32 on 8 ranks"));
}

// A square matrix has as much work as thousands of thin ones, which take far more memory.
TEST(LayoutAdvice, CutsThemWhenBalancedWorkWouldOverfillARank) {
  std::vector<std::vector<std::int64_t>> shapes(2000, {16, 1024});
  shapes.push_back({1024, 1024});
  const Advice advice = recommend(plans(shapes, 2)).value();
  EXPECT_EQ(advice.layout, Layout::kFlatOwner);
  EXPECT_THAT(advice.reason, HasSubstr("exchange of"));
}

TEST(LayoutAdvice, KeepsThemWholeWhenTooFewForTheLargestOneBoundsEveryLayout) {
  const Advice advice = recommend(plans_of_equal(40, 64)).value();
  EXPECT_EQ(advice.layout, Layout::kWholeMatrices);
  EXPECT_THAT(advice.reason, HasSubstr("fewer matrices than ranks"));
}

TEST(LayoutAdvice, SaysThatWithoutMatricesItMakesNoDifference) {
  EXPECT_THAT(recommend(plans_of_equal(4, 8, "adamw")).value().reason, HasSubstr("no matrices"));
}

TEST(LayoutAdvice, NeedsThePlansItComparesAndIsSilentWithoutThem) {
  const std::vector<PlanReport> reports = plans_of_equal(4, 2);
  EXPECT_FALSE(recommend(std::span{reports}.first(1)).has_value());
}

TEST(LayoutComparison, CountsRepeatedWorkAgainstTheWorkDoneOnce) {
  const std::vector<PlanReport> reports = plans_of_equal(8, 4);
  const LayoutSummary whole = summarise(reports[0]);
  const LayoutSummary replicated = summarise(reports[4]);
  EXPECT_DOUBLE_EQ(whole.newton_schulz, whole.newton_schulz_ideal);
  EXPECT_DOUBLE_EQ(replicated.newton_schulz_ideal, whole.newton_schulz_ideal);
  EXPECT_DOUBLE_EQ(replicated.repeated, 4);
  EXPECT_EQ(whole.exchange, 0);
  EXPECT_GT(summarise(reports[3]).exchange, 0);
}

TEST(LayoutComparison, MarksTheAdvisedLayoutAndFitsATerminal) {
  std::istringstream text{compare(plans_of_equal(16, 8))};
  std::string line;
  int marked = 0;
  while (std::getline(text, line)) {
    EXPECT_LE(line.size(), 100U) << line;
    marked += line.starts_with("* whole") ? 1 : 0;
  }
  EXPECT_EQ(marked, 2);  // the row, and the sentence that says why
}

}  // namespace
}  // namespace muster::cli
