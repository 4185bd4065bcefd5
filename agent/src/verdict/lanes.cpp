// SPDX-License-Identifier: Apache-2.0
// Lanes of the verdict: position of each value in the two vectors, and its form in a reduction.
#include "agent/src/verdict/layer_lanes.h"
#include "agent/src/verdict/statistic_lanes.h"

#include <muster/agent/verdict.h>
#include <muster/common/check.h>
#include <muster/common/hash.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

namespace muster::agent {
namespace {

constexpr std::size_t kSumScalars = 3;
constexpr std::size_t kMaxScalars = 15;
// The squared norm and the element count lead the sums.
constexpr std::size_t kSumPerGroup =
    2 + sum_lanes(kernels::kUpdateStatistics) + sum_lanes(optimizer::kBlockStatistics);
constexpr std::size_t kMaxPerGroup =
    max_lanes(kernels::kUpdateStatistics) + max_lanes(optimizer::kBlockStatistics);

using LaneRows = std::vector<std::vector<double>>;

std::size_t total(const std::vector<int>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0}, [](std::size_t sum, int n) {
    return sum + static_cast<std::size_t>(n);
  });
}

// Statistics of a group; a rank that recorded no update has an empty vector.
const optimizer::GroupUpdateStatistics& update_of(const LocalLanes& lanes, std::size_t group) {
  static const optimizer::GroupUpdateStatistics kNoUpdate;
  return lanes.update.empty() ? kNoUpdate : lanes.update[group];
}

void encode_sums(const LaneLayout& layout, const LocalLanes& lanes, LaneWriter& out) {
  out.finite(lanes.loss_sum);
  out.finite(lanes.token_count);
  out.finite(lanes.nonfinite_count);
  for (std::size_t g = 0; g < layout.groups; ++g) {
    out.finite(lanes.squared_norm.empty() ? 0.0 : lanes.squared_norm[g]);
    const optimizer::GroupUpdateStatistics& update = update_of(lanes, g);
    out.raw(as_lane(update.element_count));
    write_sums(kernels::kUpdateStatistics, update.elements, out);
    write_sums(optimizer::kBlockStatistics, update.blocks, out);
  }
  for (std::size_t layer = 0; layer < layout.experts.size(); ++layer) {
    for (std::size_t e = 0; e < static_cast<std::size_t>(layout.experts[layer]); ++e) {
      out.finite(lanes.expert_counts.empty() ? 0.0 : lanes.expert_counts[layer][e]);
    }
  }
  encode_layer_sums(layout, lanes, out);
}

// True when a logit of this rank is NaN or +infinity (-infinity means that no pair was visible).
bool encode_logits(const LaneLayout& layout, const LocalLanes& lanes, LaneWriter& out) {
  bool nonfinite = false;
  for (std::size_t layer = 0; layer < layout.heads.size(); ++layer) {
    for (std::size_t h = 0; h < static_cast<std::size_t>(layout.heads[layer]); ++h) {
      double logit =
          lanes.max_logits.empty() ? kAbsent : static_cast<double>(lanes.max_logits[layer][h]);
      if (std::isnan(logit) || logit > std::numeric_limits<double>::max()) {
        logit = -kAbsent;
        nonfinite = true;
      }
      out.raw(logit);
    }
  }
  return nonfinite;
}

void check_shapes(const LaneLayout& layout, const LocalLanes& lanes) {
  const auto fits = [](std::size_t size, std::size_t expected) {
    return size == 0 || size == expected;
  };
  MUSTER_CHECK(
      fits(lanes.squared_norm.size(), layout.groups) && fits(lanes.update.size(), layout.groups),
      "one lane per norm group");
  MUSTER_CHECK(fits(lanes.max_logits.size(), layout.heads.size()), "one row of logits per layer");
  MUSTER_CHECK(
      fits(lanes.expert_counts.size(), layout.experts.size()), "one row of counts per MoE layer");
  check_layer_shapes(layout, lanes);
}

}  // namespace

std::size_t LaneLayout::sum_size() const {
  return kSumScalars + groups * kSumPerGroup + total(experts) + layer_sum_size(*this);
}

std::size_t LaneLayout::max_size() const {
  return kMaxScalars + groups * kMaxPerGroup + total(heads) + layer_max_size(*this);
}

std::uint64_t command_digest(
    std::span<const Command> pending, std::uint64_t after, std::uint64_t up_to) {
  std::vector<std::uint64_t> words;
  for (const Command& command : pending) {
    if (command.id.value() > after && command.id.value() <= up_to) {
      std::uint64_t argument = 0;
      std::memcpy(&argument, &command.argument, sizeof argument);
      words.insert(
          words.end(),
          {command.id.value(),
           static_cast<std::uint64_t>(command.kind),
           argument,
           static_cast<std::uint64_t>(command.expires_step)});
    }
  }
  return words.empty() ? 0 : hash64(std::as_bytes(std::span{words})) >> 12U;
}

void encode(
    const LaneLayout& layout,
    const LocalLanes& lanes,
    std::span<double> sum,
    std::span<double> max) {
  MUSTER_CHECK(sum.size() == layout.sum_size() && max.size() == layout.max_size(), "lane buffers");
  check_shapes(layout, lanes);
  LaneWriter sums{sum};
  encode_sums(layout, lanes, sums);

  // The three flags lead but are known only after everything else was looked at.
  LaneWriter out{max.subspan(3)};
  out.finite(lanes.local_loss);
  out.raw(as_lane(lanes.preempt));
  out.range(lanes.generation);
  out.range(lanes.armed_command);
  out.range(lanes.pending_digest);
  out.range(lanes.replica_digest);
  out.raw(-as_lane(lanes.prepared_checkpoint));
  out.raw(as_lane(lanes.failed_checkpoint));
  MUSTER_CHECK(out.position() + 3 == kMaxScalars, "kMaxScalars counts the lanes above");
  for (std::size_t g = 0; g < layout.groups; ++g) {
    const optimizer::GroupUpdateStatistics& update = update_of(lanes, g);
    write_extremes(kernels::kUpdateStatistics, update.elements, out);
    write_extremes(optimizer::kBlockStatistics, update.blocks, out);
  }
  const bool nonfinite_logit = encode_logits(layout, lanes, out) || has_nonfinite_rows(lanes);
  encode_layer_maxima(layout, lanes, out);
  const bool nonfinite_loss = !std::isfinite(lanes.loss_sum) || !std::isfinite(lanes.local_loss);
  max[0] =
      as_lane(sums.nonfinite() || out.nonfinite() || nonfinite_logit || lanes.nonfinite_count > 0);
  max[1] = as_lane(nonfinite_loss);
  max[2] = as_lane(nonfinite_logit);
}

namespace {

void decode_rows(const std::vector<int>& sizes, LaneReader& in, LaneRows& rows) {
  rows.resize(sizes.size());
  for (std::size_t layer = 0; layer < sizes.size(); ++layer) {
    rows[layer].resize(static_cast<std::size_t>(sizes[layer]));
    std::generate(rows[layer].begin(), rows[layer].end(), [&in] { return in.next(); });
  }
}

void decode_sums(const LaneLayout& layout, LaneReader& in, ReducedLanes& out) {
  out.loss_sum = in.next();
  out.token_count = in.next();
  out.nonfinite_count = in.next();
  out.squared_norm.resize(layout.groups);
  out.update.resize(layout.groups);
  for (std::size_t g = 0; g < layout.groups; ++g) {
    out.squared_norm[g] = in.next();
    out.update[g].element_count = in.integer();
    read_sums(kernels::kUpdateStatistics, in, out.update[g].elements);
    read_sums(optimizer::kBlockStatistics, in, out.update[g].blocks);
  }
  decode_rows(layout.experts, in, out.expert_counts);
  decode_layer_sums(layout, in, out);
}

void decode_maxima(const LaneLayout& layout, LaneReader& in, ReducedLanes& out) {
  out.nonfinite = in.flag();
  out.nonfinite_loss = in.flag();
  out.nonfinite_logit = in.flag();
  out.local_loss_max = in.next();
  out.preempt = in.flag();
  out.generation_max = in.integer();
  out.generation_min = in.minimum();
  out.armed_command_max = in.count();
  out.armed_command_min = in.count_minimum();
  out.pending_digest_max = in.count();
  out.pending_digest_min = in.count_minimum();
  out.replica_digest_max = in.count();
  out.replica_digest_min = in.count_minimum();
  out.prepared_checkpoint_min = in.minimum();
  out.failed_checkpoint_max = in.integer();
  for (optimizer::GroupUpdateStatistics& update : out.update) {
    read_extremes(kernels::kUpdateStatistics, in, update.elements);
    read_extremes(optimizer::kBlockStatistics, in, update.blocks);
  }
  decode_rows(layout.heads, in, out.max_logits);
  decode_layer_maxima(layout, in, out);
}

}  // namespace

void decode(
    const LaneLayout& layout,
    std::span<const double> sum,
    std::span<const double> max,
    ReducedLanes& out) {
  MUSTER_CHECK(sum.size() == layout.sum_size() && max.size() == layout.max_size(), "lane buffers");
  LaneReader sums{sum};
  decode_sums(layout, sums, out);
  LaneReader maxima{max};
  decode_maxima(layout, maxima, out);
}

ReducedLanes decode(
    const LaneLayout& layout, std::span<const double> sum, std::span<const double> max) {
  ReducedLanes out;
  decode(layout, sum, max, out);
  return out;
}

}  // namespace muster::agent
