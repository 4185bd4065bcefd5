#include <muster/optimizer/qk_clip.h>

#include <cmath>
#include <cstddef>

namespace muster::optimizer {

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
  std::vector<HeadScale> scales;
  for (std::size_t head = 0; head < gammas.size(); ++head) {
    if (gammas[head] == 1.0) {
      continue;
    }
    const std::int64_t row_begin = static_cast<std::int64_t>(head) * layer.head_dim;
    const std::int64_t row_end = row_begin + layer.head_dim;
    const double factor = std::sqrt(gammas[head]);
    scales.push_back({layer.query_parameter, row_begin, row_end, factor});
    scales.push_back({layer.key_parameter, row_begin, row_end, factor});
  }
  return scales;
}

}  // namespace muster::optimizer
