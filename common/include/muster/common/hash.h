// SPDX-License-Identifier: Apache-2.0
// XXH3 hashes of bytes, streamed or at once. Not cryptographic: they find damage, not forgery.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace muster {

using Hash128 = std::array<std::uint64_t, 2>;  // {low, high}

[[nodiscard]] std::uint64_t hash64(std::span<const std::byte> bytes);
[[nodiscard]] Hash128 hash128(std::span<const std::byte> bytes);
[[nodiscard]] Hash128 hash128(std::string_view text);

// 32 lower-case hex digits, high word first (the canonical XXH128 form).
[[nodiscard]] std::string to_hex(const Hash128& hash);

// Streaming XXH3-128; the digest equals hash128 of the concatenation.
class Hasher128 {
 public:
  Hasher128();
  ~Hasher128();
  Hasher128(const Hasher128&) = delete;
  Hasher128& operator=(const Hasher128&) = delete;
  Hasher128(Hasher128&&) noexcept;
  Hasher128& operator=(Hasher128&&) noexcept;

  void update(std::span<const std::byte> bytes);
  [[nodiscard]] Hash128 digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace muster
