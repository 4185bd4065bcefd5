// SPDX-License-Identifier: Apache-2.0
// x += wo(attention(rope(wq n), rope(wk n), wv n)), n = norm(x): forward and backward of one block.
#pragma once

#include "trainer/moe_lm/src/options.h"
#include "trainer/moe_lm/src/weights.h"

#include <muster/agent/agent.h>
#include <muster/kernels/attention.h>
#include <muster/kernels/moba.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace muster::moe_lm {

inline constexpr double kNormEpsilon = 1e-5;
inline constexpr double kRopeBase = 10000.0;

// Not thread-safe. backward() belongs to the forward() before it.
class AttentionBlock {
 public:
  // `weights` must outlive it.
  AttentionBlock(const ModelShape& shape, Weights& weights, std::int64_t layer);

  // Block attention in the forward passes to come, with blocks cut from each sequence's first
  // token; nothing: full attention. Not between a forward() and its backward().
  void set_mode(const std::optional<kernels::MobaOptions>& moba) { moba_ = moba; }

  // x [tokens, d_model] in place. An error is a lost peer.
  [[nodiscard]] Status forward(std::span<float> x);
  // Gradient of the output in, of the input out; parameter gradients are added to.
  [[nodiscard]] Status backward(std::span<float> dx);

  [[nodiscard]] bool uses_moba() const { return moba_.has_value(); }

  // What the last forward said of itself under block attention, views into this block.
  [[nodiscard]] agent::MobaRecord moba_record() const;

  // Returns how much of the last forward the gradients of the backward() after it reached. Full
  // attention has blocks of one token: it reaches all up to the last token with a gradient.
  [[nodiscard]] kernels::GradientCoverage reach() const;

  // Whether some head's last forward attended from token `row` to the block of position `key` of
  // the same sequence; always under full attention.
  [[nodiscard]] bool attends(std::int64_t row, std::int64_t key) const;

  // [heads] of the last forward, over the pairs that were attended. NaN where a logit, an output or
  // a score by which blocks are chosen was not finite.
  [[nodiscard]] std::span<const float> max_logits() const { return max_logits_; }

 private:
  [[nodiscard]] kernels::AttentionShape attention_shape() const;
  [[nodiscard]] kernels::AttentionProblem moba_problem() const;
  [[nodiscard]] std::int64_t blocks_per_sequence() const;  // 0 under full attention
  void resize(std::size_t values);
  [[nodiscard]] Status attend();
  [[nodiscard]] Status attend_moba();
  [[nodiscard]] Status attend_backward();

  ModelShape shape_;
  Weights* weights_;
  Weight* norm_;
  Weight* wq_;
  Weight* wk_;
  Weight* wv_;
  Weight* wo_;
  std::int64_t tokens_{0};
  std::vector<float> input_, normed_, inverse_rms_, q_, k_, v_, mixed_, lse_;
  std::vector<float> projected_, dmixed_, dq_, dk_, dv_, dnormed_;
  std::vector<float> max_logits_;
  std::optional<kernels::MobaOptions> moba_;
  kernels::MobaSelection selection_;
  std::vector<std::int64_t> sequence_begins_, nonfinite_rows_, nonfinite_scores_, block_counts_;
  std::vector<float> gate_bound_, norm_bound_;
  std::vector<double> sink_share_, gate_margin_;
};

}  // namespace muster::moe_lm
