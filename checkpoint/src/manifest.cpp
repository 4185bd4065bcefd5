// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/src/manifest.h"

#include <muster/common/hash.h>

#include <nlohmann/json.hpp>

#include <span>

namespace muster::checkpoint {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kManifestFormat = "muster-checkpoint";
constexpr int kManifestVersion = 1;
constexpr std::string_view kHashKey = "\"manifest_xxh3_128\": \"";
constexpr std::size_t kHashDigits = 32;

// Checks the hash slot; kDataLoss when it is missing or differs.
Status check_own_hash(std::string_view text) {
  const std::size_t key = text.rfind(kHashKey);
  if (key == std::string_view::npos || text.size() - key < kHashKey.size() + kHashDigits) {
    return data_loss("has no hash");
  }
  const std::size_t slot = key + kHashKey.size();
  std::string zeroed{text};
  zeroed.replace(slot, kHashDigits, kHashDigits, '0');
  const std::string actual = to_hex(hash128(zeroed));
  if (actual != text.substr(slot, kHashDigits)) {
    return data_loss("its own hash does not match: damaged");
  }
  return {};
}

Manifest decode_fields(const Json& root) {
  Manifest manifest;
  manifest.run_id = root.at("run_id").get<std::string>();
  manifest.step = StepIndex{root.at("step").get<std::int64_t>()};
  manifest.generation = Generation{root.at("generation").get<std::int64_t>()};
  manifest.world_size = root.at("world_size").get<int>();
  manifest.sequence = root.at("sequence").get<std::int64_t>();
  manifest.pinned = root.at("pinned").get<bool>();
  manifest.committed_unix_ns = root.at("committed_unix_ns").get<std::int64_t>();
  manifest.incarnation = root.at("incarnation").get<std::string>();
  for (const Json& file : root.at("files")) {
    manifest.files.push_back(
        {file.at("name").get<std::string>(),
         file.at("bytes").get<std::uint64_t>(),
         file.at("xxh3_128").get<std::string>()});
  }
  for (const Json& tensor : root.at("tensors")) {
    manifest.tensors.emplace(
        tensor.at("name").get<std::string>(),
        Pieces::Tensor{
            tensor.at("dtype").get<std::string>(),
            tensor.at("global_shape").get<std::vector<std::int64_t>>()});
  }
  return manifest;
}

}  // namespace

std::string encode_manifest(const Manifest& manifest) {
  Json files = Json::array();
  for (const FileEntry& file : manifest.files) {
    files.push_back({{"name", file.name}, {"bytes", file.bytes}, {"xxh3_128", file.hash}});
  }
  Json tensors = Json::array();
  for (const auto& [name, tensor] : manifest.tensors) {
    tensors.push_back(
        {{"name", name}, {"dtype", tensor.dtype}, {"global_shape", tensor.global_shape}});
  }
  const Json root{
      {"format", kManifestFormat},
      {"version", kManifestVersion},
      {"run_id", manifest.run_id},
      {"step", manifest.step.value()},
      {"generation", manifest.generation.value()},
      {"world_size", manifest.world_size},
      {"sequence", manifest.sequence},
      {"pinned", manifest.pinned},
      {"committed_unix_ns", manifest.committed_unix_ns},
      {"incarnation", manifest.incarnation},
      {"files", files},
      {"tensors", tensors},
      {"manifest_xxh3_128", std::string(kHashDigits, '0')}};
  std::string text = root.dump(1) + "\n";
  const std::string own = to_hex(hash128(text));
  text.replace(text.rfind(kHashKey) + kHashKey.size(), kHashDigits, own);
  return text;
}

Expected<Manifest> decode_manifest(std::string_view text) {
  MUSTER_RETURN_IF_ERROR(check_own_hash(text));
  try {
    const Json root = Json::parse(text);
    if (root.at("format").get<std::string>() != kManifestFormat) {
      return data_loss("is not a muster checkpoint manifest");
    }
    if (root.at("version").get<int>() > kManifestVersion) {
      return version_mismatch("written by a newer muster; upgrade this one to read it");
    }
    return decode_fields(root);
  } catch (const Json::exception& error) {
    return data_loss(std::string{"is not a readable manifest: "} + error.what());
  }
}

}  // namespace muster::checkpoint
