// SPDX-License-Identifier: Apache-2.0
#include "trainer/moe_lm/src/needle.h"

#include <muster/common/random.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace muster::moe_lm {
namespace {

// Philox streams, distinct from those of text and weights.
constexpr std::uint64_t kTrainStream = 0x6e65656400000000;
constexpr std::uint64_t kHeldOutStream = 0x6865656c00000000;
constexpr std::uint64_t kHeldOutSeed = 20260101;

// Returns `count` different numbers below `below`, in random order.
std::vector<std::int32_t> draw(std::int64_t count, std::int64_t below, Random& random) {
  std::vector<std::int32_t> all(static_cast<std::size_t>(below));
  std::iota(all.begin(), all.end(), 0);
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    std::swap(all[i], all[i + random.below(all.size() - i)]);
  }
  all.resize(static_cast<std::size_t>(count));
  return all;
}

void append(std::int64_t length, std::int64_t pairs, Random random, Batch& batch) {
  const std::int64_t hay = length - kQuestionsPerNeedle * pairs;
  const std::vector<std::int32_t> places = draw(pairs, hay, random);
  const std::vector<std::int32_t> keys = draw(pairs, kNeedleKeys, random);
  const std::size_t begin = batch.tokens.size();
  const std::size_t end = begin + static_cast<std::size_t>(length);
  batch.tokens.resize(end);
  batch.targets.resize(end, -1);
  batch.origins.resize(end, -1);
  for (std::size_t at = begin; at < end; ++at) {
    batch.tokens[at] = static_cast<std::int32_t>('a' + random.below(26));
  }
  std::vector<std::int32_t> values;
  for (std::size_t i = 0; i < places.size(); ++i) {
    values.push_back(static_cast<std::int32_t>(random.below(kNeedleValues)));
    batch.tokens[begin + static_cast<std::size_t>(places[i])] = needle_byte(keys[i], values[i]);
  }
  for (std::size_t at = begin + static_cast<std::size_t>(hay); at < end; ++at) {
    const std::uint64_t asked = random.below(places.size());
    batch.tokens[at] = 'A' + keys[asked];
    batch.targets[at] = '0' + values[asked];
    batch.origins[at] = places[asked];
  }
}

}  // namespace

Batch NeedleSource::sequences(std::int64_t index, std::int64_t first, std::int64_t count) const {
  Batch batch;
  for (std::int64_t sequence = first; sequence < first + count; ++sequence) {
    const auto global = static_cast<std::uint64_t>(index * sequences_per_batch + sequence);
    append(length, pairs, Random{seed, kTrainStream + global}, batch);
  }
  return batch;
}

Batch NeedleSource::held_out(std::int64_t first, std::int64_t count) const {
  Batch batch;
  for (std::int64_t sequence = first; sequence < first + count; ++sequence) {
    const auto global = static_cast<std::uint64_t>(sequence);
    append(length, pairs, Random{kHeldOutSeed, kHeldOutStream + global}, batch);
  }
  return batch;
}

Status validate_needle(std::int64_t pairs, std::int64_t length) {
  if (pairs < 1 || pairs > kNeedleKeys) {
    return invalid_argument(
        "--needle must be between 1 and the ", kNeedleKeys, " keys, got ", pairs);
  }
  if (length < (kQuestionsPerNeedle + 1) * pairs) {
    return invalid_argument(
        "--needle ",
        pairs,
        " needles and their questions do not fit --seq ",
        length,
        "; it takes ",
        (kQuestionsPerNeedle + 1) * pairs,
        " or more");
  }
  return {};
}

}  // namespace muster::moe_lm
