#include "kernels/moba/cpu/call.h"

#include "kernels/cpu/thread_team.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

namespace muster::kernels {

namespace {

Status check_offsets(std::string_view name, std::span<const std::int64_t> offsets) {
  if (offsets.empty() || offsets.front() != 0) {
    return invalid_argument(std::string(name) + " must begin with 0");
  }
  for (std::size_t i = 1; i < offsets.size(); ++i) {
    const std::int64_t length = offsets[i] - offsets[i - 1];
    if (length < 0) {
      return invalid_argument(
          std::string(name) + "[" + std::to_string(i) +
          "] is less than the one before it: the "
          "offsets of packed sequences ascend");
    }
    if (length > std::numeric_limits<std::int32_t>::max()) {
      return invalid_argument(
          std::string(name) + ": sequence " + std::to_string(i - 1) + " has " +
          std::to_string(length) + " tokens, more than 2^31 - 1");
    }
  }
  return {};
}

Status check_numbers(const AttentionProblem& problem) {
  if (problem.heads < 1) {
    return invalid_argument("heads is " + std::to_string(problem.heads) + ", must be at least 1");
  }
  const int kv_heads = problem.kv_heads == 0 ? problem.heads : problem.kv_heads;
  if (kv_heads < 1 || problem.heads % kv_heads != 0) {
    return invalid_argument(
        "kv_heads " + std::to_string(problem.kv_heads) + " does not divide heads " +
        std::to_string(problem.heads));
  }
  if (problem.head_dim < 8 || problem.head_dim > 256) {
    return invalid_argument(
        "head_dim is " + std::to_string(problem.head_dim) + ", must be from 8 to 256");
  }
  if (!std::isfinite(problem.scale) || problem.scale < 0) {
    return invalid_argument("scale must be finite and not negative (0: 1 / sqrt(head_dim))");
  }
  if (!std::isfinite(problem.softcap) || problem.softcap < 0) {
    return invalid_argument("softcap must be finite and not negative (0: none)");
  }
  if (problem.bias != nullptr) {
    return invalid_argument(
        "bias must be null: the gate scores blocks by their mean keys and cannot see it; use full "
        "attention for this layer");
  }
  if (problem.threads < 1 || problem.threads > 1024) {  // as in full attention
    return invalid_argument(
        "threads is " + std::to_string(problem.threads) + ", must be at least 1 and at most 1024");
  }
  if (problem.type != AttentionType::kFloat32 && problem.type != AttentionType::kBFloat16 &&
      problem.type != AttentionType::kFloat64) {
    return invalid_argument("type is none of fp32, bf16 and fp64");
  }
  return {};
}

// Blocks of `keys` keys, without a sum that could overflow.
std::int64_t blocks_of(std::int64_t keys, std::int64_t block) {
  return keys == 0 ? 0 : (keys - 1) / block + 1;
}

Status check_options(const AttentionProblem& problem, const MobaOptions& options) {
  if (options.block < 1) {
    return invalid_argument(
        "block is " + std::to_string(options.block) + ", must be at least 1 key");
  }
  if (options.top_k < 1) {
    return invalid_argument(
        "top_k is " + std::to_string(options.top_k) +
        ", must be at least 1: it counts the current block");
  }
  if (options.whole_length < 0) {
    return invalid_argument(
        "whole_length is " + std::to_string(options.whole_length) +
        ", must be the keys of the whole sequence, or 0 where the call has them all");
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

MobaElement element(AttentionType type) {
  switch (type) {
    case AttentionType::kBFloat16:
      return MobaElement::kBFloat16;
    case AttentionType::kFloat64:
      return MobaElement::kFloat64;
    case AttentionType::kFloat32:
      break;
  }
  return MobaElement::kFloat32;
}

std::int64_t element_size(MobaElement type) {
  switch (type) {
    case MobaElement::kBFloat16:
      return 2;
    case MobaElement::kFloat64:
      return 8;
    case MobaElement::kFloat32:
      break;
  }
  return 4;
}

template <typename Tensor, typename View>
Expected<Tensor> checked_tensor(
    std::string_view name,
    const View& view,
    const MobaPlan& plan,
    std::int64_t tokens,
    std::int64_t heads) {
  Tensor result{
      view.data,
      element(plan.type),
      view.token_stride == 0 ? heads * plan.dim : view.token_stride,
      view.head_stride == 0 ? plan.dim : view.head_stride};
  if (view.tokens != 0 && view.tokens < tokens) {
    return invalid_argument(
        std::string(name) + " has " + std::to_string(view.tokens) +
        " tokens, but the offsets in cu_q or cu_k end at " + std::to_string(tokens));
  }
  if (tokens == 0) {
    return result;
  }
  if (view.data == nullptr) {
    return invalid_argument(
        std::string(name) + " has no data for " + std::to_string(tokens) + " tokens");
  }
  if (reinterpret_cast<std::uintptr_t>(view.data) %
          static_cast<std::uintptr_t>(element_size(result.type)) !=
      0) {
    return invalid_argument(std::string(name) + " is not aligned to its element type");
  }
  if (result.token_stride < plan.dim || result.head_stride < plan.dim) {
    return invalid_argument(
        std::string(name) + ": token_stride " + std::to_string(result.token_stride) +
        " and head_stride " + std::to_string(result.head_stride) + " must be at least head_dim " +
        std::to_string(plan.dim) + " elements");
  }
  std::int64_t last = 0;
  // Bytes, of up to 8 for each element, have to fit too.
  if (__builtin_mul_overflow(tokens, result.token_stride, &last) || last > (INT64_MAX >> 5) ||
      __builtin_mul_overflow(heads, result.head_stride, &last) || last > (INT64_MAX >> 5)) {
    return invalid_argument(
        std::string(name) + ": token_stride " + std::to_string(result.token_stride) +
        " and head_stride " + std::to_string(result.head_stride) + " overflow 64 bits of address");
  }
  const bool by_token = result.token_stride >= (heads - 1) * result.head_stride + plan.dim;
  const bool by_head = result.head_stride >= (tokens - 1) * result.token_stride + plan.dim;
  if (!by_token && !by_head) {
    return invalid_argument(
        std::string(name) + ": rows overlap with token_stride " +
        std::to_string(result.token_stride) + " and head_stride " +
        std::to_string(result.head_stride));
  }
  return result;
}

}  // namespace

Expected<MobaPlan> plan_moba(const AttentionProblem& problem, const MobaOptions& options) {
  MUSTER_RETURN_IF_ERROR(check_numbers(problem));
  MUSTER_RETURN_IF_ERROR(check_options(problem, options));
  MUSTER_RETURN_IF_ERROR(check_offsets("cu_q", problem.cu_q));
  const auto cu_k = problem.cu_k.empty() ? problem.cu_q : problem.cu_k;
  MUSTER_RETURN_IF_ERROR(check_offsets("cu_k", cu_k));
  if (cu_k.size() != problem.cu_q.size()) {
    return invalid_argument(
        "cu_k is for " + std::to_string(cu_k.size() - 1) + " sequences and cu_q for " +
        std::to_string(problem.cu_q.size() - 1));
  }
  MobaPlan plan;
  plan.type = problem.type;
  plan.heads = problem.heads;
  plan.kv_heads = problem.kv_heads == 0 ? problem.heads : problem.kv_heads;
  plan.group = plan.heads / plan.kv_heads;
  plan.dim = problem.head_dim;
  plan.scale = problem.scale == 0 ? 1 / std::sqrt(static_cast<double>(plan.dim)) : problem.scale;
  plan.softcap = problem.softcap;
  plan.causal = problem.causal;
  plan.threads = problem.threads;
  plan.options = options;
  plan.total_q = problem.cu_q.back();
  plan.total_k = cu_k.back();
  for (std::size_t i = 0; i + 1 < cu_k.size(); ++i) {
    MobaSequence sequence;
    sequence.q_begin = problem.cu_q[i];
    sequence.queries = problem.cu_q[i + 1] - problem.cu_q[i];
    sequence.k_begin = cu_k[i];
    sequence.keys = cu_k[i + 1] - cu_k[i];
    sequence.first_block = plan.total_blocks;
    sequence.blocks = blocks_of(sequence.keys, options.block);
    sequence.dense =
        blocks_of(std::max(sequence.keys, options.whole_length), options.block) <= options.top_k;
    plan.sparse = plan.sparse || !sequence.dense;
    plan.total_blocks += sequence.blocks;
    plan.max_blocks = std::max(plan.max_blocks, sequence.blocks);
    plan.sequences.push_back(sequence);
  }
  if (plan.max_blocks >= std::int64_t{1} << 24U) {
    return invalid_argument(
        "block of " + std::to_string(options.block) + " cuts a sequence into " +
        std::to_string(plan.max_blocks) + " blocks; at most 2^24 - 1 can be told apart");
  }
  return plan;
}

MobaRows MobaTensor::rows(std::int64_t token, std::int64_t head) const {
  const auto* bytes = static_cast<const char*>(data);
  const std::int64_t offset = token * token_stride + head * head_stride;
  return {bytes + offset * element_size(type), type, token_stride, 0, nullptr, 0};
}

MobaTarget MobaOutput::rows(std::int64_t token, std::int64_t head) const {
  auto* bytes = static_cast<char*>(data);
  const std::int64_t offset = token * token_stride + head * head_stride;
  return {bytes + offset * element_size(type), type, token_stride, 0, nullptr, 0};
}

Expected<MobaTensor> moba_input(
    std::string_view name,
    const AttentionInput& input,
    const MobaPlan& plan,
    std::int64_t tokens,
    std::int64_t heads) {
  return checked_tensor<MobaTensor>(name, input, plan, tokens, heads);
}

Expected<MobaOutput> moba_output(
    std::string_view name,
    const AttentionOutput& output,
    const MobaPlan& plan,
    std::int64_t tokens,
    std::int64_t heads) {
  return checked_tensor<MobaOutput>(name, output, plan, tokens, heads);
}

void run_moba_tasks(
    const MobaPlan& plan, std::int64_t tasks, const std::function<void(std::int64_t)>& task) {
  ThreadTeam team(static_cast<int>(
      std::clamp<std::int64_t>(tasks, 1, static_cast<std::int64_t>(plan.threads))));
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
