// SPDX-License-Identifier: Apache-2.0
#include "trainer/moe_lm/src/attention_block.h"

#include "trainer/moe_lm/src/parameters.h"

#include <muster/kernels/gemm.h>
#include <muster/kernels/layers.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace muster::moe_lm {

AttentionBlock::AttentionBlock(const ModelShape& shape, Weights& weights, std::int64_t layer)
    : shape_(shape),
      weights_(&weights),
      norm_(weights.find(layer_name(layer, "attention.norm"))),
      wq_(weights.find(layer_name(layer, "attention.wq"))),
      wk_(weights.find(layer_name(layer, "attention.wk"))),
      wv_(weights.find(layer_name(layer, "attention.wv"))),
      wo_(weights.find(layer_name(layer, "attention.wo"))),
      max_logits_(static_cast<std::size_t>(shape.heads)),
      nonfinite_rows_(max_logits_.size()),
      nonfinite_scores_(max_logits_.size()),
      gate_bound_(max_logits_.size()),
      norm_bound_(max_logits_.size()),
      sink_share_(max_logits_.size()),
      gate_margin_(max_logits_.size()) {}

kernels::AttentionShape AttentionBlock::attention_shape() const {
  return {
      tokens_ / shape_.sequence,
      shape_.sequence,
      shape_.heads,
      shape_.head_dim(),
      1.0 / std::sqrt(static_cast<double>(shape_.head_dim()))};
}

kernels::AttentionProblem AttentionBlock::moba_problem() const {
  kernels::AttentionProblem problem;
  problem.heads = static_cast<int>(shape_.heads);
  problem.head_dim = static_cast<int>(shape_.head_dim());
  problem.cu_q = sequence_begins_;
  return problem;
}

void AttentionBlock::resize(std::size_t values) {
  tokens_ = static_cast<std::int64_t>(values) / shape_.d_model;
  for (auto* buffer :
       {&input_,
        &normed_,
        &q_,
        &k_,
        &v_,
        &mixed_,
        &projected_,
        &dmixed_,
        &dq_,
        &dk_,
        &dv_,
        &dnormed_}) {
    buffer->resize(values);
  }
  inverse_rms_.resize(static_cast<std::size_t>(tokens_));
  lse_.resize(static_cast<std::size_t>(tokens_ * shape_.heads));
  sequence_begins_.clear();
  for (std::int64_t begin = 0; begin <= tokens_; begin += shape_.sequence) {
    sequence_begins_.push_back(begin);
  }
}

Status AttentionBlock::attend() {
  if (!moba_) {
    kernels::attention_forward(
        attention_shape(),
        q_.data(),
        k_.data(),
        v_.data(),
        mixed_.data(),
        lse_.data(),
        max_logits_.data());
    return {};
  }
  return attend_moba();
}

Status AttentionBlock::attend_moba() {
  block_counts_.resize(static_cast<std::size_t>(shape_.heads * blocks_per_sequence()));
  kernels::MobaStatistics statistics;
  statistics.selected_max_logit = max_logits_;
  statistics.gate_bound = gate_bound_;
  statistics.norm_bound = norm_bound_;
  statistics.block_counts = block_counts_;
  statistics.sink_share = sink_share_;
  statistics.gate_margin = gate_margin_;
  statistics.nonfinite_rows = nonfinite_rows_;
  statistics.nonfinite_scores = nonfinite_scores_;
  MUSTER_RETURN_IF_ERROR(kernels::moba_forward(
      moba_problem(),
      *moba_,
      {{q_.data()}, {k_.data()}, {v_.data()}},
      {},
      {{mixed_.data()}, lse_.data()},
      selection_,
      statistics));
  // NaN logits do not enter the maximum, and a block with a NaN score is never chosen: without
  // their counts a step that must be skipped would look healthy.
  for (std::size_t head = 0; head < max_logits_.size(); ++head) {
    if (nonfinite_rows_[head] > 0 || nonfinite_scores_[head] > 0) {
      max_logits_[head] = std::numeric_limits<float>::quiet_NaN();
    }
  }
  return {};
}

Status AttentionBlock::attend_backward() {
  if (moba_) {
    return kernels::moba_backward(
        moba_problem(),
        *moba_,
        {{q_.data()}, {k_.data()}, {v_.data()}},
        {{mixed_.data()},
         lse_.data(),
         {dmixed_.data()},
         nullptr,
         {dq_.data()},
         {dk_.data()},
         {dv_.data()}},
        selection_);
  }
  kernels::attention_backward(
      attention_shape(),
      q_.data(),
      k_.data(),
      v_.data(),
      {mixed_.data(), lse_.data(), dmixed_.data(), dq_.data(), dk_.data(), dv_.data()});
  return {};
}

std::int64_t AttentionBlock::blocks_per_sequence() const {
  return moba_ ? (shape_.sequence - 1) / moba_->block + 1 : 0;
}

agent::MobaRecord AttentionBlock::moba_record() const {
  agent::MobaRecord record;
  record.gate_bound = gate_bound_;
  record.norm_bound = norm_bound_;
  record.nonfinite_rows = nonfinite_rows_;
  record.block_counts = block_counts_;
  record.blocks = blocks_per_sequence();
  record.sink_share = sink_share_;
  record.gate_margin = gate_margin_;
  return record;
}

kernels::GradientCoverage AttentionBlock::reach() const {
  return moba_ ? kernels::moba_gradient_coverage(moba_problem(), selection_, {dmixed_.data()})
               : kernels::attention_gradient_coverage(attention_shape(), dmixed_.data());
}

bool AttentionBlock::attends(std::int64_t row, std::int64_t key) const {
  bool attended = !moba_;
  for (int head = 0; head < shape_.heads && !attended; ++head) {
    const std::vector<std::int32_t> blocks = selection_.blocks_of(head, row);
    attended = std::find(blocks.begin(), blocks.end(), key / moba_->block) != blocks.end();
  }
  return attended;
}

Status AttentionBlock::forward(std::span<float> x) {
  MUSTER_RETURN_IF_ERROR(weights_->await({norm_, wq_, wk_, wv_, wo_}));
  resize(x.size());
  const std::int64_t d = shape_.d_model;
  std::copy(x.begin(), x.end(), input_.begin());
  kernels::rms_norm_forward(
      input_.data(),
      norm_->value.data(),
      normed_.data(),
      inverse_rms_.data(),
      tokens_,
      d,
      kNormEpsilon);
  kernels::linear_forward(normed_.data(), wq_->value.data(), q_.data(), tokens_, d, d);
  kernels::linear_forward(normed_.data(), wk_->value.data(), k_.data(), tokens_, d, d);
  kernels::linear_forward(normed_.data(), wv_->value.data(), v_.data(), tokens_, d, d);
  for (auto* rotated : {&q_, &k_}) {
    kernels::rope(
        rotated->data(),
        tokens_,
        shape_.heads,
        shape_.head_dim(),
        shape_.sequence,
        kRopeBase,
        false);
  }
  MUSTER_RETURN_IF_ERROR(attend());
  kernels::linear_forward(mixed_.data(), wo_->value.data(), projected_.data(), tokens_, d, d);
  kernels::add_in_place(x.data(), projected_.data(), tokens_ * d);
  return {};
}

Status AttentionBlock::backward(std::span<float> dx) {
  const std::int64_t d = shape_.d_model;
  kernels::linear_backward(
      mixed_.data(),
      wo_->value.data(),
      dx.data(),
      dmixed_.data(),
      false,
      wo_->gradient.data(),
      tokens_,
      d,
      d);
  MUSTER_RETURN_IF_ERROR(attend_backward());
  for (auto* rotated : {&dq_, &dk_}) {
    kernels::rope(
        rotated->data(),
        tokens_,
        shape_.heads,
        shape_.head_dim(),
        shape_.sequence,
        kRopeBase,
        true);
  }
  const auto through = [&](const std::vector<float>& dy, Weight& weight, bool add) {
    kernels::linear_backward(
        normed_.data(),
        weight.value.data(),
        dy.data(),
        dnormed_.data(),
        add,
        weight.gradient.data(),
        tokens_,
        d,
        d);
  };
  through(dq_, *wq_, false);
  through(dk_, *wk_, true);
  through(dv_, *wv_, true);
  kernels::rms_norm_backward(
      input_.data(),
      norm_->value.data(),
      inverse_rms_.data(),
      dnormed_.data(),
      projected_.data(),
      norm_->gradient.data(),
      tokens_,
      d);
  kernels::add_in_place(dx.data(), projected_.data(), tokens_ * d);
  weights_->gradients_done({wo_, wv_, wk_, wq_, norm_});
  return {};
}

}  // namespace muster::moe_lm
