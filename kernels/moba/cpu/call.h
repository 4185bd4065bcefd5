// SPDX-License-Identifier: Apache-2.0
// A call of block attention after its arguments were checked: sequences cut into blocks, and what
// the kernels need to find rows of a tensor.
#pragma once

#include "kernels/attention/cpu/call.h"
#include "kernels/moba/cpu/simd/table.h"

#include <muster/kernels/moba.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

namespace muster::kernels {

struct MobaSequence : AttentionSequence {
  std::int64_t first_block{0};  // among the blocks of all sequences
  std::int64_t blocks{0};
  bool dense{false};  // every block that a query can see is chosen

  // Position of a query among the keys; negative if it sees none.
  [[nodiscard]] std::int64_t position(std::int64_t row) const { return row + keys - queries; }

  bool operator==(const MobaSequence&) const = default;
};

struct MobaCall : AttentionCall {
  MobaOptions options;
  std::vector<MobaSequence> cut_sequences;  // `sequences`, cut into blocks
  std::int64_t total_blocks{0};
  std::int64_t max_blocks{0};  // of a sequence
  bool sparse{false};          // a sequence is not dense

  // Heads that choose: query heads, or kv heads where a group chooses together.
  [[nodiscard]] std::int64_t choices() const { return options.share_in_group ? kv_heads : heads; }

  [[nodiscard]] std::int64_t choice_of(std::int64_t head) const {
    return options.share_in_group ? head / group() : head;
  }

  // Blocks that a query chooses by score: besides the current one and a forced neighbour.
  [[nodiscard]] std::int64_t scored_blocks() const {
    const std::int64_t given = (causal ? 1 : 0) + (options.force_neighbour ? 1 : 0);
    return options.top_k > given ? options.top_k - given : 0;
  }

  // Chosen blocks of a query besides the current one, at most.
  [[nodiscard]] std::int64_t slots() const { return sparse ? options.top_k - (causal ? 1 : 0) : 0; }

  // The block of a query; -1 if it has none (no key is visible, or no mask).
  [[nodiscard]] std::int64_t current_block(const MobaSequence& sequence, std::int64_t row) const {
    const std::int64_t position = sequence.position(row);
    return causal && position >= 0 ? position / options.block : -1;
  }

  // Blocks that a query may choose: all that are wholly in its past, or all without a mask.
  [[nodiscard]] std::int64_t candidates(const MobaSequence& sequence, std::int64_t row) const {
    const std::int64_t current = current_block(sequence, row);
    return causal ? (current > 0 ? current : 0) : sequence.blocks;
  }
};

// Keys of a call's only sequence that k and v hold, or all keys of all sequences.
struct MobaPart {
  std::int64_t begin{0};
  std::int64_t end{std::numeric_limits<std::int64_t>::max()};

  [[nodiscard]] std::int64_t first(std::int64_t key) const { return key > begin ? key : begin; }

  [[nodiscard]] std::int64_t last(std::int64_t key) const { return key < end ? key : end; }
};

// Checks a problem and its options, and cuts the sequences into blocks.
[[nodiscard]] Expected<MobaCall> moba_call(
    const AttentionProblem& problem, const MobaOptions& options);

// The dense sequences of a call: exact attention gives their result.
[[nodiscard]] AttentionCall dense_sequences(const MobaCall& call);

// Rows of a head from `token` on; rows are counted from there.
[[nodiscard]] MobaRows moba_rows(
    const AttentionTensor& tensor, std::int64_t token, std::int64_t head);
[[nodiscard]] MobaTarget moba_target(
    const AttentionTensor& tensor, std::int64_t token, std::int64_t head);

// Runs task(0 .. tasks - 1) on the threads of the call.
void run_moba_tasks(
    const MobaCall& call, std::int64_t tasks, const std::function<void(std::int64_t)>& task);

}  // namespace muster::kernels
