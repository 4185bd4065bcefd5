// SPDX-License-Identifier: Apache-2.0
// Choices of the gate, by query and by block.
#pragma once

#include "kernels/moba/cpu/call.h"

#include <cstdint>
#include <span>
#include <vector>

namespace muster::kernels {

struct MobaSelection::State {
  // The call that it was made for; `call.cut_sequences` hold the offsets.
  MobaCall call;
  // [choices, total_q, slots] block indices in the sequence, ascending, -1 after the last. The
  // current block is not among them.
  std::vector<std::int32_t> picks;
  // Queries (rows of their sequence, ascending) that chose a block: list (choice, block of all
  // sequences) is rows[offsets[choice * total_blocks + block] .. the next offset).
  std::vector<std::int64_t> offsets;
  std::vector<std::int32_t> rows;

  // Takes the call and makes room for picks.
  void begin(const MobaCall& of);
  // Builds the lists from the picks by a counting pass.
  void build_lists();

  [[nodiscard]] std::span<std::int32_t> picks_of(
      const MobaSequence& sequence, std::int64_t choice, std::int64_t row);
  [[nodiscard]] std::span<const std::int32_t> list(
      const MobaSequence& sequence, std::int64_t choice, std::int64_t block) const;
  // Returns the part of a list in [begin, end).
  [[nodiscard]] std::span<const std::int32_t> list_within(
      const MobaSequence& sequence,
      std::int64_t choice,
      std::int64_t block,
      std::int64_t begin,
      std::int64_t end) const;

  // Checks that it was made by a forward of an equal call; kInvalidArgument otherwise.
  [[nodiscard]] Status check(const MobaCall& other) const;
};

}  // namespace muster::kernels
