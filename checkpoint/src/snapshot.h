// SPDX-License-Identifier: Apache-2.0
// Host copy of a rank's state that the writer thread saves while training continues.
//
// Not thread-safe: filled by the training thread, then read by the writer thread, never both.
#pragma once

#include "checkpoint/src/rank_record.h"

#include <muster/checkpoint/checkpoint.h>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace muster::checkpoint {

// Pieces in the caller's order with offsets into the data section, which is laid out by descending
// element size, so that every piece is aligned. Hashes are still empty. kInvalidArgument names the
// piece that has an unknown dtype, a wrong byte count, or does not fit its global shape.
[[nodiscard]] Expected<std::vector<PieceRecord>> plan_pieces(const RankState& state);

// True if `pieces` equals plan_pieces(state), as for every save but the first of a training loop,
// at a fraction of the cost.
[[nodiscard]] bool plan_fits(const std::vector<PieceRecord>& pieces, const RankState& state);

// Length of the data section.
[[nodiscard]] std::uint64_t data_bytes(const std::vector<PieceRecord>& pieces);

class Snapshot {
 public:
  // Copies the data of `state` to the positions in `pieces`. The first call allocates memory and
  // later ones reuse it. kResourceExhausted when memory is short.
  [[nodiscard]] Status fill(
      const RankState& state, std::shared_ptr<const std::vector<PieceRecord>> pieces);

  [[nodiscard]] std::span<const std::byte> data() const { return {memory_.get(), size_}; }

  [[nodiscard]] const std::vector<PieceRecord>& pieces() const { return *pieces_; }

  [[nodiscard]] const std::map<std::string, std::string>& values() const { return values_; }

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::size_t capacity_{0};
  std::size_t size_{0};
  std::shared_ptr<const std::vector<PieceRecord>> pieces_;
  std::map<std::string, std::string> values_;
};

}  // namespace muster::checkpoint
