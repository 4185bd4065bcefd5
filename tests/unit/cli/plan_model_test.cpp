// SPDX-License-Identifier: Apache-2.0
// The model file and the presets of `muster plan optimizer`.
#include "cli/plan/model.h"

#include <muster/optimizer/plan.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace muster::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr const char* kRoutes = "routes: [{pattern: '*', rule: adamw}]\n";

PlannedModel parsed(const std::string& text) {
  return parse_model(text, "model.yaml").value();
}

std::string refusal(const std::string& text) {
  const Status status = parse_model(text, "model.yaml").status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), StartsWith("model.yaml:"));
  return status.message();
}

TEST(ModelFile, RepeatsAGroupLayerByLayerAndASingleParameterInARow) {
  const PlannedModel model = parsed(
      std::string{"parameters:\n"
                  "  - count: 2\n"
                  "    parameters:\n"
                  "      - {name: 'layers.{i}.wq', shape: [4, 4]}\n"
                  "      - {name: 'layers.{i}.wk', shape: [2, 4]}\n"
                  "  - {name: 'head.{i}', shape: [8], count: 2}\n"} +
      kRoutes);
  std::vector<std::string> names;
  for (const auto& spec : model.specs) {
    names.push_back(spec.name);
  }
  EXPECT_THAT(
      names,
      ElementsAre("layers.0.wq", "layers.0.wk", "layers.1.wq", "layers.1.wk", "head.0", "head.1"));
}

TEST(ModelFile, RefusesWhatWouldSilentlyDoNothing) {
  const std::string one = "parameters:\n  - {name: w, shape: [4, 4]}\n";
  EXPECT_EQ(
      refusal(one + "---\n" + one), "model.yaml:4: a second document would not be read; join them");
  EXPECT_EQ(refusal("ranks: 2\nranks: 4\n" + one), "model.yaml:2: 'ranks' is given twice");
  EXPECT_THAT(refusal("# nothing\n"), StartsWith("model.yaml:1: "));
  EXPECT_THAT(refusal("ranks: 010\n" + one), HasSubstr("without leading zeros, got 010"));
}

TEST(ModelFile, ReadsEveryKeyOfAParameterAndARoute) {
  const PlannedModel model = parsed(
      "model: tiny\n"
      "ranks: 4\n"
      "expert_ranks: 2\n"
      "layout: row_shards\n"
      "bucket_mib: 3\n"
      "exchange_mib: 5\n"
      "cut_granularity: 512\n"
      "parameters:\n"
      "  - {name: w, shape: [4, 8, 6], dtype: bf16, placement: expert,\n"
      "     blocks: {rows: [2], repeats: 4, merge_repeats: true}}\n"
      "routes:\n"
      "  - {pattern: w, rule: muon, group: g, weight_decay: 0.1, lr_scale: 2, state_type: int8}\n"
      "muon: {set: you, steps: 7, scale: keller, momentum_form: ema, form: gram, precision: "
      "bf16}\n");
  EXPECT_EQ(model.name, "tiny");
  EXPECT_EQ(model.ranks, 4);
  EXPECT_EQ(model.expert_ranks, 2);
  EXPECT_EQ(model.options.layout, optimizer::Layout::kRowShards);
  EXPECT_EQ(model.options.bucket_bytes, std::size_t{3} << 20);
  EXPECT_EQ(model.options.exchange_bytes, std::size_t{5} << 20);
  EXPECT_EQ(model.options.cut_granularity, 512);
  const optimizer::ParameterSpec& spec = model.specs.at(0);
  EXPECT_THAT(spec.shape, ElementsAre(4, 8, 6));
  EXPECT_EQ(spec.dtype, DType::kBFloat16);
  EXPECT_EQ(spec.placement, optimizer::Placement::kExpert);
  EXPECT_EQ(spec.blocks, (optimizer::MatrixBlocks{{2}, 4, true}));
  const optimizer::RouteRule& route = model.options.routes.at(0);
  EXPECT_EQ(route.rule, optimizer::Rule::kMuon);
  EXPECT_EQ(route.group, "g");
  EXPECT_EQ(route.weight_decay, 0.1);
  EXPECT_EQ(route.learning_rate_scale, 2);
  EXPECT_EQ(route.state_type, optimizer::StateType::kInt8Block);
  const optimizer::MuonOptions& muon = model.options.muon;
  EXPECT_EQ(muon.newton_schulz_set, optimizer::NewtonSchulzSet::kYou);
  EXPECT_EQ(muon.newton_schulz_steps, 7);
  EXPECT_EQ(muon.scale, optimizer::MuonScale::kKeller);
  EXPECT_EQ(muon.momentum_form, optimizer::MomentumForm::kEma);
  EXPECT_EQ(muon.form, kernels::NewtonSchulzForm::kGram);
  EXPECT_EQ(muon.precision, DType::kBFloat16);
}

TEST(ModelFile, JsonIsReadToo) {
  const PlannedModel model = parsed(
      R"({"parameters": [{"name": "w", "shape": [4, 4]}], "routes": [{"pattern": "*", "rule": "sgd"}]})");
  EXPECT_EQ(model.specs.size(), 1U);
  EXPECT_EQ(model.name, "model.yaml");
}

TEST(ModelFile, NamesTheLineAndTheKnownKeysOfATypingMistake) {
  const std::string message = refusal(
      std::string{"parameters:\n  - {name: w, shape: [4]}\n  - {name: v, shap: [4]}\n"} + kRoutes);
  EXPECT_THAT(message, StartsWith("model.yaml:3: 'shap' is not a key of a parameter"));
  EXPECT_THAT(message, HasSubstr("known are name, shape"));
}

TEST(ModelFile, RefusesWhatCannotBeMeant) {
  const auto with = [](const std::string& parameter) {
    return refusal("parameters:\n  - " + parameter + "\n" + kRoutes);
  };
  EXPECT_THAT(with("{name: w}"), HasSubstr("needs a name and a shape"));
  EXPECT_THAT(with("{name: w, shape: 4x4}"), HasSubstr("'shape' must be a list"));
  EXPECT_THAT(with("{name: w, shape: [4], count: 2}"), HasSubstr("'w' is repeated"));
  EXPECT_THAT(with("{name: 'w{i}', shape: [4], count: 0}"), HasSubstr("'count' must be from 1"));
  EXPECT_THAT(with("{name: 'w{i}', shape: [4], count: 2000000}"), HasSubstr("from 1 to 1000000"));
  EXPECT_THAT(with("{name: w, shape: [4], dtype: fp8}"), HasSubstr("known are fp32, bf16, fp16"));
  EXPECT_THAT(with("{name: w, shape: [4], placement: here}"), HasSubstr("replicated, expert"));
  EXPECT_THAT(with("just text"), HasSubstr("must be a map"));
  EXPECT_THAT(refusal(kRoutes), HasSubstr("needs a list of parameters"));
  EXPECT_THAT(
      refusal("parameters: []\nroutes: [{pattern: a, rule: lion}]\n"),
      HasSubstr("unknown update rule 'lion'"));
  EXPECT_THAT(refusal("parameters: [\n"), HasSubstr("not YAML or JSON"));
  EXPECT_THAT(refusal("ranks: 0\nparameters: []\nroutes: []\n"), HasSubstr("'ranks' must be"));
}

TEST(ModelFile, RefusesCoefficientsMadeForAnotherNormalisation) {
  EXPECT_THAT(
      refusal("parameters: []\nroutes: []\nmuon: {set: aol}\n"), HasSubstr("set 'aol' is refused"));
}

TEST(ModelFile, DividesTheExpertsOverExpertParallelRanks) {
  PlannedModel model = parsed(
      std::string{"parameters: [{name: w, shape: [12, 4, 4], placement: expert}]\n"} + kRoutes);
  EXPECT_EQ(local_specs(model, 8, 2).value().at(0).shape.front(), 3);
  EXPECT_EQ(local_specs(model, 8, 8).value().at(0).shape.front(), 12);
  const Status status = local_specs(model, 8, 1).status();
  EXPECT_THAT(
      status.message(),
      HasSubstr("the 12 experts of parameter 'w' do not divide over 8 expert-parallel ranks"));
}

TEST(ModelFile, TheExampleOfMoeLmIsPlannable) {
  const auto model = read_model(MUSTER_EXAMPLE_PLAN);
  ASSERT_TRUE(model) << model.status().message();
  const auto specs = local_specs(*model, model->ranks, model->expert_ranks);
  ASSERT_TRUE(specs) << specs.status().message();
  const auto report =
      optimizer::report_plan(*specs, model->options, model->ranks, model->expert_ranks);
  ASSERT_TRUE(report) << report.status().message();
  EXPECT_EQ(report->regions.size(), 3U);
}

TEST(Presets, ArePlannableAsTheyAre) {
  for (const Preset& preset : presets()) {
    SCOPED_TRACE(preset.name);
    const PlannedModel model = parse_model(std::string{preset.text}, "preset").value();
    EXPECT_EQ(model.name, preset.name);
    const int expert_ranks = model.expert_ranks != 0 ? model.expert_ranks : model.ranks;
    const auto specs = local_specs(model, model.ranks, expert_ranks);
    ASSERT_TRUE(specs) << specs.status().message();
    const auto report = optimizer::report_plan(*specs, model.options, model.ranks, expert_ranks);
    ASSERT_TRUE(report) << report.status().message();
  }
}

TEST(Presets, Dense7bIsTheWorkedExampleOfTheDocumentation) {
  const PlannedModel model =
      parse_model(std::string{find_preset("dense_7b").value().text}, "preset").value();
  const auto report = optimizer::report_plan(model.specs, model.options, 64, 64).value();
  const auto matrices =
      std::find_if(report.regions.begin(), report.regions.end(), [](const auto& region) {
        return region.matrices > 0;
      });
  ASSERT_NE(matrices, report.regions.end());
  EXPECT_EQ(matrices->matrices, 224);
  EXPECT_EQ(matrices->elements, 6979321856);
}

TEST(Presets, AnUnknownNameIsAnsweredWithTheKnownOnes) {
  EXPECT_THAT(find_preset("gpt").status().message(), HasSubstr("there are dense_7b, moe"));
}

}  // namespace
}  // namespace muster::cli
