// What a loss mask leaves of the gradients, and how much work a call is.
#include "kernels/moba/cpu/scratch.h"
#include "kernels/moba/cpu/selection.h"

#include <algorithm>

namespace muster::kernels {

namespace {

// Tokens of which any head has a gradient that is not 0.
std::vector<char> tokens_with_gradient(const MobaPlan& plan, const MobaTensor& dout) {
  std::vector<char> result(static_cast<std::size_t>(plan.total_q), 0);
  const MobaTable<double>& table = moba_table<double>();
  const std::int64_t stride = moba_row_stride<double>(plan.dim);
  double* rows = moba_scratch<double>(kMobaTile * stride);
  for (std::int64_t head = 0; head < plan.heads; ++head) {
    for (std::int64_t token = 0; token < plan.total_q; token += kMobaTile) {
      MobaRows from = dout.rows(0, head);
      from.first = token;
      from.count = std::min(kMobaTile, plan.total_q - token);
      table.gather(from, plan.dim, rows, stride);
      for (std::int64_t i = 0; i < from.count; ++i) {
        const double* row = rows + i * stride;
        const bool any = std::any_of(row, row + plan.dim, [](double x) { return x != 0; });
        char& token_has = result[static_cast<std::size_t>(token + i)];
        token_has = any ? 1 : token_has;
      }
    }
  }
  return result;
}

// Marks the blocks of `sequence` that the query heads of a kv head attend to from marked tokens.
void mark_blocks(
    const MobaSelection::State& state,
    const MobaSequence& sequence,
    std::int64_t kv_head,
    const std::vector<char>& tokens,
    std::vector<char>& blocks) {
  const MobaPlan& plan = state.plan;
  const auto mark = [&](std::int64_t block) {
    blocks[static_cast<std::size_t>(sequence.first_block + block)] = 1;
  };
  for (std::int64_t row = 0; row < sequence.queries; ++row) {
    if (tokens[static_cast<std::size_t>(sequence.q_begin + row)] == 0) {
      continue;
    }
    const std::int64_t current = plan.current_block(sequence, row);
    if (current >= 0) {
      mark(current);
    }
    const std::int64_t seen = plan.causal ? current + 1 : sequence.blocks;
    for (std::int64_t block = 0; sequence.dense && block < seen; ++block) {
      mark(block);
    }
  }
  const std::int64_t per_choice = plan.options.share_in_group ? plan.group : 1;
  for (std::int64_t h = 0; h < plan.group && !sequence.dense; h += per_choice) {
    const std::int64_t choice = plan.choice_of(kv_head * plan.group + h);
    for (std::int64_t block = 0; block < sequence.blocks; ++block) {
      const auto list = state.list(sequence, choice, block);
      const bool reached = std::any_of(list.begin(), list.end(), [&](std::int32_t row) {
        return tokens[static_cast<std::size_t>(sequence.q_begin + row)] != 0;
      });
      if (reached) {
        mark(block);
      }
    }
  }
}

// (query, key) pairs that a sequence computes for one head.
double visible_pairs(const MobaPlan& plan, const MobaSequence& sequence) {
  double pairs = 0;
  const double block = static_cast<double>(plan.options.block);
  const std::int64_t past = plan.options.top_k - (plan.causal ? 1 : 0);
  for (std::int64_t row = 0; row < sequence.queries; ++row) {
    const std::int64_t position = sequence.position(row);
    if (!plan.causal) {
      pairs += std::min(static_cast<double>(past) * block, static_cast<double>(sequence.keys));
    } else if (position >= 0) {
      const std::int64_t chosen = std::min(past, position / plan.options.block);
      pairs += static_cast<double>(chosen) * block +
               static_cast<double>(position % plan.options.block + 1);
    }
  }
  return pairs;
}

}  // namespace

GradientReach moba_gradient_reach(
    const AttentionProblem& problem, const MobaSelection& selection, AttentionInput dout) {
  const MobaSelection::State& state = selection.state();
  const auto plan = plan_moba(problem, state.plan.options);
  if (!plan.ok() || !state.check(*plan).ok()) {
    return {};
  }
  const auto tensor = moba_input("dout", dout, *plan, plan->total_q, plan->heads);
  if (!tensor.ok() || plan->total_q == 0) {
    return {};
  }
  const std::vector<char> tokens = tokens_with_gradient(*plan, *tensor);
  GradientReach result;
  result.query_share = static_cast<double>(std::count(tokens.begin(), tokens.end(), 1)) /
                       static_cast<double>(plan->total_q);
  std::int64_t reached = 0;
  for (std::int64_t head = 0; head < plan->kv_heads; ++head) {
    std::vector<char> blocks(static_cast<std::size_t>(plan->total_blocks), 0);
    for (const MobaSequence& sequence : plan->sequences) {
      mark_blocks(state, sequence, head, tokens, blocks);
    }
    reached += std::count(blocks.begin(), blocks.end(), 1);
  }
  if (plan->total_blocks > 0) {
    result.block_share =
        static_cast<double>(reached) / static_cast<double>(plan->kv_heads * plan->total_blocks);
  }
  return result;
}

double moba_flops(const AttentionProblem& problem, const MobaOptions& options, bool backward) {
  const auto plan = plan_moba(problem, options);
  if (!plan.ok()) {
    return 0;
  }
  double pairs = 0;
  double scores = 0;  // (query, block) pairs of the gate
  for (const MobaSequence& sequence : plan->sequences) {
    pairs += visible_pairs(*plan, sequence);
    for (std::int64_t row = 0; row < sequence.queries && !sequence.dense; ++row) {
      scores += static_cast<double>(plan->candidates(sequence, row));
    }
  }
  const double width = static_cast<double>(plan->heads * plan->dim);
  if (backward) {
    return 10 * width * pairs;
  }
  return width * (4 * pairs + (plan->scored_blocks() > 0 ? 2 * scores : 0));
}

}  // namespace muster::kernels
