#include "src/attention_block.h"

#include "src/parameters.h"

#include <muster/kernels/gemm.h>
#include <muster/kernels/layers.h>

#include <algorithm>
#include <cmath>

namespace muster::moe_lm {

AttentionBlock::AttentionBlock(const ModelShape& shape, Weights& weights, std::int64_t layer)
    : shape_(shape),
      weights_(&weights),
      norm_(weights.find(layer_name(layer, "attention.norm"))),
      wq_(weights.find(layer_name(layer, "attention.wq"))),
      wk_(weights.find(layer_name(layer, "attention.wk"))),
      wv_(weights.find(layer_name(layer, "attention.wv"))),
      wo_(weights.find(layer_name(layer, "attention.wo"))),
      max_logits_(static_cast<std::size_t>(shape.heads)) {}

kernels::AttentionShape AttentionBlock::attention_shape() const {
  return {
      tokens_ / shape_.sequence,
      shape_.sequence,
      shape_.heads,
      shape_.head_dim(),
      1.0 / std::sqrt(static_cast<double>(shape_.head_dim()))};
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
  kernels::attention_forward(
      attention_shape(),
      q_.data(),
      k_.data(),
      v_.data(),
      mixed_.data(),
      lse_.data(),
      max_logits_.data());
  kernels::linear_forward(mixed_.data(), wo_->value.data(), projected_.data(), tokens_, d, d);
  kernels::add_in_place(x.data(), projected_.data(), tokens_ * d);
  return {};
}

void AttentionBlock::backward(std::span<float> dx) {
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
  kernels::attention_backward(
      attention_shape(),
      q_.data(),
      k_.data(),
      v_.data(),
      mixed_.data(),
      lse_.data(),
      dmixed_.data(),
      dq_.data(),
      dk_.data(),
      dv_.data());
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
}

}  // namespace muster::moe_lm
