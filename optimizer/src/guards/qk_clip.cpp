// SPDX-License-Identifier: Apache-2.0
#include "optimizer/src/guards/qk_clip_rows.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace muster::optimizer {
namespace {

// A factor for rows of the query or of the key projection, biases included.
class Scales {
 public:
  void add(const std::string& parameter, const std::string& bias, HeadRows rows, double factor) {
    if (factor == 1.0 || rows.rows == 0) {
      return;
    }
    const std::int64_t end = rows.begin + rows.rows;
    scales_.push_back({parameter, rows.begin, end, factor});
    if (!bias.empty()) {
      scales_.push_back({bias, rows.begin, end, factor});
    }
  }

  [[nodiscard]] std::vector<HeadScale> take() { return std::move(scales_); }

 private:
  std::vector<HeadScale> scales_;
};

// MLA: q = [qC; qR], k = [kC; kR] with kR shared by all heads. sqrt(gamma) on qC and kC and gamma
// on qR give gamma on both products without touching kR.
void add_latent(const AttentionLayer& layer, std::span<const double> gammas, Scales& out) {
  for (std::size_t h = 0; h < gammas.size(); ++h) {
    const auto head = static_cast<std::int64_t>(h);
    const double root = std::sqrt(gammas[h]);
    const std::int64_t begin = query_rows(layer, head).begin;
    const HeadRows nope{begin, layer.nope_dim};
    const HeadRows rope{begin + layer.nope_dim, layer.rope_dim};
    out.add(layer.query_parameter, layer.query_bias, nope, root);
    out.add(layer.query_parameter, layer.query_bias, rope, gammas[h]);
    out.add(layer.key_parameter, layer.key_bias, key_rows(layer, head), root);
  }
}

void add_queries_alone(const AttentionLayer& layer, std::span<const double> gammas, Scales& out) {
  for (std::size_t h = 0; h < gammas.size(); ++h) {
    const HeadRows rows = query_rows(layer, static_cast<std::int64_t>(h));
    out.add(layer.query_parameter, layer.query_bias, rows, gammas[h]);
  }
}

// One gamma per key head: the smallest of its queries, which is the only one without groups.
void add_shared(const AttentionLayer& layer, std::span<const double> gammas, Scales& out) {
  const auto keys = static_cast<std::size_t>(key_heads_of(layer));
  const std::size_t group = gammas.size() / keys;
  for (std::size_t k = 0; k < keys; ++k) {
    const std::span<const double> of_key = gammas.subspan(k * group, group);
    const double gamma = *std::min_element(of_key.begin(), of_key.end());
    const double query_factor = std::pow(gamma, layer.alpha);
    for (std::size_t h = k * group; h < (k + 1) * group; ++h) {
      const HeadRows rows = query_rows(layer, static_cast<std::int64_t>(h));
      out.add(layer.query_parameter, layer.query_bias, rows, query_factor);
    }
    const HeadRows rows = key_rows(layer, static_cast<std::int64_t>(k));
    out.add(layer.key_parameter, layer.key_bias, rows, std::pow(gamma, 1.0 - layer.alpha));
  }
}

}  // namespace

std::vector<double> qk_clip_gammas(std::span<const double> max_logits, double tau) {
  std::vector<double> gammas(max_logits.size(), 1.0);
  if (!(tau > 0)) {
    return gammas;
  }
  for (std::size_t head = 0; head < max_logits.size(); ++head) {
    // A NaN or infinite maximum is the non-finite guard's business: tau / Inf would erase the head.
    if (std::isfinite(max_logits[head]) && max_logits[head] > tau) {
      gammas[head] = tau / max_logits[head];
    }
  }
  return gammas;
}

std::vector<HeadScale> head_scales(const AttentionLayer& layer, std::span<const double> gammas) {
  MUSTER_CHECK(
      gammas.size() == static_cast<std::size_t>(layer.heads),
      "layer " + std::to_string(layer.layer) + " needs one gamma per head");
  Scales scales;
  if (layer.kind == AttentionKind::kMultiHeadLatent) {
    add_latent(layer, gammas, scales);
  } else if (
      layer.kind == AttentionKind::kGroupedQuery && layer.grouped_clip == GroupedClip::kPerHead) {
    add_queries_alone(layer, gammas, scales);
  } else {
    add_shared(layer, gammas, scales);
  }
  return scales.take();
}

}  // namespace muster::optimizer
