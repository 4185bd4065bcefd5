// SPDX-License-Identifier: Apache-2.0
// A range of this process's address space that unmaps itself.
#pragma once

#include <muster/common/expected.h>

#include <cstddef>
#include <cstdint>

namespace muster::comm {

inline constexpr std::size_t kPageBytes = 4096;

class Mapping {
 public:
  Mapping() = default;

  Mapping(std::byte* begin, std::size_t bytes) : begin_(begin), bytes_(bytes) {}

  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;

  [[nodiscard]] std::byte* begin() const { return begin_; }

  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  std::byte* begin_{nullptr};
  std::size_t bytes_{0};
};

// Reserves address space without access, to be filled by map_file_at. Takes no
// memory. kResourceExhausted with the limit of the process.
[[nodiscard]] Expected<Mapping> reserve_address_space(std::size_t bytes);

// Maps [offset, offset + bytes) of `file` over [at, at + bytes), which is within a reservation. All
// are multiples of the page size.
[[nodiscard]] Status map_file_at(std::byte* at, std::size_t bytes, int file, std::uint64_t offset);

}  // namespace muster::comm
