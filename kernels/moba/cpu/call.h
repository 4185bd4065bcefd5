// A checked call of block attention: sizes, sequences, blocks, tensors by their strides.
#pragma once

#include "kernels/moba/cpu/simd/table.h"

#include <muster/kernels/moba.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <string_view>
#include <vector>

namespace muster::kernels {

struct MobaSequence {
  std::int64_t q_begin{0};
  std::int64_t queries{0};
  std::int64_t k_begin{0};
  std::int64_t keys{0};
  std::int64_t first_block{0};  // among the blocks of all sequences
  std::int64_t blocks{0};
  bool dense{false};  // every block that a query can see is chosen

  // Position of a query among the keys; negative: it sees none.
  [[nodiscard]] std::int64_t position(std::int64_t row) const { return row + keys - queries; }

  bool operator==(const MobaSequence&) const = default;
};

struct MobaPlan {
  AttentionType type{AttentionType::kFloat32};
  std::int64_t heads{0};
  std::int64_t kv_heads{0};
  std::int64_t group{1};  // query heads of a kv head
  std::int64_t dim{0};
  double scale{0};
  double softcap{0};
  bool causal{true};
  int threads{1};
  MobaOptions options;
  std::vector<MobaSequence> sequences;
  std::int64_t total_q{0};
  std::int64_t total_k{0};
  std::int64_t total_blocks{0};
  std::int64_t max_blocks{0};  // of a sequence
  bool sparse{false};          // a sequence is not dense

  // Heads that choose: query heads, or kv heads where a group chooses together.
  [[nodiscard]] std::int64_t choices() const { return options.share_in_group ? kv_heads : heads; }

  [[nodiscard]] std::int64_t choice_of(std::int64_t head) const {
    return options.share_in_group ? head / group : head;
  }

  // Blocks that a query chooses by score: besides the current one and a forced neighbour.
  [[nodiscard]] std::int64_t scored_blocks() const {
    const std::int64_t given = (causal ? 1 : 0) + (options.force_neighbour ? 1 : 0);
    return options.top_k > given ? options.top_k - given : 0;
  }

  // Chosen blocks of a query besides the current one, at most.
  [[nodiscard]] std::int64_t slots() const { return sparse ? options.top_k - (causal ? 1 : 0) : 0; }

  // The block of a query; -1 where there is none (no key is visible, or no mask).
  [[nodiscard]] std::int64_t current_block(const MobaSequence& sequence, std::int64_t row) const {
    const std::int64_t position = sequence.position(row);
    return causal && position >= 0 ? position / options.block : -1;
  }

  // Blocks that a query may choose: all that lie wholly in its past, or all without a mask.
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

// Checks sizes and options.
[[nodiscard]] Expected<MobaPlan> plan_moba(
    const AttentionProblem& problem, const MobaOptions& options);

// Strides of a tensor [tokens, heads, dim] with the defaults filled in.
struct MobaTensor {
  const void* data{nullptr};
  MobaElement type{MobaElement::kFloat32};
  std::int64_t token_stride{0};
  std::int64_t head_stride{0};

  // Rows of a head from `token` on: rows are counted from there.
  [[nodiscard]] MobaRows rows(std::int64_t token, std::int64_t head) const;
};

struct MobaOutput {
  void* data{nullptr};
  MobaElement type{MobaElement::kFloat32};
  std::int64_t token_stride{0};
  std::int64_t head_stride{0};

  [[nodiscard]] MobaTarget rows(std::int64_t token, std::int64_t head) const;
};

[[nodiscard]] Expected<MobaTensor> moba_input(
    std::string_view name,
    const AttentionInput& input,
    const MobaPlan& plan,
    std::int64_t tokens,
    std::int64_t heads);

[[nodiscard]] Expected<MobaOutput> moba_output(
    std::string_view name,
    const AttentionOutput& output,
    const MobaPlan& plan,
    std::int64_t tokens,
    std::int64_t heads);

// task(0 .. tasks - 1) on the threads of the plan.
void run_moba_tasks(
    const MobaPlan& plan, std::int64_t tasks, const std::function<void(std::int64_t)>& task);

}  // namespace muster::kernels
