// SPDX-License-Identifier: Apache-2.0
#include <muster/parallel/experts/sizes.h>

#include <algorithm>
#include <limits>
#include <string>

namespace muster::parallel {

namespace {

Status check_layer(const EpLayerShape& layer) {
  MUSTER_RETURN_IF_ERROR(check(layer.shape, layer.balance));
  static constexpr std::int64_t kMost = std::int64_t{1} << 24;
  const auto refuse = [](const std::string& name, std::int64_t value) {
    return invalid_argument("expert parallelism: ", name, " must be 1..", kMost, ", got ", value);
  };
  if (layer.hidden < 1 || layer.hidden > kMost) {
    return refuse("hidden", layer.hidden);
  }
  if (layer.ffn < 1 || layer.ffn > kMost) {
    return refuse("ffn", layer.ffn);
  }
  if (layer.projections < 1 || layer.projections > 16) {
    return invalid_argument(
        "expert parallelism: projections must be 1..16 matrices per expert, got ",
        layer.projections);
  }
  return {};
}

// As EpPlan allocates.
std::int64_t plan_bytes(const EpShape& shape) {
  const std::int64_t per_expert =
      sizeof(std::int32_t) + sizeof(std::int64_t) + sizeof(std::int32_t);
  const std::int64_t per_group = 3 * sizeof(std::int64_t);
  const std::int64_t per_rank = per_expert * shape.experts + per_group * shape.group_count() +
                                std::int64_t{sizeof(std::int32_t)} * shape.slot_count();
  return per_rank * shape.ranks +
         std::int64_t{sizeof(std::int64_t)} * shape.tokens_max * shape.top_k;
}

void add_memory(const EpLayerShape& layer, EpSizes& sizes) {
  const EpShape& shape = layer.shape;
  const std::int64_t width = size_bytes(layer.type, 1);
  const std::int64_t elements = layer.hidden * layer.ffn * layer.projections;
  sizes.receive_rows = ep_receive_rows(shape, layer.balance);
  sizes.receive_bytes = sizes.receive_rows * (layer.hidden * width + 4);
  sizes.plan_bytes = plan_bytes(shape);
  sizes.counts_bytes = std::int64_t{4} * shape.ranks * shape.experts;
  sizes.expert_bytes = elements * width;
  sizes.expert_gradient_bytes = elements * 4;
  sizes.home_weight_bytes = sizes.expert_bytes * shape.local_experts();
  sizes.home_gradient_bytes =
      ep_trains(layer) ? sizes.expert_gradient_bytes * shape.local_experts() : 0;
  sizes.pool_weight_bytes = sizes.expert_bytes * shape.slot_count();
  sizes.pool_gradient_bytes =
      ep_trains(layer) ? sizes.expert_gradient_bytes * shape.slot_count() : 0;
  sizes.prefetch_bytes = sizes.expert_bytes;
  sizes.reduce_bytes = ep_trains(layer) ? sizes.expert_gradient_bytes : 0;
  EpShape unpadded = shape;
  unpadded.padding = 1;
  const std::int64_t rows = shape.tokens_max * shape.top_k;
  sizes.pad_rows_worst = sizes.receive_rows - ep_receive_rows(unpadded, layer.balance);
  sizes.pad_fraction_worst = static_cast<double>(sizes.pad_rows_worst) / static_cast<double>(rows);
  sizes.forward_flops = 2.0 * static_cast<double>(rows) * static_cast<double>(elements);
}

void add_wire(const EpLayerShape& layer, EpSizes& sizes) {
  const EpShape& shape = layer.shape;
  const double others = static_cast<double>(shape.ranks - 1) / shape.ranks;
  const auto tokens = static_cast<double>(shape.tokens_max);
  const double row_bytes = static_cast<double>(size_bytes(layer.type, layer.hidden));
  sizes.distinct_ranks = ep_distinct_ranks(shape);
  sizes.remote_rows = sizes.distinct_ranks * others;
  sizes.remote_rows_not_deduplicated = shape.top_k * others;
  sizes.remote_rows_worst = std::min(shape.top_k, shape.ranks - 1);
  sizes.dispatch_bytes = tokens * sizes.remote_rows * row_bytes;
  sizes.dispatch_bytes_worst = tokens * sizes.remote_rows_worst * row_bytes;
  sizes.weight_bytes = tokens * sizes.remote_rows_not_deduplicated * 4;
  sizes.duplicate_bytes = tokens * (shape.top_k - sizes.distinct_ranks) * row_bytes;
}

}  // namespace

bool ep_trains(const EpLayerShape& layer) {
  return !layer.inference && layer.shape.slot_count() >= layer.shape.local_experts();
}

double ep_distinct_ranks(const EpShape& shape) {
  double none = 1;  // none of the choices falls on a given rank
  for (int k = 0; k < shape.top_k; ++k) {
    none *= std::max(0.0, static_cast<double>(shape.experts - shape.local_experts() - k)) /
            (shape.experts - k);
  }
  return shape.ranks * (1 - none);
}

Expected<EpSizes> ep_sizes(const EpLayerShape& layer) {
  MUSTER_RETURN_IF_ERROR(check_layer(layer));
  EpSizes sizes;
  add_memory(layer, sizes);
  add_wire(layer, sizes);
  return sizes;
}

EpBreakEven ep_break_even(const EpSizes& sizes, const EpRates& rates, bool backward) {
  const double copies = static_cast<double>(rates.copies_out) / rates.link_bytes;
  const double prefetch = copies * static_cast<double>(sizes.prefetch_bytes);
  const double reduce = copies * static_cast<double>(sizes.reduce_bytes);
  EpBreakEven result;
  result.compute_seconds = (backward ? 3 : 1) * sizes.forward_flops / rates.gemm_flops;
  result.dispatch_seconds = (backward ? 4 : 1) * sizes.dispatch_bytes / rates.link_bytes;
  const double moved = backward ? 2 * prefetch + reduce : prefetch;
  result.cost_seconds = std::max(0.0, rates.plan_seconds + moved - rates.overlap_seconds);
  result.imbalance = 1 + result.cost_seconds / (result.compute_seconds + result.dispatch_seconds);
  return result;
}

double ep_break_even_tokens(
    const EpBreakEven& at_tokens_max, std::int64_t tokens_max, double imbalance) {
  if (imbalance <= 1) {
    return std::numeric_limits<double>::infinity();
  }
  const double per_token = (at_tokens_max.compute_seconds + at_tokens_max.dispatch_seconds) /
                           static_cast<double>(tokens_max);
  return at_tokens_max.cost_seconds / ((imbalance - 1) * per_token);
}

}  // namespace muster::parallel
