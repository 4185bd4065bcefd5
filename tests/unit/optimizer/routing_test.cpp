// SPDX-License-Identifier: Apache-2.0
#include "optimizer/src/routing/routing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace muster::optimizer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<RouteRule> kRules{
    {"*.norm", Rule::kAdamW, "norm", 0.0, 1.0},
    {"layers.*.w*", Rule::kMuon, "hidden", 0.1, 1.0},
    {"unused.*", Rule::kAdamW, "unused", 0.0, 1.0},
    {"embedding", Rule::kAdamW, "embedding", 0.0, 0.5},
    {"experts.*", Rule::kMuon, "experts", 0.1, 1.0},
};

ParameterSpec routed_spec(const std::string& name, std::vector<std::int64_t> shape) {
  ParameterSpec spec;
  spec.name = name;
  spec.shape = std::move(shape);
  return spec;
}

ParameterSpec with_blocks(ParameterSpec spec, MatrixBlocks blocks) {
  spec.blocks = std::move(blocks);
  return spec;
}

ParameterSpec expert(ParameterSpec spec) {
  spec.placement = Placement::kExpert;
  return spec;
}

std::string refusal(const ParameterSpec& spec) {
  const Status status = route({spec}, kRules).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
  return status.message();
}

RoutedParameter routed_one(const ParameterSpec& spec) {
  return route({spec}, kRules).value().parameters.at(0);
}

std::string unused_refusal(const std::vector<RouteRule>& rules) {
  const auto routing =
      route({routed_spec("layer.weight", {8, 8}), routed_spec("layer.bias", {8})}, rules);
  EXPECT_TRUE(routing) << routing.status().message();
  return check_routes(*routing, rules).message();
}

TEST(Routing, NamesAPatternThatMatchesNoParameter) {
  const std::string typo =
      unused_refusal({{"*.wieght", Rule::kMuon, "m"}, {"*", Rule::kAdamW, "r"}});
  EXPECT_THAT(typo, HasSubstr("'*.wieght' to muon matches no parameter"));
  EXPECT_THAT(typo, HasSubstr("optional"));
  EXPECT_EQ(unused_refusal({{"*.weight", Rule::kMuon, "m"}, {"*", Rule::kAdamW, "r"}}), "");
}

TEST(Routing, NamesAPatternThatAnEarlierOneLeavesNothingTo) {
  const std::string late =
      unused_refusal({{"*", Rule::kAdamW, "r"}, {"*.weight", Rule::kMuon, "m"}});
  EXPECT_THAT(late, HasSubstr("'layer.weight' is taken by the earlier route '*'"));
}

TEST(Routing, TakesAnOptionalPatternAndAFallbackWithoutParameters) {
  RouteRule experts{"*.experts.*", Rule::kMuon, "e"};
  experts.optional = true;
  EXPECT_EQ(
      unused_refusal(
          {experts,
           {"*.weight", Rule::kMuon, "m"},
           {"*.bias", Rule::kAdamW, "b"},
           {"*", Rule::kAdamW, "r"}}),
      "");
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
  EXPECT_EQ(routed_one(routed_spec("layers.0.w.norm", {4})).route.group, "norm");
}

TEST(Routing, NumbersOnlyGroupsThatHaveParametersInTheOrderOfTheRules) {
  const Routing routing =
      route({routed_spec("embedding", {4, 2}), routed_spec("layers.0.wq", {2, 2})}, kRules).value();
  EXPECT_THAT(routing.group_names, ElementsAre("hidden", "embedding"));
  EXPECT_EQ(routing.parameters[0].group_index, 1);
}

TEST(Routing, NoParametersAreNoGroups) {
  const Routing routing = route({}, kRules).value();
  EXPECT_TRUE(routing.parameters.empty());
  EXPECT_TRUE(routing.group_names.empty());
}

TEST(Routing, RefusesAParameterWithoutARouteInsteadOfGuessingFromItsShape) {
  EXPECT_THAT(
      refusal(routed_spec("lm_head", {32000, 64})),
      HasSubstr("'lm_head' of shape [32000, 64] matches no route"));
}

TEST(Routing, RefusesMuonOnAVectorByName) {
  const std::string message = refusal(routed_spec("layers.0.wbias", {4}));
  EXPECT_THAT(message, HasSubstr("'layers.0.wbias' of shape [4] is routed to Muon"));
  EXPECT_THAT(message, HasSubstr("route it to AdamW"));
}

TEST(Routing, RefusesMuonOnFourDimensionsWithAWayOut) {
  EXPECT_THAT(
      refusal(routed_spec("layers.0.wconv", {1, 2, 3, 4})),
      HasSubstr("merge its leading dimensions if each slice is a matrix"));
}

TEST(Routing, TakesThreeDimensionsAsAStackAndNeverAsOneMatrix) {
  const RoutedParameter stack = routed_one(expert(routed_spec("experts.up", {6, 8, 4})));
  EXPECT_EQ(stack.matrices, 6U);
  EXPECT_EQ(stack.rows, 8);
  EXPECT_EQ(stack.cols, 4);
  EXPECT_EQ(stack.unit, 32U);
}

TEST(Routing, RefusesAnExpertAxisAsAMatrixDimension) {
  const std::string message = refusal(expert(routed_spec("experts.bias", {6, 8})));
  EXPECT_THAT(message, HasSubstr("'experts.bias' of shape [6, 8]"));
  EXPECT_THAT(message, HasSubstr("[experts, rows, cols]"));
}

TEST(Routing, RefusesANameUsedTwiceOrEmpty) {
  const Status twice =
      route({routed_spec("embedding", {4}), routed_spec("embedding", {5})}, kRules).status();
  EXPECT_THAT(twice.message(), HasSubstr("'embedding' is used twice"));
  EXPECT_THAT(refusal(routed_spec("", {4})), HasSubstr("empty name"));
}

TEST(Routing, RefusesDimensionsBelowOneAndSizesBeyondMemory) {
  EXPECT_THAT(refusal(routed_spec("embedding", {4, 0})), HasSubstr("'embedding' has shape [4, 0]"));
  const std::int64_t huge = std::int64_t{1} << 40;
  EXPECT_THAT(refusal(routed_spec("embedding", {huge, huge})), HasSubstr("more than 2^60"));
}

TEST(Routing, WithoutATableTheWholeMatrixIsOneBlock) {
  const RoutedParameter matrix = routed_one(routed_spec("layers.0.wq", {12, 5}));
  ASSERT_EQ(matrix.blocks.size(), 1U);
  EXPECT_EQ(matrix.blocks[0].rows, 12);
}

TEST(Routing, CutsAFusedProjectionAsItsTableSays) {
  const RoutedParameter fused =
      routed_one(with_blocks(routed_spec("layers.0.wqkv", {12, 5}), {{8, 2, 2}, 1, false}));
  ASSERT_EQ(fused.blocks.size(), 3U);
  EXPECT_EQ(fused.blocks[2].runs.at(0).begin, 10);
  EXPECT_EQ(fused.blocks[2].rows, 2);
}

TEST(Routing, MergesTheRepeatsOfAGroupedProjectionIntoQueriesKeysAndValues) {
  const RoutedParameter grouped =
      routed_one(with_blocks(routed_spec("layers.0.wqkv", {24, 5}), {{4, 2, 2}, 3, true}));
  ASSERT_EQ(grouped.blocks.size(), 3U);
  EXPECT_EQ(grouped.blocks[0].rows, 12);
  EXPECT_EQ(grouped.blocks[1].rows, 6);
  EXPECT_EQ(grouped.blocks[1].runs.at(2).begin, 20);
}

TEST(Routing, CutsEveryHeadWhenRepeatsAreNotMerged) {
  const RoutedParameter heads =
      routed_one(with_blocks(routed_spec("layers.0.wq", {12, 5}), {{3}, 4, false}));
  ASSERT_EQ(heads.blocks.size(), 4U);
  EXPECT_EQ(heads.blocks[3].runs.at(0).begin, 9);
}

TEST(Routing, RefusesABlockTableThatDoesNotAddUpToTheRows) {
  const ParameterSpec matrix = routed_spec("layers.0.wqkv", {12, 5});
  EXPECT_THAT(
      refusal(with_blocks(matrix, {{8, 2}, 1, false})),
      HasSubstr("'layers.0.wqkv' of shape [12, 5] has blocks of [8, 2] rows, repeated 1 times, "
                "which leave 2 of the 12 rows"));
  EXPECT_THAT(refusal(with_blocks(matrix, {{5}, 3, false})), HasSubstr("need more rows"));
  EXPECT_THAT(refusal(with_blocks(matrix, {{0, 12}, 1, false})), HasSubstr("at least 1 row"));
  EXPECT_THAT(refusal(with_blocks(matrix, {{12}, 0, false})), HasSubstr("1 repeat"));
  constexpr auto kMax = std::numeric_limits<std::int64_t>::max();
  EXPECT_THAT(refusal(with_blocks(matrix, {{kMax, kMax}, kMax, false})), HasSubstr("more rows"));
}

TEST(Routing, RefusesBlocksOnWhatMuonDoesNotMove) {
  EXPECT_THAT(
      refusal(with_blocks(routed_spec("embedding", {4, 4}), {{2}, 2, false})),
      HasSubstr("routed to adamw"));
}

TEST(Routing, KeepsSmallStatesInFullPrecision) {
  std::vector<RouteRule> rules{{"*", Rule::kAdamW, "all", 0.0, 1.0, StateType::kInt8Block}};
  const Routing routing =
      route({routed_spec("norm", {4095}), routed_spec("embedding", {64, 64})}, rules).value();
  EXPECT_EQ(routing.parameters[0].state_type, StateType::kFloat32);
  EXPECT_EQ(routing.parameters[1].state_type, StateType::kInt8Block);
}

TEST(Routing, AnExpertParameterIsCutPerExpertWhateverItsRule) {
  std::vector<RouteRule> rules{{"*", Rule::kAdamW, "all", 0.0, 1.0}};
  const Routing routing = route({expert(routed_spec("bias", {6, 8}))}, rules).value();
  EXPECT_EQ(routing.parameters[0].unit, 8U);
}

// Every hyperparameter, route and spec that ranks must agree on. Each entry changes one.
TEST(Routing, TheHashDiffersWithEverythingRanksMustAgreeOn) {
  struct Input {
    ParameterSpec spec;
    std::vector<RouteRule> rules{kRules};
    OptimizerOptions options;
  };

  using Change = void (*)(Input&);
  const std::vector<Change> changes{
      [](Input& in) { in.spec.name = "layers.1.wq"; },
      [](Input& in) {
        in.spec.shape = {6, 8};
      },
      [](Input& in) { in.spec.dtype = DType::kBFloat16; },
      [](Input& in) {
        in.spec.blocks = {{4}, 2, false};
      },
      [](Input& in) {
        in.spec.blocks = {{4}, 2, true};
      },
      [](Input& in) { in.rules[1].weight_decay = 0.2; },
      [](Input& in) { in.rules[1].learning_rate_scale = 2; },
      [](Input& in) { in.rules[1].group = "other"; },
      [](Input& in) { in.rules[1].rule = Rule::kAdam; },
      [](Input& in) { in.rules[1].state_type = StateType::kBFloat16; },
      [](Input& in) { in.options.layout = Layout::kRowShards; },
      [](Input& in) { in.options.bucket_bytes += 1; },
      [](Input& in) { in.options.exchange_bytes += 1; },
      [](Input& in) { in.options.overlap = true; },
      [](Input& in) { in.options.cut_granularity = 512; },
      [](Input& in) { in.options.seed = 1; },
      [](Input& in) { in.options.statistics = false; },
      [](Input& in) { in.options.clip_norm = 2; },
      [](Input& in) {
        in.options.clipping.groups = {{"hidden", 1.0}};
      },
      [](Input& in) { in.options.clipping.zclip.emplace(); },
      [](Input& in) { in.options.clipping.agc.emplace(); },
      [](Input& in) { in.options.loss_scale.initial = 2; },
      [](Input& in) { in.options.schedule.kind = ScheduleKind::kWsd; },
      [](Input& in) { in.options.schedule.learning_rate = 5e-4; },
      [](Input& in) { in.options.adamw.beta2 = 0.99; },
      [](Input& in) { in.options.adam.epsilon = 1e-6; },
      [](Input& in) { in.options.momentum.nesterov = true; },
      [](Input& in) { in.options.rmsprop.alpha = 0.9; },
      [](Input& in) { in.options.muon.momentum_form = MomentumForm::kEma; },
      [](Input& in) { in.options.muon.scale = MuonScale::kKeller; },
      [](Input& in) { in.options.muon.form = kernels::NewtonSchulzForm::kStandard; },
      [](Input& in) { in.options.muon.precision = DType::kBFloat16; },
      [](Input& in) { in.options.muon.polar_express_safety = 1.05; },
      [](Input& in) {
        in.options.muon.custom_coefficients = {{1.5, -0.5, 0.0}};
      },
  };
  const auto hash_of = [](const Input& input) {
    return plan_hash(route({input.spec}, input.rules).value(), input.options);
  };
  std::vector<std::uint64_t> hashes{hash_of({routed_spec("layers.0.wq", {8, 6}), kRules, {}})};
  for (std::size_t i = 0; i < changes.size(); ++i) {
    Input input{routed_spec("layers.0.wq", {8, 6}), kRules, {}};
    changes[i](input);
    const std::uint64_t hash = hash_of(input);
    EXPECT_EQ(std::count(hashes.begin(), hashes.end(), hash), 0) << "change " << i;
    EXPECT_NE(hash, 0U);
    hashes.push_back(hash);
  }
}

TEST(Routing, TheHashIsTheSameForTheSameInputBuiltInAnotherOrder) {
  std::vector<RouteRule> rules;
  for (auto rule = kRules.rbegin(); rule != kRules.rend(); ++rule) {
    rules.insert(rules.begin(), *rule);
  }
  OptimizerOptions first;
  first.layout = Layout::kFlatOwner;
  first.muon.scale = MuonScale::kKeller;
  OptimizerOptions second;
  second.muon.scale = MuonScale::kKeller;
  second.layout = Layout::kFlatOwner;
  const ParameterSpec spec = routed_spec("layers.0.wq", {8, 6});
  EXPECT_EQ(
      plan_hash(route({spec}, kRules).value(), first),
      plan_hash(route({spec}, rules).value(), second));
}

TEST(Routing, RefusesHyperparametersThatCannotWorkByName) {
  OptimizerOptions options;
  EXPECT_TRUE(validate(options).ok()) << validate(options).message();
  const auto refused = [](auto change) {
    OptimizerOptions changed;
    change(changed);
    return validate(changed).message();
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  using Options = OptimizerOptions;
  EXPECT_THAT(refused([](Options& o) { o.adamw.beta2 = 1.0; }), HasSubstr("beta2"));
  EXPECT_THAT(refused([](Options& o) { o.adam.beta1 = -1.0; }), HasSubstr("beta1"));
  EXPECT_THAT(refused([](Options& o) { o.momentum.momentum = 2; }), HasSubstr("momentum"));
  EXPECT_THAT(refused([](Options& o) { o.rmsprop.alpha = 1; }), HasSubstr("alpha"));
  EXPECT_THAT(refused([](Options& o) { o.muon.newton_schulz_steps = 0; }), HasSubstr("steps"));
  EXPECT_THAT(
      refused([nan](Options& o) { o.schedule.learning_rate = nan; }), HasSubstr("learning_rate"));
  EXPECT_THAT(refused([nan](Options& o) { o.clip_norm = nan; }), HasSubstr("clip_norm"));
  EXPECT_THAT(
      refused([](Options& o) {
        o.routes = {{"a*", Rule::kAdamW, "g", -0.1, 1.0}};
      }),
      HasSubstr("route 'a*'"));
  EXPECT_THAT(refused([](Options& o) { o.routes.resize(1); }), HasSubstr("empty pattern"));
  EXPECT_THAT(refused([](Options& o) { o.cut_granularity = 0; }), HasSubstr("cut_granularity"));
  EXPECT_THAT(refused([](Options& o) { o.exchange_bytes = 0; }), HasSubstr("exchange_bytes"));
}

TEST(Routing, RefusesCutsThatWouldSplitTheBlocksOf8BitStates) {
  OptimizerOptions options;
  options.routes = {{"*", Rule::kAdamW, "all", 0.0, 1.0, StateType::kInt8Block}};
  options.cut_granularity = 384;
  EXPECT_THAT(validate(options).message(), HasSubstr("multiple of 256"));
  options.cut_granularity = 512;
  EXPECT_TRUE(validate(options).ok());
  options.routes[0].state_type = StateType::kBFloat16;
  options.cut_granularity = 1;
  EXPECT_TRUE(validate(options).ok());
}

}  // namespace
}  // namespace muster::optimizer
