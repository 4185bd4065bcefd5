// SPDX-License-Identifier: Apache-2.0
// Gradient coverage under a loss mask, and the operation count of a call.
#include "kernels/attention/cpu/gradient_coverage.h"

#include "kernels/attention/cpu/check.h"
#include "kernels/moba/cpu/selection.h"

#include <algorithm>

namespace muster::kernels {

namespace {

// Marks the blocks of `sequence` that the query heads of a kv head attend to from marked tokens.
void mark_blocks(
    const MobaSelection::State& state,
    const MobaSequence& sequence,
    std::int64_t kv_head,
    const std::vector<bool>& tokens,
    std::vector<char>& blocks) {
  const MobaCall& call = state.call;
  const auto mark = [&](std::int64_t block) {
    blocks[static_cast<std::size_t>(sequence.first_block + block)] = 1;
  };
  for (std::int64_t row = 0; row < sequence.queries; ++row) {
    if (!tokens[static_cast<std::size_t>(sequence.q_begin + row)]) {
      continue;
    }
    const std::int64_t current = call.current_block(sequence, row);
    if (current >= 0) {
      mark(current);
    }
    const std::int64_t seen = call.causal ? current + 1 : sequence.blocks;
    for (std::int64_t block = 0; sequence.dense && block < seen; ++block) {
      mark(block);
    }
  }
  const std::int64_t per_choice = call.options.share_in_group ? call.group() : 1;
  for (std::int64_t h = 0; h < call.group() && !sequence.dense; h += per_choice) {
    const std::int64_t choice = call.choice_of(kv_head * call.group() + h);
    for (std::int64_t block = 0; block < sequence.blocks; ++block) {
      const auto list = state.list(sequence, choice, block);
      const bool reached = std::any_of(list.begin(), list.end(), [&](std::int32_t row) {
        return tokens[static_cast<std::size_t>(sequence.q_begin + row)];
      });
      if (reached) {
        mark(block);
      }
    }
  }
}

// (query, key) pairs that a sequence computes for one head.
double visible_pairs(const MobaCall& call, const MobaSequence& sequence) {
  double pairs = 0;
  const double block = static_cast<double>(call.options.block);
  const std::int64_t past = call.options.top_k - (call.causal ? 1 : 0);
  for (std::int64_t row = 0; row < sequence.queries; ++row) {
    const std::int64_t position = sequence.position(row);
    if (!call.causal) {
      pairs += std::min(static_cast<double>(past) * block, static_cast<double>(sequence.keys));
    } else if (position >= 0) {
      const std::int64_t chosen = std::min(past, position / call.options.block);
      pairs += static_cast<double>(chosen) * block +
               static_cast<double>(position % call.options.block + 1);
    }
  }
  return pairs;
}

}  // namespace

GradientCoverage moba_gradient_coverage(
    const AttentionProblem& problem, const MobaSelection& selection, const AttentionInput& dout) {
  const MobaSelection::State& state = selection.state();
  const auto call = moba_call(problem, state.call.options);
  if (!call.ok() || !state.check(*call).ok()) {
    return {};
  }
  const auto tensor = query_tensor(*call, "dout", dout);
  if (!tensor.ok()) {
    return {};
  }
  const std::vector<bool> tokens = tokens_with_gradient(*call, *tensor);
  GradientCoverage result;
  result.queries = call->total_q;
  result.queries_reached = std::count(tokens.begin(), tokens.end(), true);
  result.blocks = call->kv_heads * call->total_blocks;
  for (std::int64_t head = 0; head < call->kv_heads; ++head) {
    std::vector<char> blocks(static_cast<std::size_t>(call->total_blocks), 0);
    for (const MobaSequence& sequence : call->cut_sequences) {
      mark_blocks(state, sequence, head, tokens, blocks);
    }
    result.blocks_reached += std::count(blocks.begin(), blocks.end(), 1);
  }
  return result;
}

double moba_flops(const AttentionProblem& problem, const MobaOptions& options, bool backward) {
  const auto call = moba_call(problem, options);
  if (!call.ok()) {
    return 0;
  }
  double pairs = 0;
  double scores = 0;  // (query, block) pairs of the gate
  for (const MobaSequence& sequence : call->cut_sequences) {
    pairs += visible_pairs(*call, sequence);
    for (std::int64_t row = 0; row < sequence.queries && !sequence.dense; ++row) {
      scores += static_cast<double>(call->candidates(sequence, row));
    }
  }
  const double width = static_cast<double>(call->heads * call->head_dim);
  if (backward) {
    return 10 * width * pairs;
  }
  return width * (4 * pairs + (call->scored_blocks() > 0 ? 2 * scores : 0));
}

}  // namespace muster::kernels
