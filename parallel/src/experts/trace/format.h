// SPDX-License-Identifier: Apache-2.0
// Encoding of a trace: fields without gaps, little-endian on every machine.
#pragma once

#include <muster/parallel/experts/trace.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace muster::parallel {

static_assert(std::endian::native == std::endian::little, "trace fields are copied from memory");

inline constexpr std::array<char, 8> kEpTraceMagic{'M', 'U', 'S', 'T', 'E', 'R', 'E', 'P'};
inline constexpr std::uint32_t kEpTraceVersion = 1;
inline constexpr std::uint32_t kEpTraceRecord = 0x31434552;   // "REC1"
inline constexpr std::size_t kEpTracePrefixBytes = 16;        // magic, version, bytes
inline constexpr std::size_t kEpTraceRecordPrefixBytes = 12;  // tag, bytes, ~bytes

class TraceBytes {
 public:
  explicit TraceBytes(std::vector<std::byte>& bytes) : bytes_(bytes) { bytes_.clear(); }

  template <typename T>
  void put(const T& value) {
    static_assert(std::is_arithmetic_v<T>);
    put_all(std::span{&value, 1});
  }

  template <typename T, std::size_t kExtent>
  void put_all(std::span<T, kExtent> values) {
    const std::size_t begin = bytes_.size();
    bytes_.resize(begin + values.size_bytes());
    if (!values.empty()) {
      std::memcpy(bytes_.data() + begin, values.data(), values.size_bytes());
    }
  }

 private:
  std::vector<std::byte>& bytes_;
};

// Reads fields until the bytes end; then ok() is false and values are 0.
class TraceFields {
 public:
  explicit TraceFields(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  T take() {
    static_assert(std::is_arithmetic_v<T>);
    T value{};
    take_all(std::span{&value, 1});
    return value;
  }

  template <typename T>
  void take_all(std::span<T> values) {
    if (bytes_.size() < values.size_bytes()) {
      ok_ = false;
      bytes_ = {};
      return;
    }
    if (!values.empty()) {
      std::memcpy(values.data(), bytes_.data(), values.size_bytes());
    }
    bytes_ = bytes_.subspan(values.size_bytes());
  }

  [[nodiscard]] bool ok() const { return ok_; }

  [[nodiscard]] std::size_t left() const { return bytes_.size(); }

 private:
  std::span<const std::byte> bytes_;
  bool ok_{true};
};

void encode_header(const EpTraceHeader& header, std::vector<std::byte>& bytes);

// Decodes the whole header in `bytes`. The Status does not name the file.
[[nodiscard]] Expected<EpTraceHeader> decode_header(std::span<const std::byte> bytes);

void encode_record(
    int layer,
    std::int64_t step,
    const EpPlan& plan,
    std::span<const std::int32_t> choices,
    std::vector<std::byte>& bytes);

// Decodes the whole record in `bytes`. Returns false with `why` if it does not match this header.
[[nodiscard]] bool decode_record(
    const EpTraceHeader& header,
    std::span<const std::byte> bytes,
    EpTraceRecord& record,
    std::string& why);

// Size of the largest record of this header.
[[nodiscard]] std::int64_t record_bytes_max(const EpTraceHeader& header);

}  // namespace muster::parallel
