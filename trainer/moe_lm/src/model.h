// SPDX-License-Identifier: Apache-2.0
// The whole language model: embedding, blocks, final norm, head, cross-entropy.
#pragma once

#include "trainer/moe_lm/src/attention_block.h"
#include "trainer/moe_lm/src/moe_block.h"
#include "trainer/moe_lm/src/text.h"
#include "trainer/moe_lm/src/weights.h"

#include <muster/agent/agent.h>

#include <memory>
#include <span>
#include <vector>

namespace muster::moe_lm {

// Not thread-safe; holds views into `weights` and `runtime`, which must outlive it. Collective over
// the expert group, each rank with its own batch.
class Model {
 public:
  // `experts` are the layers that ExpertRuntime made for `options`, one per block.
  Model(
      const TrainOptions& options, Weights& weights, ExpertRuntime& runtime, ExpertLayers experts);

  // Returns the sum of the batch's token losses in nats. Reports max logits and expert counts to
  // the agent.
  [[nodiscard]] Expected<double> forward(const Batch& batch, agent::Agent& agent);
  // The same without a subsequent backward pass; fills logits(). Collective like forward().
  [[nodiscard]] Expected<double> predict(const Batch& batch, agent::Agent& agent);

  // Logits of the last predict(), [tokens, vocab].
  [[nodiscard]] std::span<const float> logits() const { return logits_; }

  // Adds the gradients of that sum, times the agent's loss scale, to the optimizer's gradient
  // buffers.
  [[nodiscard]] Status backward(const Batch& batch, agent::Agent& agent);

  [[nodiscard]] std::vector<AttentionBlock>& attention_blocks() { return attention_; }

  [[nodiscard]] std::vector<MoeBlock>& moe_blocks() { return moe_; }

  [[nodiscard]] static agent::ModelInfo info(const ModelShape& shape);

 private:
  [[nodiscard]] Status compute_logits(const Batch& batch, agent::Agent& agent);
  void scale_loss(double scale);

  ModelShape shape_;
  Weights* weights_;
  Weight* embedding_;
  Weight* norm_;
  Weight* head_;
  std::vector<AttentionBlock> attention_;
  std::vector<MoeBlock> moe_;
  std::vector<float> stream_, normed_, inverse_rms_, logits_, dnormed_, dstream_;
};

}  // namespace muster::moe_lm
