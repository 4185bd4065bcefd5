// SPDX-License-Identifier: Apache-2.0
// QK-clip through an optimizer: float weights, rows owned by any rank, and refusals.
#include "tests/support/random_values.h"
#include "tests/unit/optimizer/ranks.h"

#include <muster/kernels/low_precision.h>
#include <muster/optimizer/qk_clip.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace muster::optimizer {
namespace {

using ::testing::HasSubstr;

constexpr int kHeads = 3;
constexpr int kHeadDim = 4;
constexpr int kInputs = 10;
constexpr int kClipTokens = 9;

AttentionLayer layer() {
  return {0, kHeads, kHeadDim, "wq", "wk"};
}

// The largest q . k per head over all pairs of the rows of x, in double.
std::vector<double> head_maxima(
    std::span<const float> wq, std::span<const float> wk, const std::vector<double>& x) {
  const auto project = [&](std::span<const float> w, std::size_t row, std::size_t token) {
    double sum = 0;
    for (std::size_t i = 0; i < kInputs; ++i) {
      sum += static_cast<double>(w[row * kInputs + i]) * x[token * kInputs + i];
    }
    return sum;
  };
  std::vector<double> maxima(kHeads, -1e300);
  for (std::size_t head = 0; head < kHeads; ++head) {
    for (std::size_t q = 0; q < kClipTokens; ++q) {
      for (std::size_t k = 0; k < kClipTokens; ++k) {
        double logit = 0;
        for (std::size_t row = head * kHeadDim; row < (head + 1) * kHeadDim; ++row) {
          logit += project(wq, row, q) * project(wk, row, k);
        }
        maxima[head] = std::max(maxima[head], logit);
      }
    }
  }
  return maxima;
}

struct ClipRun {
  std::vector<double> before;
  std::vector<double> after;
};

// Random projections with head 1 made loud, clipped at `tau` by ranks that route them to `rule`.
ClipRun clip(comm::Communicator& world, Rule rule, double tau) {
  OptimizerOptions options;
  options.routes = {{"*", rule, "attention", 0.0, 1.0}};
  const std::vector<std::int64_t> shape{kHeads * kHeadDim, kInputs};
  const auto optimizer = make_optimizer(
      {{"wq", shape, Placement::kReplicated}, {"wk", shape, Placement::kReplicated}},
      options,
      world);
  Random random{23};
  for (Parameter& parameter : optimizer->parameters()) {
    for (std::size_t i = 0; i < parameter.value.size(); ++i) {
      const bool loud = i / (kHeadDim * kInputs) == 1;
      parameter.value[i] = static_cast<float>(random.normal() * (loud ? 8.0 : 1.0));
    }
  }
  const std::vector<double> x = test::normal_values(random, kClipTokens * kInputs);
  Parameter& wq = *optimizer->find("wq");
  Parameter& wk = *optimizer->find("wk");
  ClipRun run;
  run.before = head_maxima(wq.value, wk.value, x);
  const auto scales = head_scales(layer(), qk_clip_gammas(run.before, tau));
  EXPECT_TRUE(optimizer->scale_heads(scales).ok());
  EXPECT_TRUE(optimizer->gather_parameters(soon()).ok());
  run.after = head_maxima(wq.value, wk.value, x);
  return run;
}

void expect_only_the_loud_head_clipped(const ClipRun& run, double tau) {
  ASSERT_GT(run.before[1], tau);
  EXPECT_NEAR(run.after[1], tau, tau * 1e-6);  // Two float roundings per row, 2^-23 relative.
  EXPECT_EQ(run.after[0], run.before[0]);
  EXPECT_EQ(run.after[2], run.before[2]);
}

TEST(QkClip, MakesTheLogitOfTheSameWeightsExactlyTau) {
  run_ranks(1, [](comm::Communicator& world) {
    expect_only_the_loud_head_clipped(clip(world, Rule::kMuon, 1000.0), 1000.0);
  });
}

TEST(QkClip, ReachesEveryRankWhoeverOwnsTheRows) {
  for (const Rule rule : {Rule::kMuon, Rule::kAdamW}) {
    for (const int ranks : {2, 3, 5}) {
      run_ranks(ranks, [rule](comm::Communicator& world) {
        expect_only_the_loud_head_clipped(clip(world, rule, 1000.0), 1000.0);
      });
    }
  }
}

struct Placement16 {
  Layout layout;
  DType dtype;
};

class QkClipOfMasters : public ::testing::TestWithParam<Placement16> {};

std::vector<float> forward_values(const Parameter& parameter) {
  std::vector<float> values{parameter.value.begin(), parameter.value.end()};
  if (!parameter.value16.empty()) {
    values.resize(parameter.value16.size());
    kernels::widen(parameter.spec.dtype, parameter.value16, values);
  }
  return values;
}

// Rows of a head may be stored by several ranks, as fp32 masters and as 16-bit copies: both are
// scaled, so that the next update, which rounds the master to the copy, does not undo the clip.
TEST_P(QkClipOfMasters, ScalesMasterAndCopyAlikeInEveryLayout) {
  for (const int ranks : {1, 2, 3, 7}) {
    run_ranks(ranks, [ranks](comm::Communicator& world) {
      OptimizerOptions options;
      options.routes = {
          {"bias", Rule::kSgd, "vectors", 0.0, 1.0}, {"*", Rule::kMuon, "matrices", 0.0, 1.0}};
      options.layout = GetParam().layout;
      options.cut_granularity = 8;
      std::vector<ParameterSpec> specs{{"wq", {12, 10}}, {"wk", {12, 10}}, {"bias", {12}}};
      for (ParameterSpec& spec : specs) {
        spec.dtype = GetParam().dtype;
      }
      const auto optimizer = make_optimizer(specs, options, world);
      Random random{29};
      std::vector<std::vector<float>> before;
      for (std::size_t p = 0; p < 3; ++p) {
        const auto values = test::normal_values<float>(random, p < 2 ? 120 : 12);
        ASSERT_TRUE(optimizer->set_values(p, values).ok());
        before.push_back(forward_values(optimizer->parameters()[p]));
      }
      AttentionLayer layer{0, 3, 4, "wq", "wk"};
      layer.query_bias = "bias";
      // sqrt(1/16): exact in every format.
      const auto scales = head_scales(layer, std::vector<double>{1.0, 1.0 / 16, 1.0});
      ASSERT_TRUE(optimizer->scale_heads(scales).ok());
      ASSERT_TRUE(optimizer->gather_parameters(soon()).ok());
      const auto expect_scaled = [&](const char* when) {
        for (std::size_t p = 0; p < 3; ++p) {
          const std::vector<float> after = forward_values(optimizer->parameters()[p]);
          for (std::size_t i = 0; i < after.size(); ++i) {
            const bool loud = i / (p < 2 ? 10 : 1) / 4 == 1;
            EXPECT_EQ(after[i], before[p][i] * (loud ? 0.25F : 1.0F))
                << when << ", " << ranks << " ranks, parameter " << p << ", element " << i;
          }
        }
      };
      expect_scaled("after the clip");
      ASSERT_TRUE(optimizer->reduce_gradients(soon()).ok());
      ASSERT_TRUE(optimizer->apply(StepDecision{}, soon()).ok());  // At rate 0: rounds masters.
      ASSERT_TRUE(optimizer->gather_parameters(soon()).ok());
      expect_scaled("after the next update");
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    LayoutsAndTypes,
    QkClipOfMasters,
    ::testing::Values(
        Placement16{Layout::kWholeMatrices, DType::kBFloat16},
        Placement16{Layout::kFlatRedundant, DType::kBFloat16},
        Placement16{Layout::kFlatOwner, DType::kFloat16},
        Placement16{Layout::kRowShards, DType::kBFloat16},
        Placement16{Layout::kReplicated, DType::kFloat16},
        Placement16{Layout::kWholeMatrices, DType::kFloat32},
        Placement16{Layout::kFlatRedundant, DType::kFloat32},
        Placement16{Layout::kFlatOwner, DType::kFloat32},
        Placement16{Layout::kRowShards, DType::kFloat32},
        Placement16{Layout::kReplicated, DType::kFloat32}));

TEST(QkClip, LeavesOptimizerStatesAlone) {
  run_ranks(1, [](comm::Communicator& world) {
    OptimizerOptions options;
    options.routes = {{"wq", Rule::kMuon, "a", 0.0, 1.0}, {"wk", Rule::kAdamW, "b", 0.0, 1.0}};
    const auto optimizer = make_optimizer({{"wq", {12, 4}}, {"wk", {12, 4}}}, options, world);
    for (Parameter& parameter : optimizer->parameters()) {
      std::fill(parameter.gradient.begin(), parameter.gradient.end(), 0.5F);
    }
    ASSERT_TRUE(optimizer->apply(StepDecision{}, soon()).ok());
    const auto states = [&] {
      std::vector<std::vector<std::byte>> bytes;
      for (const TensorPiece& tensor : optimizer->state()) {
        if (!tensor.name.starts_with("param/")) {
          bytes.emplace_back(tensor.data.begin(), tensor.data.end());
        }
      }
      return bytes;
    };
    const auto before = states();
    ASSERT_EQ(before.size(), 3U);  // Muon's momentum, Adam's m and v.
    ASSERT_TRUE(
        optimizer
            ->scale_heads(head_scales({0, 3, 4, "wq", "wk"}, std::vector<double>{0.5, 0.5, 0.5}))
            .ok());
    EXPECT_EQ(states(), before);
  });
}

TEST(QkClip, RefusesScalesThatDoNotFitAndChangesNothing) {
  run_ranks(1, [](comm::Communicator& world) {
    OptimizerOptions options;
    options.routes = {{"*", Rule::kAdamW, "attention", 0.0, 1.0}};
    const auto optimizer = make_optimizer(
        {{"wq", {4, 2}, Placement::kReplicated}, {"bias", {4}, Placement::kReplicated}},
        options,
        world);
    std::fill_n(optimizer->find("wq")->value.begin(), 8, 1.0F);
    const auto refusal = [&](HeadScale bad) {
      const std::vector<HeadScale> scales{{"wq", 0, 4, 0.5}, std::move(bad)};
      return optimizer->scale_heads(scales).message();
    };
    EXPECT_THAT(refusal({"wz", 0, 1, 0.5}), HasSubstr("no parameter 'wz'"));
    EXPECT_THAT(refusal({"wq", 3, 5, 0.5}), HasSubstr("[3, 5) must be inside parameter 'wq'"));
    EXPECT_THAT(refusal({"wq", 0, 1, 0.0}), HasSubstr("must be positive and finite"));
    EXPECT_EQ(optimizer->find("wq")->value[0], 1.0F);
  });
}

// Layers over wq [12, 4], wk [12, 4], wkv [6, 4], fused [36, 4], bias [12].
class AttentionLayerCheck : public ::testing::Test {
 protected:
  std::string refusal(const AttentionLayer& layer) {
    std::string message;
    run_ranks(1, [&](comm::Communicator& world) {
      OptimizerOptions options;
      options.routes = {{"*", Rule::kAdamW, "attention", 0.0, 1.0}};
      const auto optimizer = make_optimizer(
          {{"wq", {12, 4}}, {"wk", {12, 4}}, {"wkv", {6, 4}}, {"fused", {36, 4}}, {"bias", {12}}},
          options,
          world);
      message = check_attention_layer(layer, *optimizer).message();
    });
    return message;
  }

  AttentionLayer layer_{7, 4, 3, "wq", "wk"};
};

TEST_F(AttentionLayerCheck, AcceptsWhatFits) {
  EXPECT_EQ(refusal(layer_), "");
  layer_.query_bias = "bias";
  EXPECT_EQ(refusal(layer_), "");
  AttentionLayer grouped{0, 4, 3, "wq", "wkv"};
  grouped.kind = AttentionKind::kGroupedQuery;
  grouped.key_heads = 2;
  EXPECT_EQ(refusal(grouped), "");
  AttentionLayer fused{0, 4, 3, "fused", "fused"};
  fused.key_row_begin = 12;
  EXPECT_EQ(refusal(fused), "");
}

TEST_F(AttentionLayerCheck, RefusesANormThatCancelsEveryFactor) {
  layer_.qk_norm = true;
  EXPECT_THAT(refusal(layer_), HasSubstr("attention layer 7: queries or keys are normalised"));
  EXPECT_THAT(refusal(layer_), HasSubstr("QK-clip would do nothing"));
}

TEST_F(AttentionLayerCheck, RefusesHeadsThatDoNotDivideIntoGroups) {
  layer_.kind = AttentionKind::kGroupedQuery;
  EXPECT_THAT(refusal(layer_), HasSubstr("4 heads do not divide into groups of 0 key heads"));
  layer_.key_heads = 3;
  EXPECT_THAT(refusal(layer_), HasSubstr("groups of 3 key heads"));
}

TEST_F(AttentionLayerCheck, RefusesAlphaOutsideItsRange) {
  for (const double alpha : {-0.1, 1.1, std::nan("")}) {
    layer_.alpha = alpha;
    EXPECT_THAT(refusal(layer_), HasSubstr("alpha must be in [0, 1]"));
  }
}

TEST_F(AttentionLayerCheck, RefusesParametersThatAreNotThereOrNotMatrices) {
  layer_.key_parameter = "wz";
  EXPECT_THAT(refusal(layer_), HasSubstr("no parameter 'wz'"));
  layer_.key_parameter = "bias";
  EXPECT_THAT(refusal(layer_), HasSubstr("'bias' must be a matrix"));
  layer_.key_parameter = "wk";
  layer_.key_bias = "wk";
  EXPECT_THAT(refusal(layer_), HasSubstr("'wk' must be a vector"));
}

TEST_F(AttentionLayerCheck, RefusesRowsThatOverrunTheirProjection) {
  layer_.key_parameter = "wkv";
  EXPECT_THAT(refusal(layer_), HasSubstr("rows [6, 9) of a head must be inside parameter 'wkv'"));
  EXPECT_THAT(refusal(layer_), HasSubstr("which has 6 rows"));
}

TEST_F(AttentionLayerCheck, RefusesRowsThatNoHeadUses) {
  layer_.heads = 3;
  EXPECT_THAT(refusal(layer_), HasSubstr("'wq' must have 9 rows"));
}

TEST_F(AttentionLayerCheck, RefusesAFusedProjectionWhoseHeadsOverlap) {
  layer_.query_parameter = "fused";
  layer_.key_parameter = "fused";
  EXPECT_THAT(refusal(layer_), HasSubstr("overlap"));
  layer_.key_row_begin = 11;
  EXPECT_THAT(refusal(layer_), HasSubstr("overlap at row 11"));
}

TEST_F(AttentionLayerCheck, RefusesLatentAttentionThatDoesNotFit) {
  AttentionLayer latent;
  latent.heads = 3;
  latent.query_parameter = "wq";
  latent.key_parameter = "wk";
  latent.kind = AttentionKind::kMultiHeadLatent;
  EXPECT_THAT(refusal(latent), HasSubstr("nope_dim above 0"));
  latent.nope_dim = 2;
  latent.rope_dim = 2;
  latent.value_dim = 2;
  EXPECT_EQ(refusal(latent), "");
  latent.value_dim = 1;
  EXPECT_THAT(refusal(latent), HasSubstr("'wk' must have 9 rows"));
  latent.value_dim = 3;
  EXPECT_THAT(refusal(latent), HasSubstr("'wk' must have 15 rows"));
}

}  // namespace
}  // namespace muster::optimizer
