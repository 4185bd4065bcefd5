// SPDX-License-Identifier: Apache-2.0
#include "kernels/moba/cpu/call.h"

#include "kernels/attention/cpu/check.h"
#include "kernels/cpu/thread_team.h"

#include <algorithm>

namespace muster::kernels {

namespace {

// Blocks of `keys` keys, without a sum that could overflow.
std::int64_t blocks_of(std::int64_t keys, std::int64_t block) {
  return keys == 0 ? 0 : (keys - 1) / block + 1;
}

// The rules beside those of every kind of attention.
Status check_problem(const AttentionProblem& problem) {
  if (problem.scale < 0) {
    return invalid_argument("scale must not be negative, got ", problem.scale);
  }
  if (problem.bias != nullptr) {
    return invalid_argument(
        "bias must be null: the gate scores blocks by their mean keys and cannot see it; use full "
        "attention for this layer");
  }
  return {};
}

Status check_options(const AttentionProblem& problem, const MobaOptions& options) {
  if (options.block < 1) {
    return invalid_argument("block must be at least 1 key, got ", options.block);
  }
  if (options.top_k < 1) {
    return invalid_argument("top_k must be at least 1, for the current block, got ", options.top_k);
  }
  if (options.whole_length < 0) {
    return invalid_argument("whole_length must not be negative, got ", options.whole_length);
  }
  if (options.whole_length > 0 && !problem.causal) {
    return invalid_argument(
        "whole_length needs a causal mask: without one a query attends to keys not there yet");
  }
  if (options.force_neighbour && !problem.causal) {
    return invalid_argument("force_neighbour needs a causal mask: without one no block is current");
  }
  return {};
}

}  // namespace

Expected<MobaCall> moba_call(const AttentionProblem& problem, const MobaOptions& options) {
  MobaCall call;
  MUSTER_ASSIGN_OR_RETURN(static_cast<AttentionCall&>(call), attention_call(problem));
  MUSTER_RETURN_IF_ERROR(check_problem(problem));
  MUSTER_RETURN_IF_ERROR(check_options(problem, options));
  call.options = options;
  for (const AttentionSequence& of : call.sequences) {
    MobaSequence sequence{of};
    sequence.first_block = call.total_blocks;
    sequence.blocks = blocks_of(sequence.keys, options.block);
    sequence.dense =
        blocks_of(std::max(sequence.keys, options.whole_length), options.block) <= options.top_k;
    call.sparse = call.sparse || !sequence.dense;
    call.total_blocks += sequence.blocks;
    call.max_blocks = std::max(call.max_blocks, sequence.blocks);
    call.cut_sequences.push_back(sequence);
  }
  if (call.max_blocks >= std::int64_t{1} << 24U) {
    return invalid_argument(
        "block must cut a sequence into at most 2^24 - 1 blocks, got ",
        call.max_blocks,
        " with block ",
        options.block);
  }
  return call;
}

AttentionCall dense_sequences(const MobaCall& call) {
  AttentionCall result = call;  // NOLINT(cppcoreguidelines-slicing): the part that both share
  result.sequences.clear();
  for (const MobaSequence& sequence : call.cut_sequences) {
    if (sequence.dense) {
      result.sequences.push_back(sequence);
    }
  }
  return result;
}

MobaRows moba_rows(const AttentionTensor& tensor, std::int64_t token, std::int64_t head) {
  return {tensor.at(token, head), tensor.type, tensor.token_stride, 0, nullptr, 0};
}

MobaTarget moba_target(const AttentionTensor& tensor, std::int64_t token, std::int64_t head) {
  return {tensor.at(token, head), tensor.type, tensor.token_stride, 0, nullptr, 0};
}

void run_moba_tasks(
    const MobaCall& call, std::int64_t tasks, const std::function<void(std::int64_t)>& task) {
  ThreadTeam team(static_cast<int>(
      std::clamp<std::int64_t>(tasks, 1, static_cast<std::int64_t>(call.threads))));
  team.run(tasks, [&task](std::int64_t number, int /*member*/) { task(number); });
}

std::int64_t moba_block_count(std::span<const std::int64_t> cu_k, std::int64_t block) {
  std::int64_t count = 0;
  for (std::size_t i = 1; i < cu_k.size() && block > 0; ++i) {
    count += blocks_of(cu_k[i] - cu_k[i - 1], block);
  }
  return count;
}

}  // namespace muster::kernels
