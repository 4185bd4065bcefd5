// SPDX-License-Identifier: Apache-2.0
#include "agent/src/verdict/layer_report.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

namespace muster::agent {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Status check_size(const char* what, std::size_t size, std::size_t expected) {
  if (size == 0 || size == expected) {
    return {};
  }
  return invalid_argument(what, " has ", size, " values, must have ", expected, " or none");
}

Status check_record(const MobaRecord& record, std::size_t heads) {
  MUSTER_RETURN_IF_ERROR(check_size("gate_bound", record.gate_bound.size(), heads));
  MUSTER_RETURN_IF_ERROR(check_size("norm_bound", record.norm_bound.size(), heads));
  MUSTER_RETURN_IF_ERROR(check_size("nonfinite_rows", record.nonfinite_rows.size(), heads));
  MUSTER_RETURN_IF_ERROR(check_size("sink_share", record.sink_share.size(), heads));
  MUSTER_RETURN_IF_ERROR(check_size("gate_margin", record.gate_margin.size(), heads));
  if (record.blocks < 0) {
    return invalid_argument("blocks must not be negative, got ", record.blocks);
  }
  return check_size(
      "block_counts", record.block_counts.size(), heads * static_cast<std::size_t>(record.blocks));
}

// A bound that is not finite shows as +infinity, as a logit does.
void fold_bounds(std::span<const float> bounds, std::vector<double>& lanes) {
  for (std::size_t head = 0; head < bounds.size(); ++head) {
    const auto bound = static_cast<double>(bounds[head]);
    lanes[head] = std::max(lanes[head], std::isnan(bound) ? kInfinity : bound);
  }
}

void add_shares(std::span<const double> values, double& sum, double& count) {
  for (const double value : values) {
    if (std::isfinite(value)) {
      sum += value;
      count += 1;
    }
  }
}

void add_counts(const MobaRecord& record, MobaLanes& lanes) {
  const auto blocks = static_cast<std::size_t>(record.blocks);
  for (std::size_t begin = 0; begin < record.block_counts.size(); begin += blocks) {
    std::int64_t total = 0;
    std::int64_t largest = 0;
    for (std::size_t block = 0; block < blocks; ++block) {
      const std::int64_t count = record.block_counts[begin + block];
      const std::size_t bin =
          blocks <= MobaLanes::kBins ? block : block * MobaLanes::kBins / blocks;
      lanes.bin_counts[bin] += static_cast<double>(count);
      total += count;
      largest = std::max(largest, count);
    }
    if (total > 0) {
      const double ratio =
          static_cast<double>(largest) * static_cast<double>(blocks) / static_cast<double>(total);
      lanes.block_max_over_mean = std::max(lanes.block_max_over_mean, ratio);
    }
  }
  if (!record.block_counts.empty()) {
    lanes.blocks = std::max(lanes.blocks, static_cast<double>(record.blocks));
  }
}

}  // namespace

Status add_record(const MobaRecord& record, MobaLanes& lanes, std::span<float> max_logits) {
  MUSTER_RETURN_IF_ERROR(check_record(record, lanes.gate_bound.size()));
  fold_bounds(record.gate_bound, lanes.gate_bound);
  fold_bounds(record.norm_bound, lanes.norm_bound);
  for (std::size_t head = 0; head < record.nonfinite_rows.size(); ++head) {
    if (record.nonfinite_rows[head] > 0) {
      lanes.nonfinite_rows += static_cast<double>(record.nonfinite_rows[head]);
      max_logits[head] = std::numeric_limits<float>::quiet_NaN();
    }
  }
  add_shares(record.sink_share, lanes.sink_share_sum, lanes.sink_share_count);
  add_shares(record.gate_margin, lanes.gate_margin_sum, lanes.gate_margin_count);
  add_counts(record, lanes);
  return {};
}

Status add_reach(const kernels::GradientCoverage& coverage, MobaLanes& lanes) {
  const auto fits = [](std::int64_t part, std::int64_t whole) {
    return part >= 0 && part <= whole;
  };
  if (!fits(coverage.queries_reached, coverage.queries) ||
      !fits(coverage.blocks_reached, coverage.blocks)) {
    return invalid_argument(
        "a reach of ",
        coverage.queries_reached,
        " of ",
        coverage.queries,
        " queries and ",
        coverage.blocks_reached,
        " of ",
        coverage.blocks,
        " blocks: count what is reached among what is there");
  }
  lanes.queries_reached += static_cast<double>(coverage.queries_reached);
  lanes.queries += static_cast<double>(coverage.queries);
  lanes.blocks_reached += static_cast<double>(coverage.blocks_reached);
  lanes.reachable_blocks += static_cast<double>(coverage.blocks);
  return {};
}

void add_pass(const parallel::EpEvent& event, EpLanes& lanes) {
  lanes.rank_imbalance = std::max(lanes.rank_imbalance, event.rank_imbalance);
  lanes.copies += static_cast<double>(event.copies);
  lanes.rows_moved += static_cast<double>(event.rows_moved);
  lanes.pad_rows += static_cast<double>(event.pad_rows);
  lanes.rows += static_cast<double>(event.rows);
  lanes.dedup_rows += static_cast<double>(event.dedup_rows);
  lanes.bytes_out += static_cast<double>(event.bytes_out);
}

}  // namespace muster::agent
