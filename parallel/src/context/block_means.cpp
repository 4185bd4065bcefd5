// SPDX-License-Identifier: Apache-2.0
// Mean keys of blocks that may be distributed over ranks.
#include "parallel/src/context/exchange.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <utility>

namespace muster::parallel {

namespace {

// Keys of a block within one segment.
struct Piece {
  std::int64_t block;  // among the blocks of all sequences
  std::int64_t begin;  // first key in its sequence
  std::int64_t count;
  std::int64_t local;  // first key's row in the shard
  bool whole;
};

std::vector<std::int64_t> first_blocks(const ContextPlan& plan, std::int64_t block) {
  std::vector<std::int64_t> result{0};
  for (std::size_t s = 0; s + 1 < plan.cu().size(); ++s) {
    result.push_back(result.back() + kernels::moba_block_count(plan.cu().subspan(s, 2), block));
  }
  return result;
}

std::vector<Piece> pieces_of(
    const ContextPlan& plan,
    int rank,
    std::int64_t block,
    const std::vector<std::int64_t>& first_block) {
  std::vector<Piece> pieces;
  for (const ContextSegment& segment : plan.segments(rank)) {
    const std::int64_t length = plan.length(segment.sequence);
    for (std::int64_t key = segment.begin; key < segment.end;) {
      const std::int64_t b = key / block;
      const std::int64_t block_end = block < length - b * block ? (b + 1) * block : length;
      const std::int64_t end = std::min(block_end, segment.end);
      pieces.push_back(
          {first_block[static_cast<std::size_t>(segment.sequence)] + b,
           key,
           end - key,
           segment.local + key - segment.begin,
           key == b * block && end == block_end});
      key = end;
    }
  }
  return pieces;
}

// Number of floats of a piece on the wire: one per mean, two per fp64 sum.
std::int64_t wire_size(const Piece& piece, std::int64_t kv_row) {
  return piece.whole ? kv_row : 2 * kv_row;
}

std::size_t wire_size(const std::vector<Piece>& pieces, std::int64_t kv_row) {
  std::int64_t size = 0;
  for (const Piece& piece : pieces) {
    size += wire_size(piece, kv_row);
  }
  return static_cast<std::size_t>(size);
}

void pack(const std::vector<Piece>& pieces, const float* k, std::int64_t kv_row, float* to) {
  std::vector<double> sums(static_cast<std::size_t>(kv_row));
  for (const Piece& piece : pieces) {
    std::fill(sums.begin(), sums.end(), 0.0);
    for (std::int64_t key = piece.local; key < piece.local + piece.count; ++key) {
      for (std::int64_t c = 0; c < kv_row; ++c) {
        sums[static_cast<std::size_t>(c)] += static_cast<double>(k[key * kv_row + c]);
      }
    }
    if (piece.whole) {
      std::transform(sums.begin(), sums.end(), to, [&](double sum) {
        return static_cast<float>(sum / static_cast<double>(piece.count));
      });
    } else {
      std::memcpy(to, sums.data(), sums.size() * sizeof(double));
    }
    to += wire_size(piece, kv_row);
  }
}

struct Part {
  Piece piece;
  const float* data;  // its mean or its sums
};

// The mean of a block from its parts in order of position.
void combine(std::span<const Part> parts, std::vector<double>& sums, std::vector<float>& mean) {
  if (parts.front().piece.whole) {
    std::copy_n(parts.front().data, mean.size(), mean.data());
    return;
  }
  std::fill(sums.begin(), sums.end(), 0.0);
  std::int64_t count = 0;
  std::vector<double> more(sums.size());
  for (const Part& part : parts) {
    std::memcpy(more.data(), part.data, more.size() * sizeof(double));
    std::transform(sums.begin(), sums.end(), more.begin(), sums.begin(), std::plus<>());
    count += part.piece.count;
  }
  std::transform(sums.begin(), sums.end(), mean.begin(), [count](double sum) {
    return static_cast<float>(sum / static_cast<double>(count));
  });
}

std::vector<Piece> joined(const std::vector<std::vector<Piece>>& by_rank) {
  std::vector<Piece> all;
  for (const auto& pieces : by_rank) {
    all.insert(all.end(), pieces.begin(), pieces.end());
  }
  return all;
}

// Sorted parts of all blocks to means [kv_heads, blocks, head_dim].
void write_means(
    const std::vector<Part>& parts,
    std::int64_t kv_row,
    std::int64_t dim,
    std::int64_t blocks,
    std::vector<float>& means) {
  means.resize(static_cast<std::size_t>(blocks * kv_row));
  std::vector<double> sums(static_cast<std::size_t>(kv_row));
  std::vector<float> mean(sums.size());
  for (std::size_t begin = 0; begin < parts.size();) {
    const std::int64_t block = parts[begin].piece.block;
    std::size_t end = begin;
    while (end < parts.size() && parts[end].piece.block == block) {
      ++end;
    }
    combine(std::span(parts).subspan(begin, end - begin), sums, mean);
    for (std::int64_t head = 0; head < kv_row / dim; ++head) {
      std::copy_n(mean.data() + head * dim, dim, means.data() + (head * blocks + block) * dim);
    }
    begin = end;
  }
}

}  // namespace

Status context_block_means(
    const ContextCall& call,
    const kernels::MobaOptions& options,
    std::span<const float> k,
    std::vector<float>& means) {
  MUSTER_RETURN_IF_ERROR(check_context_call(call, &options));
  MUSTER_RETURN_IF_ERROR(check_context_keys(call, k));
  const ContextSizes sizes(call);
  const auto first_block = first_blocks(call.plan, options.block);
  std::vector<std::vector<Piece>> pieces;
  std::vector<std::size_t> counts;
  for (int rank = 0; rank < call.plan.ranks(); ++rank) {
    pieces.push_back(pieces_of(call.plan, rank, options.block, first_block));
    counts.push_back(wire_size(pieces.back(), sizes.kv_row));
  }
  const auto own = static_cast<std::size_t>(sizes.rank);
  const auto before = std::accumulate(
      counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(own), std::size_t{0});
  std::vector<float> wire(std::accumulate(counts.begin(), counts.end(), std::size_t{0}));
  pack(pieces[own], k.data(), sizes.kv_row, wire.data() + before);
  MUSTER_RETURN_IF_ERROR(call.world.all_gather(std::span<float>(wire), counts, call.deadline));
  if (call.traffic != nullptr) {
    call.traffic->pooled_key_bytes +=
        static_cast<std::int64_t>((wire.size() - counts[own]) * sizeof(float));
  }

  std::vector<Part> parts;
  const float* data = wire.data();
  for (const Piece& piece : joined(pieces)) {
    parts.push_back({piece, data});
    data += wire_size(piece, sizes.kv_row);
  }
  std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) {
    return std::pair(a.piece.block, a.piece.begin) < std::pair(b.piece.block, b.piece.begin);
  });
  write_means(parts, sizes.kv_row, call.problem.head_dim, first_block.back(), means);
  return {};
}

}  // namespace muster::parallel
