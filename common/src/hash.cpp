// SPDX-License-Identifier: Apache-2.0
#include <muster/common/hash.h>
#include <muster/common/text.h>

#include <xxhash.h>

#include <new>

namespace muster {

struct Hasher128::State {
  XXH3_state_t* xxh{XXH3_createState()};

  State() {
    if (xxh == nullptr || XXH3_128bits_reset(xxh) != XXH_OK) {
      throw std::bad_alloc{};
    }
  }

  ~State() { XXH3_freeState(xxh); }

  State(const State&) = delete;
  State& operator=(const State&) = delete;
  State(State&&) = delete;
  State& operator=(State&&) = delete;
};

std::uint64_t hash64(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

Hash128 hash128(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.low64, hash.high64};
}

Hash128 hash128(std::string_view text) {
  return hash128(std::as_bytes(std::span{text.data(), text.size()}));
}

std::string to_hex(const Hash128& hash) {
  return to_hex(hash[1]) + to_hex(hash[0]);
}

Hasher128::Hasher128() : state_(std::make_unique<State>()) {}

Hasher128::~Hasher128() = default;
Hasher128::Hasher128(Hasher128&&) noexcept = default;
Hasher128& Hasher128::operator=(Hasher128&&) noexcept = default;

void Hasher128::update(std::span<const std::byte> bytes) {
  XXH3_128bits_update(state_->xxh, bytes.data(), bytes.size());
}

Hash128 Hasher128::digest() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_->xxh);
  return {hash.low64, hash.high64};
}

}  // namespace muster
