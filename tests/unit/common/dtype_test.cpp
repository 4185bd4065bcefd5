// SPDX-License-Identifier: Apache-2.0
#include <muster/common/dtype.h>
#include <muster/common/tensor_piece.h>

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <string_view>
#include <vector>

namespace muster {

namespace {

constexpr std::array kAll{
    DType::kFloat32,
    DType::kFloat64,
    DType::kInt32,
    DType::kInt64,
    DType::kUint8,
    DType::kBFloat16,
    DType::kFloat16,
    DType::kInt8,
    DType::kInt16,
    DType::kUint16,
    DType::kUint32,
    DType::kUint64,
    DType::kBool};

TEST(DType, EveryNameParsesToItsType) {
  std::set<std::string_view> names;
  for (const DType dtype : kAll) {
    EXPECT_EQ(parse_dtype(to_string(dtype)), dtype);
    EXPECT_EQ(parse_dtype(short_name(dtype)), dtype);
    EXPECT_EQ(parse_safetensors_dtype(safetensors_name(dtype)), dtype);
    names.insert(to_string(dtype));
  }
  EXPECT_EQ(names.size(), kAll.size());
}

TEST(DType, FloatingPointTypesHaveAShortName) {
  EXPECT_EQ(short_name(DType::kBFloat16), "bf16");
  EXPECT_EQ(to_string(DType::kBFloat16), "bfloat16");
  EXPECT_EQ(safetensors_name(DType::kBFloat16), "BF16");
  EXPECT_EQ(short_name(DType::kInt64), "int64");
}

TEST(DType, RefusesOtherNames) {
  for (const std::string_view name : {"", "F32", "FP32", "float", "int8_block"}) {
    EXPECT_EQ(parse_dtype(name), std::nullopt) << name;
  }
  for (const std::string_view name : {"", "f32", "fp32", "F8_E4M3", "C64"}) {
    EXPECT_EQ(parse_safetensors_dtype(name), std::nullopt) << name;
  }
}

TEST(DType, SizesMatchTheCppTypes) {
  EXPECT_EQ(size_bytes(DTypeOf<float>::kValue), sizeof(float));
  EXPECT_EQ(size_bytes(DTypeOf<double>::kValue), sizeof(double));
  EXPECT_EQ(size_bytes(DTypeOf<std::int8_t>::kValue), 1U);
  EXPECT_EQ(size_bytes(DTypeOf<std::int16_t>::kValue), 2U);
  EXPECT_EQ(size_bytes(DTypeOf<std::int32_t>::kValue), 4U);
  EXPECT_EQ(size_bytes(DTypeOf<std::int64_t>::kValue), 8U);
  EXPECT_EQ(size_bytes(DTypeOf<std::uint8_t>::kValue), 1U);
  EXPECT_EQ(size_bytes(DTypeOf<std::uint16_t>::kValue), 2U);
  EXPECT_EQ(size_bytes(DTypeOf<std::uint32_t>::kValue), 4U);
  EXPECT_EQ(size_bytes(DTypeOf<std::uint64_t>::kValue), 8U);
  EXPECT_EQ(size_bytes(DType::kBFloat16), 2U);
  EXPECT_EQ(size_bytes(DType::kFloat16), 2U);
  EXPECT_EQ(size_bytes(DType::kBool), 1U);
}

TEST(TensorPiece, CountsTheElementsOfAShape) {
  EXPECT_EQ(element_count({}), 1);
  EXPECT_EQ(element_count(std::vector<std::int64_t>{3, 4, 5}), 60);
  EXPECT_EQ(element_count(std::vector<std::int64_t>{3, 0, 5}), 0);
}

}  // namespace
}  // namespace muster
