// SPDX-License-Identifier: Apache-2.0
// Training text and the sequences of its batches.
#pragma once

#include <muster/common/expected.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace muster::moe_lm {

// Reads a file, or concatenates a folder's chapter_*.txt files (or else all its *.txt files),
// chapter_2 before chapter_10. Errors name the path.
[[nodiscard]] Expected<std::string> load_text(const std::filesystem::path& path);

// Returns true if `a` sorts before `b` with runs of digits compared as numbers.
[[nodiscard]] bool natural_less(const std::string& a, const std::string& b);

// Sequences of bytes, with the byte that follows each of them.
struct Batch {
  std::vector<std::int32_t> tokens;   // [sequences, length]
  std::vector<std::int32_t> targets;  // [sequences, length]
  // [sequences, length] position in the sequence of the token that a target repeats, or -1. Empty
  // if unknown.
  std::vector<std::int32_t> origins;
};

// Keeps the target of every n-th token of each sequence of `length`, the last of each n. The others
// become -1, which has no loss.
void keep_loss_of_every(std::int64_t n, std::int64_t length, Batch& batch);

// Returns sequences [first, first + count) of global batch `index`. A pure function, so that any
// number of ranks trains on the same data. `text` must be longer than `length`.
struct BatchSource {
  const std::string* text{nullptr};
  std::uint64_t seed{0};
  std::int64_t sequences_per_batch{0};
  std::int64_t length{0};

  [[nodiscard]] Batch sequences(std::int64_t index, std::int64_t first, std::int64_t count) const;
  // Held-out sequences of the same text, the same for every seed.
  [[nodiscard]] Batch elsewhere(std::int64_t first, std::int64_t count) const;
};

}  // namespace muster::moe_lm
