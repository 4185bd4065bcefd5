// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/src/rank_record.h"

#include <muster/common/text.h>

#include <nlohmann/json.hpp>

#include <optional>
#include <span>

namespace muster::checkpoint {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kRecordFormat = "muster-rank";
constexpr int kRecordVersion = 1;

bool is_utf8(const std::string& text) {
  try {
    static_cast<void>(Json(text).dump());
    return true;
  } catch (const Json::exception&) {
    return false;
  }
}

// JSON has no byte strings: what is not UTF-8 travels as {"hex": "..."}.
Json encode_value(const std::string& value) {
  if (is_utf8(value)) {
    return value;
  }
  return Json{{"hex", to_hex(std::as_bytes(std::span{value}))}};
}

std::optional<std::string> decode_value(const Json& value) {
  if (value.is_string()) {
    return value.get<std::string>();
  }
  return from_hex(value.at("hex").get<std::string>());
}

Json encode_piece(const PieceRecord& piece) {
  return Json{
      {"name", piece.name},
      {"dtype", piece.dtype},
      {"shape", piece.shape},
      {"global_shape", piece.global_shape},
      {"offset", piece.offset},
      {"data_offsets", {piece.begin, piece.end}},
      {"xxh3_128", piece.hash}};
}

PieceRecord decode_piece(const Json& value) {
  PieceRecord piece{
      {value.at("name").get<std::string>(),
       value.at("dtype").get<std::string>(),
       value.at("shape").get<std::vector<std::int64_t>>(),
       value.at("global_shape").get<std::vector<std::int64_t>>(),
       value.at("offset").get<std::vector<std::int64_t>>()},
      value.at("data_offsets").at(0).get<std::uint64_t>(),
      value.at("data_offsets").at(1).get<std::uint64_t>(),
      value.at("xxh3_128").get<std::string>()};
  piece.bytes = static_cast<std::int64_t>(piece.end - piece.begin);
  return piece;
}

Expected<RankRecord> decode_fields(const Json& root) {
  RankRecord record;
  record.identity.run_id = root.at("run_id").get<std::string>();
  record.step = StepIndex{root.at("step").get<std::int64_t>()};
  record.identity.generation = Generation{root.at("generation").get<std::int64_t>()};
  record.identity.rank = Rank{root.at("rank").get<std::int32_t>()};
  record.world_size = root.at("world_size").get<int>();
  record.sequence = root.at("sequence").get<std::int64_t>();
  record.identity.incarnation = root.at("incarnation").get<std::string>();
  record.file = root.at("file").get<std::string>();
  record.file_bytes = root.at("file_bytes").get<std::uint64_t>();
  record.file_hash = root.at("file_xxh3_128").get<std::string>();
  for (const Json& piece : root.at("tensors")) {
    record.pieces.push_back(decode_piece(piece));
  }
  for (const auto& [name, value] : root.at("values").items()) {
    std::optional<std::string> bytes = decode_value(value);
    if (!bytes) {
      return data_loss("not a readable rank record: the value ", name, " is not hexadecimal");
    }
    record.values.emplace(name, *std::move(bytes));
  }
  return record;
}

}  // namespace

Expected<std::string> encode_record(const RankRecord& record) {
  Json root{
      {"format", kRecordFormat},
      {"version", kRecordVersion},
      {"run_id", record.identity.run_id},
      {"step", record.step.value()},
      {"generation", record.identity.generation.value()},
      {"rank", record.identity.rank.value()},
      {"world_size", record.world_size},
      {"sequence", record.sequence},
      {"incarnation", record.identity.incarnation},
      {"file", record.file},
      {"file_bytes", record.file_bytes},
      {"file_xxh3_128", record.file_hash},
      {"tensors", Json::array()},
      {"values", Json::object()}};
  for (const PieceRecord& piece : record.pieces) {
    root["tensors"].push_back(encode_piece(piece));
  }
  for (const auto& [name, value] : record.values) {
    root["values"][name] = encode_value(value);
  }
  try {
    return root.dump(1) + "\n";
  } catch (const Json::exception& error) {
    return invalid_argument(std::string{"a tensor or value name is not UTF-8: "} + error.what());
  }
}

Expected<RankRecord> decode_record(std::string_view text) {
  try {
    const Json root = Json::parse(text);
    if (root.at("format").get<std::string>() != kRecordFormat) {
      return data_loss("not a muster rank record");
    }
    if (root.at("version").get<int>() > kRecordVersion) {
      return version_mismatch("written by a newer muster; upgrade this one to read it");
    }
    return decode_fields(root);
  } catch (const Json::exception& error) {
    return data_loss(std::string{"not a readable rank record: "} + error.what());
  }
}

}  // namespace muster::checkpoint
