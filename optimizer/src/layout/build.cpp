// SPDX-License-Identifier: Apache-2.0
#include "optimizer/src/layout/build.h"

#include <algorithm>

namespace muster::optimizer {
namespace {

// The last legal cut at or before `position` (invariant 4): parameters start and end at one, so do
// units, and inside a unit there is one every cut_granularity elements. The padding behind a
// parameter goes with it: a position inside is moved to the next parameter's start.
std::size_t legal_cut(
    const BufferPlan& plan,
    const LayoutInput& input,
    const PlacedRange& range,
    std::size_t at,
    std::size_t position) {
  const PlacedParameter& placed = plan.placed[at];
  const RoutedParameter& parameter = input.at(placed.parameter);
  const std::size_t offset = position - placed.begin;
  if (offset >= parameter.size) {
    return at + 1 < range.last ? plan.placed[at + 1].begin : range.end;
  }
  const auto granularity = static_cast<std::size_t>(input.options.cut_granularity);
  const std::size_t inside = offset % parameter.unit;
  return placed.begin + offset - inside % granularity;
}

}  // namespace

std::vector<std::vector<std::size_t>> make_buckets(
    const LayoutInput& input, std::span<const std::size_t> parameters) {
  std::vector<std::vector<std::size_t>> buckets;
  const std::size_t limit = input.options.bucket_bytes;
  std::size_t bytes = 0;
  for (auto parameter = parameters.rbegin(); parameter != parameters.rend(); ++parameter) {
    if (buckets.empty() || (limit != 0 && bytes >= limit)) {
      buckets.emplace_back();
      bytes = 0;
    }
    buckets.back().push_back(*parameter);
    bytes += input.at(*parameter).size * sizeof(float);
  }
  for (auto& bucket : buckets) {
    std::reverse(bucket.begin(), bucket.end());
  }
  return buckets;
}

void place_in_order(BufferPlan& plan, const LayoutInput& input) {
  for (const std::size_t parameter : input.selected) {
    plan.placed.push_back({parameter, plan.size});
    plan.size += aligned(input.at(parameter).size);
  }
}

std::vector<PlacedRange> bucket_ranges(const BufferPlan& plan, const LayoutInput& input) {
  std::vector<PlacedRange> ranges;
  std::size_t last = plan.placed.size();
  std::size_t end = plan.size;
  for (const auto& bucket : make_buckets(input, input.selected)) {
    const std::size_t first = last - bucket.size();
    ranges.push_back({first, last, plan.placed[first].begin, end});
    last = first;
    end = plan.placed[first].begin;
  }
  return ranges;
}

std::vector<std::size_t> even_cuts(
    const BufferPlan& plan, const LayoutInput& input, const PlacedRange& range) {
  const auto ranks = static_cast<std::size_t>(plan.ranks);
  const std::size_t size = range.end - range.begin;
  std::vector<std::size_t> cuts(ranks + 1, range.begin);
  std::size_t at = range.first;
  for (std::size_t rank = 1; rank < ranks; ++rank) {
    // size * rank / ranks without the product, which may not fit.
    const std::size_t position = range.begin + size / ranks * rank + size % ranks * rank / ranks;
    while (at + 1 < range.last && plan.placed[at + 1].begin <= position) {
      ++at;
    }
    cuts[rank] = legal_cut(plan, input, range, at, position);
  }
  cuts[ranks] = range.end;
  return cuts;
}

void visit_cut_shards(
    const BufferPlan& plan,
    const LayoutInput& input,
    const PlacedRange& range,
    std::span<const std::size_t> cuts) {
  std::size_t rank = 0;
  for (std::size_t at = range.first; at < range.last; ++at) {
    const PlacedParameter& placed = plan.placed[at];
    const std::size_t end = placed.begin + input.at(placed.parameter).size;
    std::size_t begin = placed.begin;
    while (begin < end) {
      while (cuts[rank + 1] <= begin) {
        ++rank;
      }
      const std::size_t stop = std::min(end, cuts[rank + 1]);
      input.visit(
          static_cast<int>(rank), {placed.parameter, begin, begin - placed.begin, stop - begin});
      begin = stop;
    }
  }
}

Bucket cut_bucket(
    const BufferPlan& plan,
    const LayoutInput& input,
    const PlacedRange& range,
    std::span<const std::size_t> cuts) {
  Bucket bucket;
  bucket.begin = range.begin;
  bucket.size = range.end - range.begin;
  for (std::size_t at = range.first; at < range.last; ++at) {
    bucket.parameters.push_back(plan.placed[at].parameter);
  }
  if (input.detailed) {
    bucket.counts.reserve(cuts.size() - 1);
    for (std::size_t rank = 0; rank + 1 < cuts.size(); ++rank) {
      const std::size_t begin = std::clamp(cuts[rank], range.begin, range.end);
      bucket.counts.push_back(std::clamp(cuts[rank + 1], range.begin, range.end) - begin);
    }
  }
  return bucket;
}

}  // namespace muster::optimizer
