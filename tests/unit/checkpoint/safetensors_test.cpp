// SPDX-License-Identifier: Apache-2.0
// The format against its specification: one file written by hand, byte for byte, and each rule.
#include "checkpoint/src/safetensors.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace muster::checkpoint {

namespace {

std::uint64_t file_bytes(const std::string& json, std::uint64_t data) {
  return kHeaderLengthBytes + json.size() + data;
}

StatusCode code(const std::string& json, std::uint64_t data) {
  return decode_header(json, file_bytes(json, data)).status().code();
}

}  // namespace

TEST(Safetensors, WritesTheHeaderByteForByte) {
  const std::vector<TensorEntry> tensors{{"a", "F32", {2, 1}, 0, 8}};
  const auto header = encode_header(tensors, {{"k", "v"}});
  ASSERT_TRUE(header);
  std::string json =
      R"({"__metadata__":{"k":"v"},"a":{"data_offsets":[0,8],"dtype":"F32","shape":[2,1]}})";
  json.resize((json.size() + 7) / 8 * 8, ' ');
  EXPECT_EQ(header->substr(8), json);
  EXPECT_EQ(
      header->substr(0, 8), (std::string{static_cast<char>(json.size()), 0, 0, 0, 0, 0, 0, 0}));
}

TEST(Safetensors, ReadsTheSpecificationsExample) {
  const std::string json =
      R"({"TENSOR_NAME":{"dtype":"F16","shape":[1,16,256],"data_offsets":[0,8192]},)"
      R"("NEXT_TENSOR_NAME":{"dtype":"U8","shape":[3],"data_offsets":[8192,8195]},)"
      R"("__metadata__":{"special_key":"special_value"}}   )";
  const auto header = decode_header(json, file_bytes(json, 8195));
  ASSERT_TRUE(header) << header.status().to_string();
  EXPECT_EQ(header->tensors[0], (TensorEntry{"TENSOR_NAME", "F16", {1, 16, 256}, 0, 8192}));
  EXPECT_EQ(header->metadata.at("special_key"), "special_value");
}

TEST(Safetensors, AcceptsScalarsEmptyTensorsAndNoTensors) {
  EXPECT_EQ(code(R"({"s":{"dtype":"I64","shape":[],"data_offsets":[0,8]}})", 8), StatusCode::kOk);
  EXPECT_EQ(
      code(R"({"e":{"dtype":"F32","shape":[0,5],"data_offsets":[0,0]}})", 0), StatusCode::kOk);
  EXPECT_EQ(code("{}", 0), StatusCode::kOk);
}

TEST(Safetensors, AcceptsTwoFourBitElementsButNotOne) {
  EXPECT_EQ(code(R"({"q":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}})", 1), StatusCode::kOk);
  EXPECT_EQ(
      code(R"({"q":{"dtype":"F4","shape":[1],"data_offsets":[0,1]}})", 1), StatusCode::kDataLoss);
}

TEST(Safetensors, RejectsTruncationAndTrailingBytes) {
  const std::string json = R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})";
  EXPECT_EQ(code(json, 4), StatusCode::kOk);
  EXPECT_EQ(code(json, 3), StatusCode::kDataLoss);
  EXPECT_EQ(code(json, 5), StatusCode::kDataLoss);
}

TEST(Safetensors, RejectsHolesOverlapsAndAFirstOffsetThatIsNotZero) {
  const std::string b = R"("b":{"dtype":"U8","shape":[2],"data_offsets":)";
  const std::string a = R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)";
  EXPECT_EQ(code(a + b + "[2,4]}}", 4), StatusCode::kOk);
  EXPECT_EQ(code(a + b + "[3,5]}}", 5), StatusCode::kDataLoss);
  EXPECT_EQ(code(a + b + "[1,3]}}", 3), StatusCode::kDataLoss);
  EXPECT_EQ(code("{" + b + "[1,3]}}", 3), StatusCode::kDataLoss);
}

TEST(Safetensors, RejectsDuplicateKeys) {
  const std::string entry = R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  EXPECT_EQ(code("{" + entry + "}", 0), StatusCode::kOk);
  EXPECT_EQ(code("{" + entry + "," + entry + "}", 0), StatusCode::kDataLoss);
  EXPECT_EQ(code(R"({"__metadata__":{"k":"1","k":"2"}})", 0), StatusCode::kDataLoss);
}

TEST(Safetensors, RejectsOffsetsThatDoNotMatchTheShape) {
  EXPECT_EQ(
      code(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4), StatusCode::kDataLoss);
  EXPECT_EQ(
      code(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 0), StatusCode::kDataLoss);
}

TEST(Safetensors, RejectsOverflowingShapes) {
  EXPECT_EQ(
      code(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0),
      StatusCode::kDataLoss);
}

TEST(Safetensors, RejectsWrongTypes) {
  for (const char* json :
       {R"([])",
        R"( {})",
        R"({"a":1})",
        R"({"a":{"dtype":"F32","shape":[1]}})",
        R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})",
        R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})",
        R"({"a":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}})",
        R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":0}})",
        R"({"__metadata__":{"k":1}})",
        R"({"__metadata__":[]})",
        R"({"a":)",
        ""}) {
    EXPECT_EQ(code(json, 4), StatusCode::kDataLoss) << json;
  }
}

TEST(Safetensors, RejectsAHeaderLengthBeyondFileOrCap) {
  const auto length = [](std::uint64_t value, std::uint64_t size) {
    std::vector<std::byte> bytes(8);
    for (std::size_t i = 0; i < 8; ++i) {
      bytes[i] = static_cast<std::byte>(value >> (8 * i));
    }
    return decode_header_length(bytes, size);
  };
  EXPECT_EQ(length(16, 24).value(), 16U);
  EXPECT_EQ(length(17, 24).status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(
      length(kHeaderBytesMax + 1, kHeaderBytesMax * 2).status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(length(~std::uint64_t{0}, 24).status().code(), StatusCode::kDataLoss);
}

TEST(Safetensors, RefusesNamesItCannotWrite) {
  const auto encode = [](const std::string& name) {
    return encode_header(std::vector<TensorEntry>{{name, "U8", {0}, 0, 0}}, {});
  };
  EXPECT_EQ(encode("__metadata__").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(encode("\xff").status().code(), StatusCode::kInvalidArgument);
}

TEST(Safetensors, KnowsEveryDtypeOfTheFormat) {
  for (const char* dtype :
       {"BOOL",    "U8",          "I8",          "F4",  "F6_E2M3", "F6_E3M2", "F8_E5M2", "F8_E4M3",
        "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I16", "U16",     "F16",     "BF16",    "I32",
        "U32",     "F32",         "C64",         "F64", "I64",     "U64"}) {
    EXPECT_TRUE(dtype_bits(dtype)) << dtype;
  }
  EXPECT_FALSE(dtype_bits("f32"));
}

}  // namespace muster::checkpoint
