// QK-clip (MuonClip, arXiv 2507.20534) for multi-head attention: heads whose max attention logit
// exceeded tau get their query and key rows scaled so that the logit would have been tau.
#pragma once

#include <muster/optimizer/optimizer.h>

#include <span>
#include <string>
#include <vector>

namespace muster::optimizer {

// Where the heads of one attention layer live. Query and key projections are [heads * head_dim,
// in].
struct AttentionLayer {
  int layer{0};
  int heads{0};
  int head_dim{0};
  std::string query_parameter;
  std::string key_parameter;
};

// gamma = tau / logit for each head whose logit is finite and > tau, else 1 (zero, negative and
// non-finite maxima never scale anything). `max_logits` [heads], reduced over all ranks.
[[nodiscard]] std::vector<double> qk_clip_gammas(std::span<const double> max_logits, double tau);

// Query rows get sqrt(gamma), key rows sqrt(gamma). `gammas` [layer.heads]; factors of 1 are left
// out.
[[nodiscard]] std::vector<HeadScale> head_scales(
    const AttentionLayer& layer, std::span<const double> gammas);

}  // namespace muster::optimizer
