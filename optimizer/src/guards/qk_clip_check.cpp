// SPDX-License-Identifier: Apache-2.0
// Checks of an attention layer before QK-clip may scale it.
#include "optimizer/src/guards/qk_clip_rows.h"

#include <muster/common/text.h>

#include <algorithm>
#include <utility>

namespace muster::optimizer {
namespace {

using Runs = std::vector<HeadRows>;

class LayerCheck {
 public:
  explicit LayerCheck(const AttentionLayer& layer) : layer_(layer) {}

  [[nodiscard]] Status refuse(const std::string& why) const {
    return invalid_argument("attention layer ", layer_.layer, ": ", why);
  }

  [[nodiscard]] Status numbers() const;
  // Checks that every run is inside the parameter and its bias.
  [[nodiscard]] Status rows(
      Optimizer& optimizer,
      const std::string& parameter,
      const std::string& bias,
      const Runs& runs) const;
  // Checks that the heads of a projection that is not fused use all its rows.
  [[nodiscard]] Status whole(
      Optimizer& optimizer, const std::string& parameter, std::int64_t rows) const;
  [[nodiscard]] Status apart(Runs queries, const Runs& keys) const;

 private:
  const AttentionLayer& layer_;
};

Status LayerCheck::numbers() const {
  const AttentionLayer& layer = layer_;
  if (layer.heads < 1) {
    return refuse("it needs at least one head");
  }
  if (layer.qk_norm) {
    return refuse(
        "queries or keys are normalised after the projection, which cancels every factor: QK-clip "
        "would do nothing. The norm bounds the logits already; leave the threshold at 0");
  }
  if (!(layer.alpha >= 0 && layer.alpha <= 1)) {
    return refuse("alpha must be in [0, 1], got " + fixed(layer.alpha, 6));
  }
  if (layer.query_row_begin < 0 || layer.key_row_begin < 0 || layer.group_stride < 0) {
    return refuse("row numbers must not be negative");
  }
  if (layer.kind == AttentionKind::kMultiHeadLatent) {
    if (layer.nope_dim < 1 || layer.rope_dim < 0 || layer.value_dim < 0) {
      return refuse("latent attention needs nope_dim above 0, rope_dim and value_dim of 0 or more");
    }
    return layer.group_stride == 0
               ? Status{}
               : refuse("latent attention has no groups: group_stride must be 0");
  }
  if (layer.head_dim < 1) {
    return refuse("head_dim must be above 0");
  }
  if (layer.kind == AttentionKind::kGroupedQuery &&
      (layer.key_heads < 1 || layer.heads % layer.key_heads != 0)) {
    return refuse(
        std::to_string(layer.heads) + " heads do not divide into groups of " +
        std::to_string(layer.key_heads) + " key heads");
  }
  return {};
}

Status LayerCheck::rows(
    Optimizer& optimizer,
    const std::string& parameter,
    const std::string& bias,
    const Runs& runs) const {
  for (const auto& [name, dimensions] : {std::pair{&parameter, 2U}, std::pair{&bias, 1U}}) {
    if (name == &bias && bias.empty()) {
      continue;
    }
    const Parameter* found = optimizer.find(*name);
    if (found == nullptr) {
      return refuse("the optimizer has no parameter '" + *name + "'");
    }
    if (found->spec.shape.size() != dimensions) {
      return refuse(
          "parameter '" + *name + "' must be " +
          (dimensions == 2 ? "a matrix [rows, in]" : "a vector [rows]"));
    }
    for (const HeadRows& run : runs) {
      if (run.begin + run.rows > found->spec.shape[0]) {
        return refuse(
            "rows [" + std::to_string(run.begin) + ", " + std::to_string(run.begin + run.rows) +
            ") of a head must be inside parameter '" + *name + "', which has " +
            std::to_string(found->spec.shape[0]) + " rows");
      }
    }
  }
  return {};
}

Status LayerCheck::whole(
    Optimizer& optimizer, const std::string& parameter, std::int64_t rows) const {
  const std::int64_t has = optimizer.find(parameter)->spec.shape[0];
  return has == rows ? Status{}
                     : refuse(
                           "parameter '" + parameter + "' must have " + std::to_string(rows) +
                           " rows, the sum over its heads, got " + std::to_string(has) +
                           "; describe a fused projection with query_row_begin, key_row_begin "
                           "and group_stride");
}

Status LayerCheck::apart(Runs queries, const Runs& keys) const {
  queries.insert(queries.end(), keys.begin(), keys.end());
  std::sort(queries.begin(), queries.end(), [](const HeadRows& a, const HeadRows& b) {
    return a.begin < b.begin;
  });
  for (std::size_t i = 1; i < queries.size(); ++i) {
    if (queries[i - 1].begin + queries[i - 1].rows > queries[i].begin) {
      return refuse(
          "heads overlap at row " + std::to_string(queries[i].begin) + " of parameter '" +
          layer_.query_parameter + "': check query_row_begin, key_row_begin and group_stride");
    }
  }
  return {};
}

Runs query_runs(const AttentionLayer& layer) {
  Runs runs;
  for (int head = 0; head < layer.heads; ++head) {
    runs.push_back(query_rows(layer, head));
  }
  return runs;
}

Runs key_runs(const AttentionLayer& layer) {
  Runs runs;
  for (int head = 0; head < key_heads_of(layer); ++head) {
    runs.push_back(key_rows(layer, head));
  }
  return runs;
}

}  // namespace

Status check_attention_layer(const AttentionLayer& layer, Optimizer& optimizer) {
  const LayerCheck check{layer};
  MUSTER_RETURN_IF_ERROR(check.numbers());
  const Runs queries = query_runs(layer);
  const Runs keys = key_runs(layer);
  MUSTER_RETURN_IF_ERROR(check.rows(optimizer, layer.query_parameter, layer.query_bias, queries));
  MUSTER_RETURN_IF_ERROR(check.rows(optimizer, layer.key_parameter, layer.key_bias, keys));
  if (layer.query_parameter == layer.key_parameter) {
    return check.apart(queries, keys);
  }
  const bool plain =
      layer.query_row_begin == 0 && layer.key_row_begin == 0 && layer.group_stride == 0;
  if (!plain) {
    return {};
  }
  const bool latent = layer.kind == AttentionKind::kMultiHeadLatent;
  const std::int64_t last_key = keys.back().begin + keys.back().rows;
  MUSTER_RETURN_IF_ERROR(
      check.whole(optimizer, layer.query_parameter, queries.back().begin + queries.back().rows));
  return check.whole(optimizer, layer.key_parameter, last_key + (latent ? layer.value_dim : 0));
}

}  // namespace muster::optimizer
