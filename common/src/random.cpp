// SPDX-License-Identifier: Apache-2.0
#include <muster/common/check.h>
#include <muster/common/random.h>
#include <muster/common/text.h>

#include <sys/random.h>

#include <cerrno>
#include <cmath>
#include <numbers>
#include <system_error>

namespace muster {

namespace {

struct Product {
  std::uint32_t high;
  std::uint32_t low;
};

Product multiply(std::uint32_t a, std::uint32_t b) {
  const std::uint64_t product = std::uint64_t{a} * b;
  return {static_cast<std::uint32_t>(product >> 32), static_cast<std::uint32_t>(product)};
}

}  // namespace

std::array<std::uint32_t, 4> philox(
    std::uint64_t seed, std::uint64_t stream, std::uint64_t counter) {
  std::array<std::uint32_t, 4> c{
      static_cast<std::uint32_t>(counter),
      static_cast<std::uint32_t>(counter >> 32),
      static_cast<std::uint32_t>(stream),
      static_cast<std::uint32_t>(stream >> 32)};
  auto key0 = static_cast<std::uint32_t>(seed);
  auto key1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const Product p0 = multiply(0xD2511F53U, c[0]);
    const Product p1 = multiply(0xCD9E8D57U, c[2]);
    c = {p1.high ^ c[1] ^ key0, p1.low, p0.high ^ c[3] ^ key1, p0.low};
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  return c;
}

std::uint64_t Random::next_u64() {
  const auto block = philox(seed_, stream_, counter_++);
  return (std::uint64_t{block[1]} << 32) | block[0];
}

double Random::uniform() {
  return static_cast<double>(next_u64() >> 11) * 0x1.0p-53;
}

std::uint64_t Random::below(std::uint64_t bound) {
  MUSTER_CHECK(bound > 0, "there is no number below 0");
  // Rejection keeps every value equally likely.
  const std::uint64_t limit = bound * (~std::uint64_t{0} / bound);
  std::uint64_t value = next_u64();
  while (value >= limit) {
    value = next_u64();
  }
  return value % bound;
}

double Random::normal() {
  const double u = 1.0 - uniform();  // (0, 1]
  const double v = uniform();
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
}

std::string random_hex_id() {
  std::array<std::byte, 16> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw std::system_error(errno, std::generic_category(), "getrandom");
  }
  return to_hex(bytes);
}

}  // namespace muster
