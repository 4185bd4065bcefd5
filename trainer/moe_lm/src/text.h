// The bytes to train on, and which of them make up a batch.
#pragma once

#include <muster/common/expected.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace muster::moe_lm {

// A file as it is; a folder's chapter_*.txt files (or else all its *.txt files) one after the
// other, chapter_2 before chapter_10. Errors name the path.
[[nodiscard]] Expected<std::string> load_text(const std::filesystem::path& path);

// Whether `a` comes before `b` when runs of digits count as numbers.
[[nodiscard]] bool natural_less(const std::string& a, const std::string& b);

// Sequences of bytes and what follows each of them.
struct Batch {
  std::vector<std::int32_t> tokens;   // [sequences, length]
  std::vector<std::int32_t> targets;  // [sequences, length]
  // [sequences, length] where in its sequence the token lies that a target repeats, -1: nowhere.
  // Empty where that is not known.
  std::vector<std::int32_t> origins;
};

// Leaves only every n-th token of each sequence of `length` with a target: the last of each n. The
// others get -1, which bears no loss.
void keep_loss_of_every(std::int64_t n, std::int64_t length, Batch& batch);

// Sequences [first, first + count) of global batch `index`: a pure function of its arguments, so
// any number of ranks trains on the same data. `text` must be longer than `length`.
struct BatchSource {
  const std::string* text{nullptr};
  std::uint64_t seed{0};
  std::int64_t sequences_per_batch{0};
  std::int64_t length{0};

  [[nodiscard]] Batch sequences(std::int64_t index, std::int64_t first, std::int64_t count) const;
  // Sequences of the same text at other places, the same for every seed.
  [[nodiscard]] Batch elsewhere(std::int64_t first, std::int64_t count) const;
};

}  // namespace muster::moe_lm
