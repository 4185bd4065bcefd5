// SPDX-License-Identifier: Apache-2.0
#include "trainer/moe_lm/src/model.h"

#include "trainer/moe_lm/src/parameters.h"

#include <muster/kernels/gemm.h>
#include <muster/kernels/layers.h>

#include <utility>

namespace muster::moe_lm {

Model::Model(
    const TrainOptions& options, Weights& weights, ExpertRuntime& runtime, ExpertLayers experts)
    : shape_(options.model),
      weights_(&weights),
      embedding_(weights.find("embedding")),
      norm_(weights.find("norm")),
      head_(weights.find("head")) {
  for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
    attention_.emplace_back(shape_, weights, layer);
    moe_.emplace_back(
        options, weights, runtime, std::move(experts[static_cast<std::size_t>(layer)]), layer);
  }
}

agent::ModelInfo Model::info(const ModelShape& shape) {
  agent::ModelInfo info;
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    info.attention.push_back(
        {static_cast<int>(layer),
         static_cast<int>(shape.heads),
         static_cast<int>(shape.head_dim()),
         layer_name(layer, "attention.wq"),
         layer_name(layer, "attention.wk")});
    info.experts_per_layer.push_back(static_cast<int>(shape.experts));
  }
  return info;
}

Status Model::compute_logits(const Batch& batch, agent::Agent& agent) {
  const auto tokens = static_cast<std::int64_t>(batch.tokens.size());
  const std::int64_t d = shape_.d_model;
  const auto values = static_cast<std::size_t>(tokens * d);
  for (auto* buffer : {&stream_, &normed_, &dnormed_, &dstream_}) {
    buffer->resize(values);
  }
  inverse_rms_.resize(batch.tokens.size());
  logits_.resize(static_cast<std::size_t>(tokens * ModelShape::kVocab));
  MUSTER_RETURN_IF_ERROR(weights_->await({embedding_}));
  kernels::embedding_forward(
      batch.tokens.data(), embedding_->value.data(), stream_.data(), tokens, d);
  for (std::size_t layer = 0; layer < attention_.size(); ++layer) {
    MUSTER_RETURN_IF_ERROR(attention_[layer].forward(stream_));
    agent.record_max_logits(layer, attention_[layer].max_logits());
    if (attention_[layer].uses_moba()) {
      agent.record_moba(layer, attention_[layer].moba_record());
    }
    MUSTER_RETURN_IF_ERROR(moe_[layer].forward(stream_, agent));
    agent.record_expert_counts(layer, moe_[layer].expert_counts());
  }
  MUSTER_RETURN_IF_ERROR(weights_->await({norm_, head_}));
  kernels::rms_norm_forward(
      stream_.data(),
      norm_->value.data(),
      normed_.data(),
      inverse_rms_.data(),
      tokens,
      d,
      kNormEpsilon);
  kernels::linear_forward(
      normed_.data(), head_->value.data(), logits_.data(), tokens, d, ModelShape::kVocab);
  return {};
}

Expected<double> Model::forward(const Batch& batch, agent::Agent& agent) {
  MUSTER_RETURN_IF_ERROR(compute_logits(batch, agent));
  const auto tokens = static_cast<std::int64_t>(batch.tokens.size());
  // The logits become their own gradient.
  return kernels::cross_entropy(
      logits_.data(), batch.targets.data(), logits_.data(), tokens, ModelShape::kVocab);
}

Expected<double> Model::predict(const Batch& batch, agent::Agent& agent) {
  MUSTER_RETURN_IF_ERROR(compute_logits(batch, agent));
  const auto tokens = static_cast<std::int64_t>(batch.tokens.size());
  float* no_gradient = nullptr;
  return kernels::cross_entropy(
      logits_.data(), batch.targets.data(), no_gradient, tokens, ModelShape::kVocab);
}

// The logits hold the gradient of the loss by now.
void Model::scale_loss(double scale) {
  if (scale != 1.0) {
    for (float& gradient : logits_) {
      gradient *= static_cast<float>(scale);
    }
  }
}

Status Model::backward(const Batch& batch, agent::Agent& agent) {
  const auto tokens = static_cast<std::int64_t>(batch.tokens.size());
  const std::int64_t d = shape_.d_model;
  scale_loss(agent.loss_scale());
  kernels::linear_backward(
      normed_.data(),
      head_->value.data(),
      logits_.data(),
      dnormed_.data(),
      false,
      head_->gradient.data(),
      tokens,
      d,
      ModelShape::kVocab);
  kernels::rms_norm_backward(
      stream_.data(),
      norm_->value.data(),
      inverse_rms_.data(),
      dnormed_.data(),
      dstream_.data(),
      norm_->gradient.data(),
      tokens,
      d);
  weights_->gradients_done({head_, norm_});
  for (std::size_t layer = attention_.size(); layer-- > 0;) {
    MUSTER_RETURN_IF_ERROR(moe_[layer].backward(dstream_, agent));
    MUSTER_RETURN_IF_ERROR(attention_[layer].backward(dstream_));
    agent.record_reach(layer, attention_[layer].reach());
  }
  kernels::embedding_backward(
      batch.tokens.data(), dstream_.data(), embedding_->gradient.data(), tokens, d);
  weights_->gradients_done({embedding_});
  return {};
}

}  // namespace muster::moe_lm
