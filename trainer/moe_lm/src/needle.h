// SPDX-License-Identifier: Apache-2.0
// A task that requires attention over long distances. Needles are bytes that each encode a key and
// its value, at random depths of a random filler; questions at the end are bytes that each encode a
// key. The target of a question is the value of its key; only these targets have loss.
//
//   q h e [C=3] z m w o p ... [A=7] c f a k ...   C A A C
//                                                 3 7 7 3
#pragma once

#include "trainer/moe_lm/src/text.h"

#include <muster/common/status.h>

#include <cstdint>

namespace muster::moe_lm {

// Filler bytes are the letters a to z; the question for key k is byte 'A' + k, value v is '0' + v.
inline constexpr std::int64_t kNeedleKeys = 8;
inline constexpr std::int64_t kNeedleValues = 8;
inline constexpr std::int64_t kQuestionsPerNeedle = 4;

// Returns the byte that encodes value `value` of key `key`.
[[nodiscard]] constexpr std::int32_t needle_byte(std::int64_t key, std::int64_t value) {
  return static_cast<std::int32_t>(128 + kNeedleValues * key + value);
}

// Sequences of `length` tokens with `pairs` needles, whose keys differ, and kQuestionsPerNeedle
// times as many questions, each for one of them at random. A pure function of its arguments; no
// sequence of a training batch is held out.
struct NeedleSource {
  std::uint64_t seed{0};
  std::int64_t sequences_per_batch{0};
  std::int64_t length{0};
  std::int64_t pairs{0};

  // Like BatchSource::sequences, with origins.
  [[nodiscard]] Batch sequences(std::int64_t index, std::int64_t first, std::int64_t count) const;
  // Held-out sequences [first, first + count), the same for every seed.
  [[nodiscard]] Batch held_out(std::int64_t first, std::int64_t count) const;
};

// Returns kInvalidArgument naming the flag if the pairs do not fit a sequence.
[[nodiscard]] Status validate_needle(std::int64_t pairs, std::int64_t length);

}  // namespace muster::moe_lm
