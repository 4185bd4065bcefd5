#include "src/routing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace muster::optimizer {
namespace {

using ::testing::HasSubstr;

const std::vector<RouteRule> kRules{
    {"*.norm", Rule::kAdamW, "norm", 0.0, 1.0},
    {"layers.*.w*", Rule::kMuon, "hidden", 0.1, 1.0},
    {"unused.*", Rule::kAdamW, "unused", 0.0, 1.0},
    {"embedding", Rule::kAdamW, "embedding", 0.0, 0.5},
};

Status failure(std::vector<ParameterSpec> specs) {
  return route(std::move(specs), kRules).status();
}

TEST(Routing, MatchesStarsAnywhere) {
  EXPECT_TRUE(matches("layers.*.wq", "layers.12.wq"));
  EXPECT_TRUE(matches("*", ""));
  EXPECT_TRUE(matches("a*b*c", "a-b-b-c"));
  EXPECT_TRUE(matches("**x", "x"));
  EXPECT_FALSE(matches("a*b", "a-b-c"));
  EXPECT_FALSE(matches("layers", "layers.0"));
  EXPECT_FALSE(matches("", "x"));
  EXPECT_TRUE(matches("*abab", "aababab"));
}

TEST(Routing, TakesTheFirstRuleThatMatches) {
  const Routing routing = route({{"layers.0.w.norm", {4}, Placement::kReplicated}}, kRules).value();
  EXPECT_EQ(routing.parameters[0].route.group, "norm");
}

TEST(Routing, NumbersOnlyGroupsThatHaveParametersInTheOrderOfTheRules) {
  const Routing routing = route(
                              {{"embedding", {4, 2}, Placement::kReplicated},
                               {"layers.0.wq", {2, 2}, Placement::kReplicated}},
                              kRules)
                              .value();
  EXPECT_EQ(routing.group_names, (std::vector<std::string>{"hidden", "embedding"}));
  EXPECT_EQ(routing.parameters[0].group_index, 1);
}

TEST(Routing, RefusesAParameterWithoutARouteByName) {
  EXPECT_THAT(
      failure({{"head.bias", {4}, Placement::kReplicated}}).message(),
      HasSubstr("'head.bias' matches no route"));
}

TEST(Routing, RefusesMuonOnAVectorByName) {
  const Status status = failure({{"layers.0.wbias", {4}, Placement::kReplicated}});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("'layers.0.wbias' of shape [4] is routed to Muon"));
}

TEST(Routing, RefusesMuonOnFourDimensions) {
  EXPECT_THAT(
      failure({{"layers.0.w", {1, 2, 3, 4}, Placement::kReplicated}}).message(),
      HasSubstr("[1, 2, 3, 4] is routed to Muon"));
}

TEST(Routing, RefusesANameUsedTwice) {
  EXPECT_THAT(
      failure(
          {{"embedding", {4}, Placement::kReplicated}, {"embedding", {5}, Placement::kReplicated}})
          .message(),
      HasSubstr("'embedding' is used twice"));
}

TEST(Routing, RefusesAnEmptyDimension) {
  EXPECT_THAT(
      failure({{"embedding", {4, 0}, Placement::kReplicated}}).message(),
      HasSubstr("'embedding' has shape [4, 0]"));
}

TEST(Routing, HashesDifferWithShapesAndHyperparameters) {
  const Routing one = route({{"embedding", {4}, Placement::kReplicated}}, kRules).value();
  const Routing other = route({{"embedding", {5}, Placement::kReplicated}}, kRules).value();
  OptimizerOptions options;
  OptimizerOptions slower;
  slower.schedule.learning_rate = 5e-4;
  EXPECT_EQ(plan_hash(one, options), plan_hash(one, options));
  EXPECT_NE(plan_hash(one, options), plan_hash(other, options));
  EXPECT_NE(plan_hash(one, options), plan_hash(one, slower));
}

TEST(Routing, RefusesHyperparametersThatCannotWorkByName) {
  OptimizerOptions options;
  EXPECT_TRUE(validate(options).ok());
  options.adamw.beta2 = 1.0;
  EXPECT_THAT(validate(options).message(), HasSubstr("adamw.beta2"));
  options = {};
  options.muon.newton_schulz_steps = 0;
  EXPECT_THAT(validate(options).message(), HasSubstr("muon.newton_schulz_steps"));
  options = {};
  options.schedule.learning_rate = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(validate(options).message(), HasSubstr("schedule.learning_rate"));
  options = {};
  options.routes = {{"a*", Rule::kAdamW, "g", -0.1, 1.0}};
  EXPECT_THAT(validate(options).message(), HasSubstr("route 'a*'"));
}

}  // namespace
}  // namespace muster::optimizer
