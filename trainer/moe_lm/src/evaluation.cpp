// SPDX-License-Identifier: Apache-2.0
#include "trainer/moe_lm/src/evaluation.h"

#include <muster/common/text.h>

#include <algorithm>
#include <span>

namespace muster::moe_lm {
namespace {

// Number of targets that equal the greedy choice.
double count_right(std::span<const float> logits, std::span<const std::int32_t> targets) {
  const std::size_t vocab = logits.size() / targets.size();
  double right = 0;
  for (std::size_t t = 0; t < targets.size(); ++t) {
    const auto row = logits.subspan(t * vocab, vocab);
    const auto best = std::max_element(row.begin(), row.end()) - row.begin();
    right += targets[t] >= 0 && best == targets[t] ? 1 : 0;
  }
  return right;
}

double count_attended(const AttentionBlock& block, const Batch& batch) {
  double attended = 0;
  for (std::size_t t = 0; t < batch.origins.size(); ++t) {
    const bool seen =
        batch.origins[t] >= 0 && block.attends(static_cast<std::int64_t>(t), batch.origins[t]);
    attended += seen ? 1 : 0;
  }
  return attended;
}

}  // namespace

Expected<Evaluation> evaluate(
    Model& model,
    agent::Agent& agent,
    comm::Communicator& world,
    const Batch& part,
    Deadline deadline) {
  const auto recording = agent.pause_recording();
  // Losses, targets, right answers, targets with an origin, then those that each layer attends to.
  std::vector<double> sums(4);
  MUSTER_ASSIGN_OR_RETURN(sums[0], model.predict(part, agent));
  sums[1] = static_cast<double>(std::count_if(
      part.targets.begin(), part.targets.end(), [](std::int32_t target) { return target >= 0; }));
  sums[2] = count_right(model.logits(), part.targets);
  sums[3] = static_cast<double>(std::count_if(
      part.origins.begin(), part.origins.end(), [](std::int32_t origin) { return origin >= 0; }));
  for (const AttentionBlock& block : model.attention_blocks()) {
    sums.push_back(count_attended(block, part));
  }
  MUSTER_RETURN_IF_ERROR(world.all_reduce(std::span<double>{sums}, comm::ReduceOp::kSum, deadline));
  Evaluation evaluation;
  evaluation.loss = sums[0] / sums[1];
  evaluation.accuracy = sums[2] / sums[1];
  for (std::size_t i = 4; sums[3] > 0 && i < sums.size(); ++i) {
    evaluation.answer_attended.push_back(sums[i] / sums[3]);
  }
  return evaluation;
}

std::string to_string(const Evaluation& evaluation) {
  std::string text =
      "loss " + fixed(evaluation.loss, 4) + " accuracy " + fixed(evaluation.accuracy, 4);
  for (std::size_t layer = 0; layer < evaluation.answer_attended.size(); ++layer) {
    text += (layer == 0 ? " answer attended " : " ") + fixed(evaluation.answer_attended[layer], 4);
  }
  return text;
}

std::string reach_text(const agent::ReducedLanes& lanes) {
  std::string text;
  bool any = false;
  for (const agent::MobaLanes& layer : lanes.moba) {
    std::string share = " full";
    if (layer.reachable_blocks > 0) {
      any = true;
      share = " " + fixed(layer.blocks_reached / layer.reachable_blocks, 4) + "/" +
              fixed(layer.queries_reached / layer.queries, 4);
    }
    text += share;
  }
  return any ? " reach" + text : std::string{};
}

}  // namespace muster::moe_lm
