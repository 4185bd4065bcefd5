// SPDX-License-Identifier: Apache-2.0
#include "comm/src/heap/control.h"

#include <algorithm>
#include <cstring>

namespace muster::comm {

void PhaseText::store(std::string_view text) {
  text = text.substr(0, sizeof words_);
  for (std::size_t done = 0; done < text.size(); done += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + done, std::min(sizeof word, text.size() - done));
    words_[done / sizeof word].store(word, std::memory_order_relaxed);
  }
  length_.store(text.size(), std::memory_order_relaxed);
}

std::string PhaseText::load() const {
  char text[sizeof words_];
  for (std::size_t w = 0; w < kWords; ++w) {
    const std::uint64_t word = words_[w].load(std::memory_order_relaxed);
    std::memcpy(text + w * sizeof word, &word, sizeof word);
  }
  return {text, std::min<std::size_t>(length_.load(std::memory_order_relaxed), sizeof text)};
}

// A step of FNV-1a over words, with the high bits folded back: enough to distinguish names and
// sizes in a check against mistakes.
std::uint64_t mix(std::uint64_t hash, std::uint64_t word) {
  hash = (hash ^ word) * 0x100000001b3;
  return hash ^ (hash >> 29);
}

std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325 + text.size();
  for (std::size_t done = 0; done < text.size(); done += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + done, std::min(sizeof word, text.size() - done));
    hash = mix(hash, word);
  }
  return hash;
}

}  // namespace muster::comm
