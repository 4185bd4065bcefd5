// SPDX-License-Identifier: Apache-2.0
// Memory that grouped products must not touch: beside their tensors, of groups without rows.
#include "tests/unit/kernels/grouped_gemm/case.h"

#include <gtest/gtest.h>

#include <sys/mman.h>

#include <limits>
#include <tuple>

namespace muster::kernels {
namespace {

using test::Layout;
using test::Sizes;

// A tensor right before an inaccessible page, or right behind one.
class Guarded {
 public:
  Guarded(std::int64_t bytes, bool at_end) {
    inner_ = (static_cast<std::size_t>(bytes) + kPage - 1) / kPage * kPage;
    memory_ = mmap(nullptr, inner_ + 2 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(memory_, MAP_FAILED);
    std::byte* first = static_cast<std::byte*>(memory_) + kPage;
    EXPECT_TRUE(inner_ == 0 || mprotect(first, inner_, PROT_READ | PROT_WRITE) == 0);
    data_ = at_end ? first + inner_ - bytes : first;
  }

  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  ~Guarded() { munmap(memory_, inner_ + 2 * kPage); }

  [[nodiscard]] void* data() { return data_; }

  void forbid(std::int64_t offset, std::int64_t bytes) {
    ASSERT_EQ(mprotect(data_ + offset, static_cast<std::size_t>(bytes), PROT_NONE), 0);
  }

 private:
  static constexpr std::size_t kPage = 4096;
  std::size_t inner_{0};
  void* memory_{nullptr};
  std::byte* data_{nullptr};
};

void expect_inside(const Layout& layout, std::int64_t in, std::int64_t out, DType type) {
  const std::int64_t element = size_bytes(type, 1);
  const auto groups = std::ssize(layout.rows);
  for (const bool at_end : {true, false}) {
    Guarded x(layout.total * in * element, at_end);
    Guarded dy(layout.total * out * element, at_end);
    Guarded weights(groups * in * out * element, at_end);
    Guarded y(layout.total * out * element, at_end);
    Guarded dx(layout.total * in * element, at_end);
    Guarded gradients(groups * in * out * 4, at_end);
    const GroupedProblem problem{layout.groups(), in, out, type, 1};
    grouped_forward(problem, x.data(), weights.data(), y.data());
    grouped_dgrad(problem, dy.data(), weights.data(), dx.data(), type == DType::kFloat32);
    grouped_wgrad(problem, x.data(), dy.data(), static_cast<float*>(gradients.data()));
  }
}

TEST(GroupedProductMemory, NothingBesideTheTensorsIsTouched) {
  for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
    for (const auto& [in, out] : {std::pair{1, 1}, {7, 3}, {16, 32}, {33, 65}, {1025, 17}}) {
      for (const std::int64_t rows : {1, 2, 13, 15, 29}) {
        expect_inside(Layout({rows, 0, 1, rows}, 1, 0), in, out, type);
      }
    }
  }
}

TEST(GroupedProductMemory, MatricesOfGroupsWithoutRowsAreNotTouched) {
  constexpr std::int64_t kSize = 64;  // a matrix of floats is four pages
  constexpr std::int64_t kBytes = kSize * kSize * 4;
  const Layout layout({3, 0, 40, 0}, 4, 0);
  Guarded weights(4 * kBytes, true);
  Guarded gradients(4 * kBytes, true);
  for (const std::int64_t empty : {1, 3}) {
    weights.forbid(empty * kBytes, kBytes);
    gradients.forbid(empty * kBytes, kBytes);
  }
  std::vector<float> rows(static_cast<std::size_t>(layout.total * kSize), 1);
  std::vector<float> result(rows.size());
  const GroupedProblem problem{layout.groups(), kSize, kSize, DType::kFloat32, 2};
  grouped_forward(problem, rows.data(), weights.data(), result.data());
  grouped_dgrad(problem, rows.data(), weights.data(), result.data(), false);
  grouped_wgrad(problem, rows.data(), rows.data(), static_cast<float*>(gradients.data()));
  EXPECT_EQ(static_cast<float*>(gradients.data())[0], 3);
}

TEST(GroupedProductMemory, OfNothingButPaddingIsCleared) {
  const Sizes begins{2};
  const Sizes none{0};
  const Sizes ends{4};
  std::vector<float> y(6 * 3, 7);
  grouped_forward({{begins, none, ends}, 5, 3, DType::kFloat32, 1}, nullptr, nullptr, y.data());
  for (std::size_t i = 0; i < y.size(); ++i) {
    EXPECT_EQ(y[i], i / 3 == 2 || i / 3 == 3 ? 0 : 7) << i;
  }
}

// Products that counted padded rows have made training and inference drift apart.
TEST(GroupedProductMemory, WhatPaddingRowsHoldCountsNowhere) {
  constexpr std::int64_t kSize = 40;
  const Layout layout({3, 0, 21}, 8, 2);
  for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
    const auto count = static_cast<std::size_t>(layout.total * kSize);
    test::Tensor clean(type, std::vector<double>(count, 1));
    test::Tensor spoiled(type, std::vector<double>(count, 1));
    const test::Tensor weights(type, std::vector<double>(3 * kSize * kSize, 1));
    for (std::size_t g = 0; g < 3; ++g) {
      const std::int64_t end = g == 2 ? layout.total : layout.begins[g + 1];
      for (std::int64_t row = layout.begins[g] + layout.rows[g]; row < end; ++row) {
        for (std::int64_t i = row * kSize; i < (row + 1) * kSize; ++i) {
          spoiled.set(static_cast<std::size_t>(i), std::numeric_limits<float>::quiet_NaN());
        }
      }
    }
    const GroupedProblem problem{layout.groups(), kSize, kSize, type, 1};
    const auto run = [&](const test::Tensor& rows) {
      test::Tensor y(type, std::vector<double>(count));
      test::Tensor dx(type, std::vector<double>(count));
      std::vector<float> gradients(3 * kSize * kSize);
      grouped_forward(problem, rows.data(), weights.data(), y.data());
      grouped_dgrad(problem, rows.data(), weights.data(), dx.data(), false);
      grouped_wgrad(problem, rows.data(), rows.data(), gradients.data());
      return std::tuple(y.bytes(), dx.bytes(), gradients);
    };
    EXPECT_EQ(run(spoiled), run(clean)) << to_string(type);
  }
}

// Rows beyond 2^31 elements, in memory that is only promised.
TEST(GroupedProductMemory, OffsetsBeyondTwoToThe31Work) {
  constexpr std::int64_t kWidth = 1024;
  constexpr std::int64_t kFar = (std::int64_t{1} << 21) + 5;
  constexpr std::size_t kBytes = static_cast<std::size_t>((kFar + 2) * kWidth * 4);
  void* memory = mmap(
      nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    GTEST_SKIP() << "no address space for 8 GiB";
  }
  auto* x = static_cast<float*>(memory);
  x[kFar * kWidth + 3] = 2;
  const Sizes begins{kFar};
  const Sizes one{1};
  const Sizes ends{kFar + 2};
  const GroupedProblem problem{{begins, one, ends}, kWidth, 1, DType::kFloat32, 1};
  std::vector<float> weights(kWidth, 1);
  weights[3] = 5;
  std::vector<float> y(static_cast<std::size_t>(kFar + 2), 7);
  grouped_forward(problem, x, weights.data(), y.data());
  EXPECT_EQ(y[kFar], 10);
  EXPECT_EQ(y[kFar + 1], 0);
  EXPECT_EQ(y[kFar - 1], 7);
  grouped_dgrad(problem, y.data(), weights.data(), x, false);
  EXPECT_EQ(x[kFar * kWidth + 3], 50);
  EXPECT_EQ(x[(kFar - 1) * kWidth + 3], 0);
  munmap(memory, kBytes);
}

}  // namespace
}  // namespace muster::kernels
