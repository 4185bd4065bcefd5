// SPDX-License-Identifier: Apache-2.0
// QK-clip without an optimizer: logits are recomputed from the scaled weights, in double.
#include "tests/support/floats.h"
#include "tests/support/random_values.h"

#include <muster/optimizer/qk_clip.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

namespace muster::optimizer {
namespace {

using muster::test::kInfinity;
using muster::test::kNan;

using ::testing::IsEmpty;

constexpr std::int64_t kIn = 10;
constexpr std::int64_t kTokens = 9;

TEST(QkClip, LeavesEverythingAtOrBelowTheThresholdAlone) {
  const std::vector<double> logits{10.0, 0.0, -5.0, 99.999, 100.0};
  EXPECT_EQ(qk_clip_gammas(logits, 100.0), (std::vector<double>{1, 1, 1, 1, 1}));
}

TEST(QkClip, BringsALogitOverTheThresholdDownToIt) {
  EXPECT_DOUBLE_EQ(qk_clip_gammas(std::vector<double>{400.0}, 100.0)[0], 0.25);
}

// A head with an infinite or NaN maximum must not be erased, nor take a loud neighbour with it.
TEST(QkClip, NeverScalesByNonFiniteMaxima) {
  const std::vector<double> logits{kInfinity, -kInfinity, kNan, 200.0, -5.0, 0.0};
  EXPECT_EQ(qk_clip_gammas(logits, 100.0), (std::vector<double>{1, 1, 1, 0.5, 1, 1}));
}

TEST(QkClip, IsOffAtThresholdZero) {
  EXPECT_EQ(qk_clip_gammas(std::vector<double>{1e6}, 0.0), std::vector<double>{1.0});
}

TEST(QkClip, WithoutALoudHeadScalesNothing) {
  const AttentionLayer layer{0, 3, 4, "wq", "wk"};
  EXPECT_THAT(head_scales(layer, std::vector<double>{1.0, 1.0, 1.0}), IsEmpty());
}

// Projections and biases by name, [rows, kIn] and [rows].
struct Weights {
  std::map<std::string, std::vector<double>> matrices;
  std::map<std::string, std::vector<double>> biases;

  void add(const std::string& name, std::int64_t rows, Random& random) {
    std::vector<double>& values = matrices[name];
    for (std::int64_t i = 0; i < rows * kIn; ++i) {
      values.push_back(random.normal());
    }
  }

  void add_bias(const std::string& name, std::int64_t rows, Random& random) {
    for (std::int64_t i = 0; i < rows; ++i) {
      biases[name].push_back(random.normal());
    }
  }

  void scale(const std::vector<HeadScale>& scales) {
    for (const HeadScale& scale : scales) {
      const bool bias = biases.contains(scale.parameter);
      std::vector<double>& values = bias ? biases[scale.parameter] : matrices.at(scale.parameter);
      const std::int64_t width = bias ? 1 : kIn;
      for (std::int64_t i = scale.row_begin * width; i < scale.row_end * width; ++i) {
        values.at(static_cast<std::size_t>(i)) *= scale.factor;
      }
    }
  }

  // Row `row` of the projection, bias included, for one token.
  [[nodiscard]] double project(
      const std::string& name,
      const std::string& bias,
      std::int64_t row,
      std::span<const double> token) const {
    double sum = bias.empty() ? 0.0 : biases.at(bias).at(static_cast<std::size_t>(row));
    for (std::int64_t i = 0; i < kIn; ++i) {
      sum += matrices.at(name).at(static_cast<std::size_t>(row * kIn + i)) *
             token[static_cast<std::size_t>(i)];
    }
    return sum;
  }
};

// One product of a query row and a key row. A head's logit is the sum over its pairs.
struct RowPair {
  std::int64_t query{0};
  std::int64_t key{0};
  bool shared_key{false};  // the key row is in "wkr", which no layer names
};

// The rows of each head, written out by hand per test rather than taken from the code under test.
using HeadPairs = std::vector<std::vector<RowPair>>;

std::vector<double> max_logits(
    const AttentionLayer& layer,
    const HeadPairs& heads,
    const Weights& weights,
    const std::vector<double>& tokens) {
  const auto token = [&tokens](std::int64_t t) {
    return std::span{tokens}.subspan(static_cast<std::size_t>(t * kIn), kIn);
  };
  std::vector<double> maxima;
  for (const std::vector<RowPair>& pairs : heads) {
    double largest = -1e300;
    for (std::int64_t q = 0; q < kTokens; ++q) {
      for (std::int64_t k = 0; k < kTokens; ++k) {
        double logit = 0;
        for (const RowPair& pair : pairs) {
          logit += weights.project(layer.query_parameter, layer.query_bias, pair.query, token(q)) *
                   (pair.shared_key
                        ? weights.project("wkr", "", pair.key, token(k))
                        : weights.project(layer.key_parameter, layer.key_bias, pair.key, token(k)));
        }
        largest = std::max(largest, logit);
      }
    }
    maxima.push_back(largest);
  }
  return maxima;
}

// Pairs of rows [query, query + dim) and [key, key + dim).
std::vector<RowPair> pairs_of(std::int64_t query, std::int64_t key, std::int64_t dim) {
  std::vector<RowPair> pairs;
  for (std::int64_t i = 0; i < dim; ++i) {
    pairs.push_back({query + i, key + i});
  }
  return pairs;
}

struct Clipped {
  double tau{0};
  std::vector<double> before;
  std::vector<double> after;
  Weights old_weights;
  Weights weights;
};

// Clips so that about half of the heads are over tau.
Clipped clip(const AttentionLayer& layer, const HeadPairs& heads, Weights weights) {
  Random random{91};
  const std::vector<double> tokens = test::normal_values(random, kTokens * kIn);
  Clipped run;
  run.old_weights = weights;
  run.before = max_logits(layer, heads, weights, tokens);
  std::vector<double> sorted = run.before;
  std::sort(sorted.begin(), sorted.end());
  run.tau = (sorted[sorted.size() / 2 - 1] + sorted[sorted.size() / 2]) / 2;
  weights.scale(head_scales(layer, qk_clip_gammas(run.before, run.tau)));
  run.after = max_logits(layer, heads, weights, tokens);
  run.weights = std::move(weights);
  return run;
}

void expect_exactly_tau_or_untouched(const Clipped& run) {
  const double tau = run.tau;
  std::ptrdiff_t loud = 0;
  for (std::size_t head = 0; head < run.before.size(); ++head) {
    const double expected = std::min(run.before[head], tau);
    EXPECT_NEAR(run.after[head], expected, tau * 1e-12) << "head " << head;
    loud += run.before[head] > tau ? 1 : 0;
  }
  EXPECT_GT(loud, 0);
  EXPECT_LT(loud, static_cast<std::ptrdiff_t>(run.before.size()));
}

AttentionLayer multi_head(double alpha) {
  AttentionLayer layer{0, 4, 3, "wq", "wk"};
  layer.alpha = alpha;
  return layer;
}

HeadPairs multi_head_pairs() {
  return {pairs_of(0, 0, 3), pairs_of(3, 3, 3), pairs_of(6, 6, 3), pairs_of(9, 9, 3)};
}

TEST(QkClip, MakesEveryLoudHeadOfMultiHeadAttentionExactlyTau) {
  for (const double alpha : {0.5, 0.25, 0.0, 1.0}) {
    Random random{17};
    Weights weights;
    weights.add("wq", 12, random);
    weights.add("wk", 12, random);
    expect_exactly_tau_or_untouched(
        clip(multi_head(alpha), multi_head_pairs(), std::move(weights)));
  }
}

TEST(QkClip, SharesTheFactorBetweenQueryAndKeyByAlpha) {
  const auto scales = head_scales(multi_head(0.25), std::vector<double>{1.0, 1.0 / 16, 1.0, 1.0});
  ASSERT_EQ(scales.size(), 2U);
  EXPECT_EQ(scales[0].parameter, "wq");
  EXPECT_DOUBLE_EQ(scales[0].factor, 0.5);
  EXPECT_EQ(scales[1].parameter, "wk");
  EXPECT_DOUBLE_EQ(scales[1].factor, 0.125);
  EXPECT_EQ(scales[1].row_begin, 3);
  EXPECT_EQ(scales[1].row_end, 6);
}

TEST(QkClip, ScalesBiasesWithTheirRows) {
  AttentionLayer layer = multi_head(0.5);
  layer.query_bias = "bq";
  layer.key_bias = "bk";
  Random random{18};
  Weights weights;
  weights.add("wq", 12, random);
  weights.add("wk", 12, random);
  weights.add_bias("bq", 12, random);
  weights.add_bias("bk", 12, random);
  expect_exactly_tau_or_untouched(clip(layer, multi_head_pairs(), std::move(weights)));
}

AttentionLayer grouped(GroupedClip mode) {
  AttentionLayer layer{0, 6, 3, "wq", "wk"};
  layer.kind = AttentionKind::kGroupedQuery;
  layer.key_heads = 2;
  layer.grouped_clip = mode;
  return layer;
}

HeadPairs grouped_pairs() {
  return {
      pairs_of(0, 0, 3),
      pairs_of(3, 0, 3),
      pairs_of(6, 0, 3),
      pairs_of(9, 3, 3),
      pairs_of(12, 3, 3),
      pairs_of(15, 3, 3)};
}

Weights grouped_weights() {
  Random random{19};
  Weights weights;
  weights.add("wq", 18, random);
  weights.add("wk", 6, random);
  return weights;
}

TEST(QkClip, PerHeadIsExactForGroupedQueriesAndLeavesTheSharedKeyAlone) {
  const Clipped run = clip(grouped(GroupedClip::kPerHead), grouped_pairs(), grouped_weights());
  expect_exactly_tau_or_untouched(run);
  EXPECT_EQ(run.weights.matrices.at("wk"), run.old_weights.matrices.at("wk"));
}

TEST(QkClip, GroupMinimumBoundsEveryHeadByTauAndTheLoudestOfAGroupExactly) {
  for (const double alpha : {0.5, 0.2}) {
    AttentionLayer layer = grouped(GroupedClip::kGroupMinimum);
    layer.alpha = alpha;
    const Clipped run = clip(layer, grouped_pairs(), grouped_weights());
    for (std::size_t group = 0; group < 2; ++group) {
      const auto first = static_cast<std::ptrdiff_t>(group * 3);
      const double loudest =
          *std::max_element(run.before.begin() + first, run.before.begin() + first + 3);
      const double gamma = std::min(1.0, run.tau / loudest);
      for (std::size_t head = group * 3; head < group * 3 + 3; ++head) {
        // Innocent heads of a loud group shrink with it: that is the price of this mode.
        EXPECT_NEAR(run.after[head], run.before[head] * gamma, run.tau * 1e-12);
        EXPECT_LE(run.after[head], run.tau * (1 + 1e-12));
      }
    }
  }
}

TEST(QkClip, PerHeadIsExactForOneKeyHeadUnderAllQueries) {
  AttentionLayer layer{0, 4, 3, "wq", "wk"};
  layer.kind = AttentionKind::kGroupedQuery;
  layer.key_heads = 1;
  Random random{20};
  Weights weights;
  weights.add("wq", 12, random);
  weights.add("wk", 3, random);
  const HeadPairs heads{pairs_of(0, 0, 3), pairs_of(3, 0, 3), pairs_of(6, 0, 3), pairs_of(9, 0, 3)};
  expect_exactly_tau_or_untouched(clip(layer, heads, std::move(weights)));
}

// Heads [2 nope | 2 rope] in the query, [2 key | 3 value] in the key; two shared rotary rows.
AttentionLayer latent() {
  AttentionLayer layer;
  layer.heads = 4;
  layer.query_parameter = "w_uq";
  layer.key_parameter = "w_ukv";
  layer.kind = AttentionKind::kMultiHeadLatent;
  layer.nope_dim = 2;
  layer.rope_dim = 2;
  layer.value_dim = 3;
  return layer;
}

HeadPairs latent_pairs() {
  HeadPairs heads;
  for (std::int64_t head = 0; head < 4; ++head) {
    std::vector<RowPair> pairs = pairs_of(head * 4, head * 5, 2);
    pairs.push_back({head * 4 + 2, 0, true});
    pairs.push_back({head * 4 + 3, 1, true});
    heads.push_back(std::move(pairs));
  }
  return heads;
}

Weights latent_weights() {
  Random random{21};
  Weights weights;
  weights.add("w_uq", 16, random);
  weights.add("w_ukv", 20, random);
  weights.add("wkr", 2, random);
  return weights;
}

TEST(QkClip, IsExactForLatentAttentionThoughItsRotaryKeyIsShared) {
  const Clipped run = clip(latent(), latent_pairs(), latent_weights());
  expect_exactly_tau_or_untouched(run);
  EXPECT_EQ(run.weights.matrices.at("wkr"), run.old_weights.matrices.at("wkr"));
}

TEST(QkClip, LeavesTheValuesOfLatentAttentionBitForBit) {
  const Clipped run = clip(latent(), latent_pairs(), latent_weights());
  const std::vector<double>& before = run.old_weights.matrices.at("w_ukv");
  const std::vector<double>& after = run.weights.matrices.at("w_ukv");
  for (std::size_t i = 0; i < before.size(); ++i) {
    const bool value_row = i / kIn % 5 >= 2;
    const bool loud = run.before[i / kIn / 5] > run.tau;
    EXPECT_EQ(before[i] == after[i], value_row || !loud) << "row " << i / kIn;
  }
}

// [all queries | all keys | all values], heads of 3 rows: queries 0-11, keys 12-23, values 24-35.
TEST(QkClip, FindsTheHeadsOfAConcatenatedProjection) {
  AttentionLayer layer{0, 4, 3, "wqkv", "wqkv"};
  layer.key_row_begin = 12;
  layer.query_bias = "b";
  layer.key_bias = "b";
  const HeadPairs heads{
      pairs_of(0, 12, 3), pairs_of(3, 15, 3), pairs_of(6, 18, 3), pairs_of(9, 21, 3)};
  Random random{22};
  Weights weights;
  weights.add("wqkv", 36, random);
  weights.add_bias("b", 36, random);
  const Clipped run = clip(layer, heads, std::move(weights));
  expect_exactly_tau_or_untouched(run);
  for (std::size_t i = 24 * kIn; i < 36 * kIn; ++i) {
    EXPECT_EQ(run.weights.matrices.at("wqkv")[i], run.old_weights.matrices.at("wqkv")[i]);
  }
}

// Two groups of [3 queries | key | value], 3 rows each: 15 rows a group.
TEST(QkClip, FindsTheHeadsOfAProjectionInterleavedByGroup) {
  for (const GroupedClip mode : {GroupedClip::kPerHead, GroupedClip::kGroupMinimum}) {
    AttentionLayer layer = grouped(mode);
    layer.query_parameter = "wqkv";
    layer.key_parameter = "wqkv";
    layer.group_stride = 15;
    layer.key_row_begin = 9;
    const HeadPairs heads{
        pairs_of(0, 9, 3),
        pairs_of(3, 9, 3),
        pairs_of(6, 9, 3),
        pairs_of(15, 24, 3),
        pairs_of(18, 24, 3),
        pairs_of(21, 24, 3)};
    Random random{23};
    Weights weights;
    weights.add("wqkv", 30, random);
    const Clipped run = clip(layer, heads, std::move(weights));
    for (const double after : run.after) {
      EXPECT_LE(after, run.tau * (1 + 1e-12));
    }
    if (mode == GroupedClip::kPerHead) {
      expect_exactly_tau_or_untouched(run);
    }
    for (const std::int64_t value_row : {12, 13, 14, 27, 28, 29}) {
      const auto i = static_cast<std::size_t>(value_row * kIn);
      EXPECT_EQ(run.weights.matrices.at("wqkv")[i], run.old_weights.matrices.at("wqkv")[i]);
    }
  }
}

}  // namespace
}  // namespace muster::optimizer
