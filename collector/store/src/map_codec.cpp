// SPDX-License-Identifier: Apache-2.0
#include "collector/store/src/map_codec.h"

#include <cstdint>
#include <cstring>
#include <optional>

namespace muster::store {

namespace {

template <typename T>
void append_raw(std::vector<std::byte>& bytes, const T* data, std::size_t size) {
  const auto* first = static_cast<const std::byte*>(static_cast<const void*>(data));
  bytes.insert(bytes.end(), first, first + size);
}

void append_text(std::vector<std::byte>& bytes, const std::string& text) {
  const auto size = static_cast<std::uint32_t>(text.size());
  append_raw(bytes, &size, sizeof(size));
  append_raw(bytes, text.data(), text.size());
}

std::optional<std::string> take_text(std::span<const std::byte>& bytes) {
  std::uint32_t size = 0;
  if (bytes.size() < sizeof(size)) {
    return std::nullopt;
  }
  std::memcpy(&size, bytes.data(), sizeof(size));
  bytes = bytes.subspan(sizeof(size));
  if (bytes.size() < size) {
    return std::nullopt;
  }
  std::string text(size, '\0');
  std::memcpy(text.data(), bytes.data(), size);
  bytes = bytes.subspan(size);
  return text;
}

Status damaged() {
  return data_loss("the inputs or labels of an event are damaged");
}

}  // namespace

std::vector<std::byte> encode_map(const std::map<std::string, double>& map) {
  std::vector<std::byte> bytes;
  for (const auto& [key, value] : map) {
    append_text(bytes, key);
    append_raw(bytes, &value, sizeof(value));
  }
  return bytes;
}

std::vector<std::byte> encode_map(const std::map<std::string, std::string>& map) {
  std::vector<std::byte> bytes;
  for (const auto& [key, value] : map) {
    append_text(bytes, key);
    append_text(bytes, value);
  }
  return bytes;
}

Expected<std::map<std::string, double>> decode_number_map(std::span<const std::byte> bytes) {
  std::map<std::string, double> map;
  while (!bytes.empty()) {
    std::optional<std::string> key = take_text(bytes);
    double value = 0;
    if (!key || bytes.size() < sizeof(value)) {
      return damaged();
    }
    std::memcpy(&value, bytes.data(), sizeof(value));
    bytes = bytes.subspan(sizeof(value));
    map.emplace(*std::move(key), value);
  }
  return map;
}

Expected<std::map<std::string, std::string>> decode_text_map(std::span<const std::byte> bytes) {
  std::map<std::string, std::string> map;
  while (!bytes.empty()) {
    std::optional<std::string> key = take_text(bytes);
    std::optional<std::string> value = take_text(bytes);
    if (!key || !value) {
      return damaged();
    }
    map.emplace(*std::move(key), *std::move(value));
  }
  return map;
}

}  // namespace muster::store
