// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/src/safetensors.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <utility>

namespace muster::checkpoint {

namespace {

using UnorderedJson = nlohmann::json;

constexpr std::string_view kMetadataKey = "__metadata__";

struct DtypeBits {
  std::string_view name;
  std::uint64_t bits;
};

constexpr std::array kDtypes{
    DtypeBits{"BOOL", 8},        DtypeBits{"U8", 8},          DtypeBits{"I8", 8},
    DtypeBits{"F4", 4},          DtypeBits{"F6_E2M3", 6},     DtypeBits{"F6_E3M2", 6},
    DtypeBits{"F8_E5M2", 8},     DtypeBits{"F8_E4M3", 8},     DtypeBits{"F8_E8M0", 8},
    DtypeBits{"F8_E4M3FNUZ", 8}, DtypeBits{"F8_E5M2FNUZ", 8}, DtypeBits{"I16", 16},
    DtypeBits{"U16", 16},        DtypeBits{"F16", 16},        DtypeBits{"BF16", 16},
    DtypeBits{"I32", 32},        DtypeBits{"U32", 32},        DtypeBits{"F32", 32},
    DtypeBits{"C64", 64},        DtypeBits{"F64", 64},        DtypeBits{"I64", 64},
    DtypeBits{"U64", 64},
};

// nlohmann keeps the last of two equal keys; safetensors forbids them, so they are caught here.
class DuplicateKeys {
 public:
  bool operator()(int /*depth*/, UnorderedJson::parse_event_t event, UnorderedJson& parsed) {
    if (event == UnorderedJson::parse_event_t::object_start) {
      open_.emplace_back();
    } else if (event == UnorderedJson::parse_event_t::object_end) {
      open_.pop_back();
    } else if (event == UnorderedJson::parse_event_t::key && duplicate_.empty()) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!open_.back().insert(key).second) {
        duplicate_ = key;
      }
    }
    return true;
  }

  [[nodiscard]] const std::string& duplicate() const { return duplicate_; }

 private:
  std::vector<std::set<std::string>> open_;
  std::string duplicate_;
};

Expected<UnorderedJson> parse_object(std::string_view text) {
  if (text.empty() || text.front() != '{') {
    return data_loss("the header does not begin with '{'");
  }
  DuplicateKeys keys;
  try {
    UnorderedJson parsed = UnorderedJson::parse(text, std::ref(keys));
    if (!keys.duplicate().empty()) {
      return data_loss("the header has the key '" + keys.duplicate() + "' twice");
    }
    return parsed;
  } catch (const UnorderedJson::exception& error) {
    return data_loss(std::string{"the header is not JSON: "} + error.what());
  }
}

bool is_unsigned_array(const UnorderedJson& value) {
  return value.is_array() && std::all_of(value.begin(), value.end(), [](const UnorderedJson& item) {
           return item.is_number_unsigned() &&
                  item.get<std::uint64_t>() <=
                      static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
         });
}

Expected<TensorEntry> decode_entry(const std::string& name, const UnorderedJson& value) {
  const auto bad = [&](const std::string& what) {
    return data_loss("tensor '" + name + "': " + what);
  };
  if (!value.is_object() || value.size() != 3 || !value.contains("dtype") ||
      !value.contains("shape") || !value.contains("data_offsets")) {
    return bad("needs exactly dtype, shape and data_offsets");
  }
  const UnorderedJson& offsets = value["data_offsets"];
  if (!value["dtype"].is_string() || !is_unsigned_array(value["shape"]) ||
      !is_unsigned_array(offsets) || offsets.size() != 2) {
    return bad("dtype, shape or data_offsets has the wrong type");
  }
  TensorEntry entry{
      name,
      value["dtype"].get<std::string>(),
      value["shape"].get<std::vector<std::int64_t>>(),
      offsets[0].get<std::uint64_t>(),
      offsets[1].get<std::uint64_t>()};
  const auto bytes = tensor_bytes(entry.dtype, entry.shape);
  if (!bytes) {
    return bad(bytes.status().message());
  }
  if (entry.end < entry.begin || entry.end - entry.begin != *bytes) {
    return bad("data_offsets do not span the " + std::to_string(*bytes) + " bytes of its shape");
  }
  return entry;
}

Expected<std::map<std::string, std::string>> decode_metadata(const UnorderedJson& value) {
  std::map<std::string, std::string> metadata;
  if (!value.is_object()) {
    return data_loss("__metadata__ is not an object");
  }
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) {
      return data_loss("__metadata__ entry '" + key + "' is not a string");
    }
    metadata.emplace(key, text.get<std::string>());
  }
  return metadata;
}

// Sorted, the tensors must tile the data section exactly: this rejects truncation, holes, overlaps
// and trailing bytes.
Status check_tiling(std::vector<TensorEntry>& tensors, std::uint64_t data_bytes) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::pair{a.begin, a.end} < std::pair{b.begin, b.end};
  });
  std::uint64_t expected = 0;
  for (const TensorEntry& tensor : tensors) {
    if (tensor.begin != expected) {
      return data_loss(
          "tensor '", tensor.name, "' begins at ", tensor.begin, " where ", expected, " is due");
    }
    expected = tensor.end;
  }
  if (expected != data_bytes) {
    return data_loss("the tensors fill ", expected, " bytes, the file holds ", data_bytes);
  }
  return {};
}

}  // namespace

std::optional<std::uint64_t> dtype_bits(std::string_view dtype) {
  const auto* found =
      std::find_if(kDtypes.begin(), kDtypes.end(), [&](const auto& d) { return d.name == dtype; });
  return found == kDtypes.end() ? std::nullopt : std::optional{found->bits};
}

Expected<std::uint64_t> tensor_bytes(std::string_view dtype, std::span<const std::int64_t> shape) {
  const auto bits = dtype_bits(dtype);
  if (!bits) {
    return invalid_argument("unknown dtype '" + std::string{dtype} + "'");
  }
  std::uint64_t total = *bits;
  bool empty = false;
  for (const std::int64_t size : shape) {
    if (size < 0) {
      return invalid_argument("negative dimension ", size);
    }
    empty = empty || size == 0;
  }
  for (const std::int64_t size : shape) {
    if (!empty && __builtin_mul_overflow(total, static_cast<std::uint64_t>(size), &total)) {
      return invalid_argument("shape is too large for 64 bits");
    }
  }
  if (total % 8 != 0 && !empty) {
    return invalid_argument("elements do not fill whole bytes");
  }
  return empty ? 0 : total / 8;
}

Expected<std::string> encode_header(
    std::span<const TensorEntry> tensors, const std::map<std::string, std::string>& metadata) {
  UnorderedJson root = UnorderedJson::object();
  if (!metadata.empty()) {
    root[std::string{kMetadataKey}] = metadata;
  }
  for (const TensorEntry& tensor : tensors) {
    if (root.contains(tensor.name) || tensor.name == kMetadataKey) {
      return invalid_argument("tensor name '" + tensor.name + "' is taken");
    }
    root[tensor.name] = {
        {"dtype", tensor.dtype},
        {"shape", tensor.shape},
        {"data_offsets", {tensor.begin, tensor.end}}};
  }
  std::string json;
  try {
    json = root.dump();
  } catch (const UnorderedJson::exception& error) {
    return invalid_argument(std::string{"a tensor name is not UTF-8: "} + error.what());
  }
  json.resize((json.size() + 7) / 8 * 8, ' ');
  if (json.size() > kHeaderBytesMax) {
    return invalid_argument("the header is larger than a safetensors reader accepts");
  }
  std::string out(kHeaderLengthBytes, '\0');
  for (std::size_t i = 0; i < kHeaderLengthBytes; ++i) {
    out[i] = static_cast<char>((std::uint64_t{json.size()} >> (8 * i)) & 0xff);
  }
  return out + json;
}

Expected<std::uint64_t> decode_header_length(
    std::span<const std::byte> bytes, std::uint64_t file_bytes) {
  if (file_bytes < kHeaderLengthBytes || bytes.size() < kHeaderLengthBytes) {
    return data_loss("the file ends inside the header length");
  }
  std::uint64_t length = 0;
  for (std::size_t i = kHeaderLengthBytes; i-- > 0;) {
    length = length << 8 | std::to_integer<std::uint64_t>(bytes[i]);
  }
  if (length > kHeaderBytesMax || length > file_bytes - kHeaderLengthBytes) {
    return data_loss("the header claims ", length, " bytes, the file has ", file_bytes);
  }
  return length;
}

Expected<SafetensorsHeader> decode_header(std::string_view json, std::uint64_t file_bytes) {
  if (file_bytes < kHeaderLengthBytes || json.size() > file_bytes - kHeaderLengthBytes) {
    return data_loss("the file ends inside the header");
  }
  MUSTER_ASSIGN_OR_RETURN(const UnorderedJson root, parse_object(json));
  SafetensorsHeader header;
  for (const auto& [name, value] : root.items()) {
    if (name == kMetadataKey) {
      MUSTER_ASSIGN_OR_RETURN(header.metadata, decode_metadata(value));
      continue;
    }
    MUSTER_ASSIGN_OR_RETURN(TensorEntry entry, decode_entry(name, value));
    header.tensors.push_back(std::move(entry));
  }
  MUSTER_RETURN_IF_ERROR(
      check_tiling(header.tensors, file_bytes - kHeaderLengthBytes - json.size()));
  return header;
}

}  // namespace muster::checkpoint
